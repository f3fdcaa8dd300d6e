"""The ASGI application: who may ask, what answers, and what the journal hears of it."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns

from ortune.protocol.status import Refused, Status, refused
from ortune.server.http.exchange import (
    PERIOD_S,
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
)
from ortune.server.http.routes import Routes
from ortune.server.listeners import Access
from ortune.server.logs import Journal, LoggedRequest
from ortune.server.repository.repository import Repository
from ortune.server.repository.served import Limits

_OPEN = (["v2", "health", "live"], ["v2", "health", "ready"])
"""What needs no token: whoever watches over processes has none."""
_BEARER: Header = (b"www-authenticate", b"Bearer")
_CLOSE: Header = (b"connection", b"close")
_LATE = "the body of the request did not come in time"
_MOST_NAME = 128
"""Characters of a name that is no model's, in the journal."""


class App:
    """Answers requests by HTTP; uvicorn calls it.

    Args:
        repository: The models.
        access: Who may ask.
        journal: Hears of infer requests and of what is refused.
        limits: What is let in.
    """

    def __init__(
        self, repository: Repository, access: Access, journal: Journal, limits: Limits
    ) -> None:
        self._access, self._journal = access, journal
        self._bodies = Bodies(limits.max_body, limits.max_held)
        self._routes = Routes(repository, self._bodies)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            NotImplementedError: It is none of HTTP.
        """
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']}")
        began = perf_counter_ns()
        exchange = Exchange(scope, receive)
        watching = ClientWatch(exchange)
        try:
            reply, error = await self._replied(exchange)
        finally:
            watching.end()
        if reply.status >= 400 or exchange.told:
            self._journal.request(
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
                    trace=exchange.header(b"traceparent"),
                )
            )
        if not exchange.gone:
            await _send(exchange, reply, send)

    async def _replied(self, exchange: Exchange) -> tuple[Reply, str]:
        """Return the answer, and the error that it tells."""
        try:
            return await self._reply(exchange), ""
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
            told = refused(error)
            headers = (_BEARER,) if told.status is Status.UNAUTHENTICATED else ()
            return error_reply(told.status.http, told.text, *headers), told.text
        return Reply(Status.CANCELLED.http), "the client went away"

    async def _reply(self, exchange: Exchange) -> Reply:
        allowed = self._access.open or exchange.path in _OPEN
        if not allowed and not self._access.allows(exchange.header(b"authorization")):
            raise Refused("a token is wanted, and this is none", Status.UNAUTHENTICATED)
        methods, answer = self._routes.find(exchange)
        if exchange.method not in methods:
            raise HttpError(405, "Method Not Allowed", (b"allow", ", ".join(methods).encode()))
        return await answer(exchange)


async def _send(exchange: Exchange, reply: Reply, send: Send) -> None:
    """Send a reply; a client that is still sending its request is heard out for a while.

    Its connection would else be reset while it sends, and many clients read no answer then.
    """
    chunks = reply.chunks
    size = sum(map(len, chunks))
    headers = [*reply.headers, (b"content-length", str(size).encode())]
    if exchange.echo:
        headers.append((b"x-request-id", exchange.echo))
    if exchange.pending:
        headers.append(_CLOSE)
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    for chunk in chunks[:-1]:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    last = chunks[-1] if chunks else b""
    if exchange.pending:
        await send({"type": "http.response.body", "body": last, "more_body": True})
        if not exchange.late:
            await _heard_out(exchange)
        last = b""
    await send({"type": "http.response.body", "body": last, "more_body": False})


async def _heard_out(exchange: Exchange) -> None:
    """Read what a client still sends, for so long as a body may take."""
    try:
        async with asyncio.timeout(PERIOD_S):
            while (await exchange.receive()).get("more_body", False):
                pass
    except TimeoutError:
        return
