"""uvicorn as this server needs it: clients that hang are cut off, the end loses no request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ortune.server.tls import Certificate

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

HEAD_S = 20.0
"""Seconds that a client may take for a request's head, and for a part of an answer."""
_HEAD_BYTES = 64 << 10
"""Of a request's head at most, and of what is no data in its body; httptools knows no limit."""
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_FRAMED = 8
"""Bytes that one byte of a chunked body may take: a chunk of it alone takes six."""
_KEEP_ALIVE_S = 75
_LAME_DUCK_S = 1.0
"""Seconds in which connections that are kept alive learn that they end, each with an answer."""
_LOOK_S = 0.05


class _State(ServerState):
    """What all connections share.

    Attributes:
        ending: Every answer is the last one of its connection, and says so.
    """

    ending = False


class _Flow(FlowControl):
    """Reads no more of a client while requests of it wait for their turn: it may never end."""

    held = False

    def resume_reading(self) -> None:
        if not self.held and not self._transport.is_closing():
            super().resume_reading()


class _Connection(HttpToolsProtocol):
    """One client's connection."""

    server_state: _State
    flow: _Flow

    waiting_since: float | None = None
    """When its head began, or the connection; None once the head is here."""
    stuck: int | None = None
    """Bytes that the client did not take when it was last looked at."""
    _head = 0
    _answered: RequestResponseCycle | None = None
    """The request that is being answered; uvicorn's own `cycle` is the last that came."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self.waiting_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data if self._in_body else _not_upgraded(data))
        if self._head > _HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _in_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._head = max(0, self._head - _FRAMED * len(body))

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head = 0

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.waiting_since, self._head = self.loop.time(), 0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.waiting_since = None
        self.flow.held = bool(self.pipeline)
        if self.server_state.ending:
            self.end()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.flow.held = bool(self.pipeline)
        self.flow.resume_reading()

    def end(self) -> None:
        """Let the answer that is being made be the last."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def look(self, now: float) -> None:
        """Cut it off where the client sends no head, or takes no answer, for too long."""
        if self.waiting_since is not None:
            if now - self.waiting_since > HEAD_S:
                self.transport.abort()
            return
        left = self.transport.get_write_buffer_size()
        if left and left == self.stuck:
            self.transport.abort()
        self.stuck = left or None


def _not_upgraded(data: bytes) -> bytes:
    """Return what begins with a request's head, without its wish for another protocol.

    Java's client wishes for HTTP/2 with every first request, and httptools would skip its body.
    """
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[:end]
    if b"upgrade:" not in head.lower():
        return data
    return _UPGRADE.sub(b"\r\nx-grade:", head) + data[len(head) :]


class HttpServer(uvicorn.Server):
    """HTTP in somebody else's loop; signals are not its own.

    Args:
        app: Answers requests.
        certificate: For TLS.
        drain_s: Seconds that accepted requests may take when it ends.
    """

    def __init__(self, app: Application, certificate: Certificate | None, drain_s: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_Connection,
                loop="none",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, int(drain_s)),
                ssl_certfile=None if certificate is None else certificate.path,
                ssl_keyfile=None if certificate is None else certificate.key,
            )
        )
        self.server_state: _State = _State()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs the loop."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Look after clients that hang, twice in the time that they have."""
        if counter % int(5 * HEAD_S) == 0:
            now = asyncio.get_running_loop().time()
            for connection in self._connections:
                connection.look(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: Any = None) -> None:
        """Take no new connections; end those there are with an answer each, then the idle ones.

        A client that keeps its connection may be sending while it is closed, and its request would
        be lost: so for a moment every answer says that it is the connection's last.
        """
        self.server_state.ending = True
        for connection in self._connections:
            connection.end()
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        until = loop.time() + _LAME_DUCK_S
        while self.server_state.connections and loop.time() < until:
            await asyncio.sleep(_LOOK_S)
        await super().shutdown(sockets)

    @property
    def _connections(self) -> list[_Connection]:
        return [one for one in self.server_state.connections if isinstance(one, _Connection)]
