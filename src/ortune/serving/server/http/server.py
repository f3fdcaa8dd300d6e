"""uvicorn behind bounds that it has not: who hangs is cut, the end loses no request."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ortune.serving.protocol.refusals import RequestRefused
from ortune.serving.server.client_limits import PeerLimit, identify_client
from ortune.serving.server.http.exchange import RATE, Message, Receive, Send
from ortune.serving.server.listeners import Certificate

Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

HEAD_S = 20.0
"""Seconds that a client may take for a request's head, and until its rate is looked at."""
_HEAD_BYTES = 64 << 10
"""Bytes of a request's head at most: httptools knows no limit."""
_UNREAD_BYTES = 1 << 20
"""Bytes at most that a client sends beyond `_FRAMING` times what the application has read of its
body: buffers, requests that come ahead of their turn, trailers and extensions of chunks."""
_FRAMING = 8
"""Bytes that one byte of a chunked body may take: a chunk of it alone takes six."""
_LINES, _SLICE = 256, 1 << 13
"""Ends of lines in what comes at once, above which it is parsed by slices of so many bytes, with
others in between: each chunk of a byte costs as much as one of a megabyte."""
_END = b"\r\n\r\n"
_VERSIONS = (b" HTTP/1.1\r", b" HTTP/1.0\r")
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_REFUSAL = b"The head of the request is too large."
_BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_REFUSAL), _REFUSAL)
)
_CLOSE = (b"connection", b"close")
_VAIN_BYTES = 1 << 17
"""Bytes that the system keeps of a body that is read for nothing: it would take up to 32 MB."""
_KEEP_ALIVE_S = 75
_MOST_CONNECTIONS = 1 << 15
"""Half of the files that a server opens at most; a client has half of these."""
_LAME_DUCK_S = 1.0
"""Seconds in which connections that are kept alive learn that they end, each with an answer."""
_POLL_S = 0.05
_CUT_A_TURN = 50
"""Connections that are cut before others have their turn: 1 ms."""


class _Transport:
    """A transport that reads no more while requests wait for their turn: they may never end.

    It `is_held` where it was to read on and does not, and `is_behind` what is not parsed yet. Of
    the bytes of answers that the client has not taken, the first were written at `busy_since`.
    What is written once it closes is dropped: uvloop's own raises then.
    """

    def __init__(self, transport: asyncio.Transport, inner: HttpToolsProtocol) -> None:
        self._transport, self.inner = transport, inner
        self.is_held = self.is_behind = False
        self._loop = asyncio.get_running_loop()
        self.written, self.busy_since = 0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def resume_reading(self) -> None:
        self.is_held = self.is_behind or bool(self.inner.pipeline)
        if not self.is_held and not self._transport.is_closing():
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            if not self._transport.get_write_buffer_size():
                self.busy_since = self._loop.time()
            self.written += len(data)
            self._transport.write(data)


class _FirstHead(asyncio.Protocol):
    """A new connection until the head of its first request is here.

    Then `_Connection` takes over, which costs five times as much: clients that open thousands and
    say nothing hold nobody up. `waiting` holds it until then.
    """

    __slots__ = ("_client", "_head", "_make", "_peers", "_waiting", "since", "transport")

    def __init__(
        self, make: Callable[[], _Connection], waiting: set[_FirstHead], peers: PeerLimit
    ) -> None:
        self._make, self._waiting, self._peers = make, waiting, peers
        self._client, self._head, self.since = "", b"", asyncio.get_running_loop().time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        client = identify_client(str((transport.get_extra_info("peername") or ("",))[0]))
        try:
            self._peers.open_one(client)
        except RequestRefused:
            transport.abort()
            return
        self._client = client
        self._waiting.add(self)

    def data_received(self, data: bytes) -> None:
        self._head += data
        is_long = len(self._head) > _HEAD_BYTES
        if is_long or _END in self._head or not _may_begin_request(self._head):
            self._waiting.discard(self)
            connection = self._make()
            connection.begin(self.transport, self._client, self.since)
            self.transport.set_protocol(connection)
            connection.data_received(self._head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.discard(self)
        if self._client:
            self._peers.close_one(self._client)


def _may_begin_request(head: bytes) -> bool:
    """Whether more may make a request of it; what is none is refused at once."""
    line, end, _ = head.partition(b"\n")
    return line.endswith(_VERSIONS) if end else line[:1].isupper()


class _Connection(asyncio.Protocol):
    """One client's connection: bounds around the protocol that reads HTTP, `inner`.

    `open_connections` holds it while it is open; `writable` is set while the client takes its
    answer, and once the connection is lost.
    """

    inner: HttpToolsProtocol
    _transport: _Transport
    _head_since: float | None

    def __init__(self, open_connections: set[_Connection], peers: PeerLimit) -> None:
        self._open_connections, self._peers = open_connections, peers
        self._loop = asyncio.get_running_loop()
        self.lost = False
        self.writable = asyncio.Event()
        self.writable.set()
        self._in_head, self._head, self._last = True, 0, b""
        self._received = self._delivered = 0
        self._taken_bytes, self._looked = 0, 0.0

    def begin(self, transport: asyncio.Transport, client: str, since: float) -> None:
        """Take over a connection that `client` opened at `since`."""
        self._client, self._head_since = client, since
        self._transport = _Transport(transport, self.inner)
        self._open_connections.add(self)
        self.inner.connection_made(self._transport)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_connections.discard(self)
        self._peers.close_one(self._client)
        self.lost = True
        self.writable.set()
        self.inner.connection_lost(exc)

    def eof_received(self) -> None:
        self.inner.eof_received()

    def pause_writing(self) -> None:
        self.writable.clear()
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.writable.set()
        self.inner.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            if self._head_since is None:
                self._head_since = self._loop.time()
            end = (self._last + data).find(_END)
            length = len(data) if end < 0 else end + len(_END) - len(self._last)
            self._head += length
            if end >= 0:
                self._in_head, self._received, self._delivered = False, len(data) - length, 0
            data = _without_upgrade(data)
        else:
            self._received += len(data)
        self._last = data[1 - len(_END) :]
        unread = self._received - _FRAMING * self._delivered
        if self._head > _HEAD_BYTES or unread > _UNREAD_BYTES:
            if not self._transport.is_closing():
                self._transport.write(_BAD_REQUEST)
                self._transport.close()
            return
        if data.count(b"\n") > _LINES:
            self._transport.is_behind = True
            self._transport.pause_reading()
            self._parse_slice(memoryview(data))
        else:
            self.inner.data_received(data)

    def _parse_slice(self, data: memoryview) -> None:
        """Parse the first bytes, and the others when others have had their turn."""
        if self.lost or self._transport.is_closing():
            return
        self.inner.data_received(bytes(data[:_SLICE]))
        if len(data) > _SLICE:
            self._loop.call_soon(self._parse_slice, data[_SLICE:])
        else:
            self._transport.is_behind = False
            if not self.inner.flow.read_paused:
                self._transport.resume_reading()

    def begin_request(self) -> None:
        """Take note that the head of a request is here."""
        self._in_head, self._head, self._head_since = False, 0, None
        if self._transport.is_held:
            self._transport.resume_reading()

    def narrow_window(self) -> None:
        """Have the client send slowly what is left of a body that nobody needs."""
        connection = self._transport.get_extra_info("socket")
        with suppress(OSError, AttributeError):  # it has gone; not a socket of this machine
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _VAIN_BYTES)

    def count_delivered(self, size: int) -> None:
        """Take note of bytes of a body that the application has read."""
        self._delivered += size

    def finish_request(self) -> None:
        """Take note that a request is answered: what comes now is the next one's head."""
        self._in_head = True
        self._head_since = self._loop.time() if self._received > self._delivered else None
        if not self.inner.pipeline:
            self._received = self._delivered = 0

    def cut_if_stuck(self, now: float) -> None:
        """Cut it off where the client sends no head, or takes its answer too slowly."""
        if self._head_since is not None:
            if now - self._head_since > HEAD_S:
                self._transport.abort()
            return
        unsent = self._transport.get_write_buffer_size()
        taken_bytes, looked = self._transport.written - unsent, self._looked
        if (
            unsent
            and self._transport.busy_since < looked
            and taken_bytes - self._taken_bytes < RATE * (now - looked)
        ):
            self._transport.abort()
        self._taken_bytes, self._looked = taken_bytes, now


def _without_upgrade(data: bytes) -> bytes:
    """Return what begins with a request's head, without its wish for another protocol.

    Java's client wishes for HTTP/2 with every first request, and httptools would skip its body.
    """
    end = data.find(_END)
    head = data if end < 0 else data[:end]
    if b"upgrade:" not in head.lower():
        return data
    return _UPGRADE.sub(b"\r\nx-grade:", head) + data[len(head) :]


class HttpServer(uvicorn.Server):
    """HTTP in somebody else's loop; signals are not its own.

    Accepted requests have `drain_s` when it ends; while `ending`, every answer says that it is the
    last of its connection.
    """

    def __init__(self, app: Application, certificate: Certificate | None, drain_s: float) -> None:
        self._app = app
        self.ending = False
        self._waiting: set[_FirstHead] = set()
        self.open_connections: set[_Connection] = set()
        self._peers = PeerLimit(_MOST_CONNECTIONS, _MOST_CONNECTIONS // 2, "connections")
        super().__init__(
            uvicorn.Config(
                self._answer_request,
                http=self._make_connection,  # type: ignore[arg-type]  # makes a protocol, as a class does
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
                timeout_graceful_shutdown=max(1, int(drain_s - _LAME_DUCK_S)),
                ssl_certfile=None if certificate is None else certificate.path,
                ssl_keyfile=None if certificate is None else certificate.key,
            )
        )

    def _make_connection(self, *, app_state: dict[str, Any], **options: Any) -> _FirstHead:
        """Return the protocol of a new connection; the scope of its requests names the one that
        takes over."""

        def make() -> _Connection:
            connection = _Connection(self.open_connections, self._peers)
            state = {**app_state, "connection": connection}
            connection.inner = HttpToolsProtocol(app_state=state, **options)
            return connection

        return _FirstHead(make, self._waiting, self._peers)

    async def _answer_request(self, scope: Message, receive: Receive, send: Send) -> None:
        """Have the application answer a request."""
        connection: _Connection = scope["state"]["connection"]

        async def receive_counted() -> Message:
            message = await receive()
            if body := message.get("body"):
                connection.count_delivered(len(body))
            return message

        async def send_in_time(message: Message) -> None:
            if not connection.writable.is_set():
                await connection.writable.wait()
            if message["type"] == "http.response.start" and _CLOSE in message["headers"]:
                connection.narrow_window()
            if self.ending and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], _CLOSE]}
            await send(message)

        connection.begin_request()
        try:
            if connection.lost:  # the request came ahead of its turn, and nobody waits for it
                await send({"type": "http.response.start", "status": 499, "headers": []})
                await send({"type": "http.response.body"})
                return
            await self._app(scope, receive_counted, send_in_time)
        finally:
            connection.finish_request()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs the loop."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Cut clients that hang, twice in the time that they have."""
        if counter % int(5 * HEAD_S) == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.open_connections):
                connection.cut_if_stuck(now)
            late = [silent for silent in self._waiting if now - silent.since > HEAD_S]
            for number, silent in enumerate(late):
                silent.transport.abort()
                if number % _CUT_A_TURN == 0:
                    await asyncio.sleep(0)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: Any = None) -> None:
        """Take no new connections; end those there are with an answer each, then the idle ones.

        A client that keeps its connection may be sending while it is closed, and its request would
        be lost: so for a moment every answer says that it is the connection's last.
        """
        self.ending = True
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        until = loop.time() + _LAME_DUCK_S
        while self.open_connections and loop.time() < until:
            await asyncio.sleep(_POLL_S)
        for silent in list(self._waiting):
            silent.transport.abort()
        await super().shutdown(sockets)
