"""The ASGI application: who may ask, what answers, and what the journal hears of it."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns

from ortune.serving.protocol.status import RefusalKind, RequestRefused, make_refusal
from ortune.serving.server.http.exchange import (
    Bodies,
    ClientWatch,
    Disconnected,
    Exchange,
    Header,
    HttpError,
    Message,
    Receive,
    Reply,
    Send,
    error_reply,
    send_reply,
)
from ortune.serving.server.http.routes import Routes
from ortune.serving.server.listeners import Access
from ortune.serving.server.logs import Journal, LoggedRequest
from ortune.serving.server.peers import CLIENT, identify_client
from ortune.serving.server.repository.repository import Repository

_OPEN = (["v2", "health", "live"], ["v2", "health", "ready"])
"""What needs no token: whoever watches over processes has none."""
_BEARER: Header = (b"www-authenticate", b"Bearer")
_LATE = "the body of the request did not come in time"
_MOST_NAME = 128
"""Characters of a name that is no model's, in the journal."""


class App:
    """Answers requests by HTTP; uvicorn calls it.

    Args:
        repository: The models.
        access: Who may ask.
        journal: Hears of infer requests and of what is refused.
        period_s: Of `ClientWatch`.
    """

    def __init__(
        self,
        repository: Repository,
        access: Access,
        journal: Journal,
        period_s: float | None = None,
    ) -> None:
        self._period_s = period_s
        limits = repository.limits
        self._access, self._journal = access, journal
        self._memory = repository.memory
        self._routes = Routes(repository, Bodies(limits.max_body, repository.memory))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. Raises NotImplementedError: it is none of HTTP."""
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']}")
        began = perf_counter_ns()
        CLIENT.set(identify_client((scope.get("client") or ("",))[0]))
        exchange = Exchange(scope, receive)
        watching = ClientWatch(exchange, self._period_s)
        try:
            reply, error = await self._answer_exchange(exchange)
        finally:
            watching.end()
        try:
            if reply.status >= 400 or exchange.logs_success:
                self._journal.log_request(
                    LoggedRequest(
                        front="http",
                        model=exchange.model[:_MOST_NAME],
                        version=exchange.version[:_MOST_NAME],
                        id=exchange.id,
                        status=reply.status,
                        ms=(perf_counter_ns() - began) / 1e6,
                        queue_ms=exchange.queue_ms,
                        rows=exchange.rows,
                        error=error,
                        trace=exchange.read_header(b"traceparent"),
                    )
                )
            if not exchange.gone:
                await send_reply(exchange, reply, send)
        finally:
            self._memory.release_bytes(reply.held_bytes)

    async def _answer_exchange(self, exchange: Exchange) -> tuple[Reply, str]:
        """Return the answer, and the error that it tells."""
        try:
            allowed = self._access.open or exchange.path in _OPEN
            if not allowed and not self._access.allows(exchange.read_header(b"authorization")):
                raise RequestRefused("the request has no valid token", RefusalKind.UNAUTHENTICATED)
            methods, answer = self._routes.find_route(exchange)
            if exchange.method not in methods:
                raise HttpError(405, "Method Not Allowed", (b"allow", ", ".join(methods).encode()))
            return await answer(exchange), ""
        except HttpError as error:
            return error_reply(error.status, str(error), *error.headers), str(error)
        except Disconnected:
            exchange.gone = True
        except asyncio.CancelledError:
            if exchange.late:
                return error_reply(408, _LATE), _LATE
            if not exchange.gone:
                raise
        except Exception as error:
            refusal = make_refusal(error)
            headers = (_BEARER,) if refusal.status is RefusalKind.UNAUTHENTICATED else ()
            return error_reply(refusal.status.http, refusal.text, *headers), refusal.text
        return Reply(RefusalKind.CANCELLED.http), "the client went away"
