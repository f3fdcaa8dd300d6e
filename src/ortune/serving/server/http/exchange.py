"""One HTTP request: its body read under a cap, its client watched, and its reply."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import numpy as np
import orjson

from ortune.serving.protocol.refusals import RefusalKind, RequestRefused
from ortune.serving.server.repository.memory_budget import MemoryBudget

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

JSON: Header = (b"content-type", b"application/json")
BINARY: Header = (b"content-type", b"application/octet-stream")
_CLOSE: Header = (b"connection", b"close")
_MOST_ID = 128
"""Bytes of a request's id from its header."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, all headers but its length, and what it holds of memory until it is sent."""

    status: int = 200
    chunks: Sequence[bytes | memoryview] = ()
    headers: tuple[Header, ...] = (JSON,)
    held_bytes: int = 0


class HttpError(Exception):
    """A request that HTTP itself refuses, by a status that gRPC has no word for."""

    def __init__(self, status: int, text: str, *headers: Header) -> None:
        super().__init__(text)
        self.status, self.headers = status, headers


class Exchange:
    """One request.

    Attributes:
        method: ``HEAD`` is ``GET`` here: the server sends no body then.
        path: Its parts, decoded one by one, so that an encoded slash parts nothing.
        pending: Whether it has a body that was not read to its end.
        version: Its version, where it names one.
        echo: ``x-request-id``, where it may stand in a log and a header.
        id: That or, if it has one of its own, the body's.
        queue_ms: Milliseconds that it waited, once it is answered.
        logs_success: Whether the journal hears of it where all goes well.
        late: Whether its body did not come in time.
    """

    __slots__ = (
        *("echo", "gone", "headers", "id", "late", "logs_success", "method", "model", "path"),
        *("pending", "queue_ms", "receive", "received", "rows", "version"),
    )

    def __init__(self, scope: Message, receive: Receive) -> None:
        self.method: str = "GET" if scope["method"] == "HEAD" else scope["method"]
        raw: str = scope["raw_path"].decode("ascii", "replace")
        self.path = raw.split("/")[1:]
        if "%" in raw:
            self.path = [unquote(segment) for segment in self.path]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.receive = receive
        self.pending = (
            self.headers.get(b"content-length", b"0") != b"0"
            or b"transfer-encoding" in self.headers
        )
        self.model = self.version = ""
        # A short id of printable ASCII is told as it is, and none in the place of any other.
        echo = self.headers.get(b"x-request-id", b"")
        fits = len(echo) <= _MOST_ID and echo.isascii() and echo.decode().isprintable()
        self.echo = echo if fits else b""
        self.id = self.echo.decode()
        self.rows = self.received = 0
        self.queue_ms = 0.0
        self.logs_success = self.gone = self.late = False

    def read_header(self, name: bytes) -> str:
        """Return a header as text, empty without it."""
        return self.headers.get(name, b"").decode("latin-1")


def json_reply(value: Any, status: int = 200, *headers: Header) -> Reply:
    """Return a reply of JSON."""
    return Reply(status, (orjson.dumps(value),), (JSON, *headers))


def error_reply(status: int, text: str, *headers: Header) -> Reply:
    """Return a refusal as the protocol words it."""
    return json_reply({"error": text}, status, *headers)


_ENCODINGS = ("gzip", "deflate")
SETTINGS_BYTES = 1 << 20
"""Of what asks no model: the event loop itself parses it."""
_STEP = 1 << 18
"""Bytes that are inflated before others have their turn: less than 1 ms."""
_PARTS_A_TURN = 8
"""Parts, of `_STEP` bytes at most, that are copied before others have their turn."""
_ALIGNED = 8
"""Bytes of the protocol's widest numbers."""


class Disconnected(Exception):
    """The client went away before its request was whole."""


class _Body:
    """What came of one body, inflated, laid so that byte `head` of it is aligned.

    Where its length is known, its parts are copied as they come: to put 60 MB together at the end
    takes the event loop 25 to 80 ms.
    """

    __slots__ = ("_head", "_length", "_parts", "_room", "size")

    def __init__(self, head: int, length: int) -> None:
        self._head, self._length = head, length
        self._parts: list[bytes] = []
        self._room: memoryview | None = None
        self.size = 0

    def append(self, part: bytes) -> None:
        """Add a part."""
        start, self.size = self.size, self.size + len(part)
        if self._room is None and start == 0 and len(part) < self._length:
            self._room = _make_room(self._length, self._head)
        if self._room is not None:
            self._room[start : self.size] = part
        else:
            self._parts.append(part)

    async def join(self) -> bytes | memoryview:
        """Return the whole of it; others have their turns while it is put together."""
        if self._room is not None:
            return self._room
        if len(self._parts) == 1:
            return self._parts[0]
        whole, at = _make_room(self.size, self._head), 0
        for number, part in enumerate(self._parts):
            whole[at : at + len(part)] = part
            at += len(part)
            if number % _PARTS_A_TURN == 0:
                await asyncio.sleep(0)
        return whole


def _make_room(size: int, head: int) -> memoryview:
    """Return memory for so many bytes, in which byte `head` is aligned."""
    room = np.empty(size + _ALIGNED, np.uint8)
    start = -(room.ctypes.data + head) % _ALIGNED
    return room.data[start : start + size]


class Bodies:
    """Reads bodies: none larger than the cap, and not everybody's largest at once.

    The cap is before and after a body is inflated. What bodies take of `memory` they hold until it
    is released; one alone may have more.
    """

    def __init__(self, cap: int, memory: MemoryBudget) -> None:
        self._cap, self.memory = cap, memory

    async def read_body(
        self, exchange: Exchange, head: int = 0, cap: int | None = None
    ) -> bytes | memoryview:
        """Return the body of a request, inflated; it counts as held until it is released.

        Its tensors begin behind `head` bytes: a body that comes in several parts is laid so that
        their numbers can be read in place. `cap` is what this one may have, where that is less.
        Raises RequestRefused: it is too large, or cannot be inflated, or too much is held;
        HttpError: its encoding is not known; Disconnected: the client went away.
        """
        encoding, inflater = exchange.read_header(b"content-encoding").lower(), None
        if encoding in _ENCODINGS:
            inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, as its head says
        elif encoding not in ("", "identity"):
            accepted = (b"accept-encoding", ", ".join(_ENCODINGS).encode())
            raise HttpError(415, "Unsupported compression type", accepted)
        cap = min(self._cap, cap or self._cap)
        length = int(exchange.read_header(b"content-length") or 0)
        _require_fitting_size(length, cap)
        is_known = inflater is None and b"transfer-encoding" not in exchange.headers
        body = _Body(head, length if is_known else 0)
        try:
            while exchange.pending:
                message = await exchange.receive()
                if message["type"] != "http.request":
                    raise Disconnected
                exchange.pending = message.get("more_body", False)
                part: bytes = message.get("body", b"")
                exchange.received += len(part)
                _require_fitting_size(exchange.received, cap)
                if inflater is None:
                    self._append_part(body, part, cap)
                else:
                    await self._inflate_part(body, inflater, part, cap)
            if inflater is not None and not inflater.eof:
                raise _make_inflation_error("it ends too early")
            return await body.join()
        except BaseException:
            self.memory.release_bytes(body.size)
            raise

    async def _inflate_part(self, body: _Body, inflater: Any, part: bytes, cap: int) -> None:
        """Inflate in steps, so that nothing is made of a bomb but its first bytes."""
        while True:
            try:
                chunk = inflater.decompress(part, _STEP)
            except zlib.error as error:
                raise _make_inflation_error(str(error)) from None
            self._append_part(body, chunk, cap)
            if inflater.unused_data:
                raise _make_inflation_error("something is behind its end")
            if len(chunk) < _STEP:
                return
            part = inflater.unconsumed_tail
            await asyncio.sleep(0)

    def _append_part(self, body: _Body, part: bytes, cap: int) -> None:
        body.append(part)
        self.memory.hold_part(len(part), self._cap)
        _require_fitting_size(body.size, cap)


def _require_fitting_size(size: int, most: int) -> None:
    if size > most:
        raise make_size_refusal(most)


def make_size_refusal(most: int) -> RequestRefused:
    """Return what refuses a request of more bytes than it may have."""
    return RequestRefused(
        f"the request is larger than {most} bytes",
        RefusalKind.TOO_LARGE,
        "send no more than the model takes, or serve with a larger --max-body",
    )


def _make_inflation_error(why: str) -> RequestRefused:
    return RequestRefused(f"the body cannot be inflated: {why}")


PATIENCE_S = 0.1
"""Seconds before a client is looked after: most are answered by then, and looking costs more."""
PERIOD_S = 10.0
"""Seconds that a body may take, or so much of it as `RATE` says."""
RATE = 1 << 14
"""Bytes a second that a client sends at least where its body takes longer, and of an answer
takes."""


class ClientWatch:
    """Cancels the task that answers a request when nobody will get its answer.

    A body has to come, and go on coming, in time: `period_s`, else `PERIOD_S`, for all or for so
    much as `RATE` says. Once it is here, its client has to stay.
    """

    def __init__(self, exchange: Exchange, period_s: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._period_s = period_s or PERIOD_S
        self._exchange, self._answering = exchange, asyncio.current_task()
        self._looking: asyncio.Task[None] | None = None

        def begin() -> None:
            self._looking = asyncio.ensure_future(self._watch_client())

        self._timer = loop.call_later(PATIENCE_S, begin)

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    async def _watch_client(self) -> None:
        exchange = self._exchange
        while exchange.pending:
            before = exchange.received
            await asyncio.sleep(self._period_s)
            if exchange.pending and exchange.received < before + RATE * self._period_s:
                exchange.late = True
                break
        else:
            while (await exchange.receive())["type"] != "http.disconnect":
                pass
            exchange.gone = True
        if self._answering is not None:
            self._answering.cancel()


_PIECE = 1 << 18
"""Bytes of an answer that are handed over at once."""
_PAUSE_S = 0.005
"""Seconds between parts, of 256 kB at most, of a body that is read for nothing."""


async def send_reply(exchange: Exchange, reply: Reply, send: Send) -> None:
    """Send a reply; a client that is still sending its request is heard out for a while.

    Its connection would else be reset while it sends, and many clients read no answer then. A
    large one goes in pieces, each when the client has taken those before, and `send` waits for
    that: nearly all of it has arrived when this returns.
    """
    chunks = reply.chunks
    size = sum(map(len, chunks))
    headers = [*reply.headers, (b"content-length", str(size).encode())]
    if exchange.echo:
        headers.append((b"x-request-id", exchange.echo))
    if exchange.pending:
        headers.append(_CLOSE)
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    for chunk in chunks if size > _PIECE else chunks[:-1]:
        for start in range(0, len(chunk), _PIECE):
            piece = chunk[start : start + _PIECE]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    last = chunks[-1] if chunks and size <= _PIECE else b""
    if exchange.pending:
        await send({"type": "http.response.body", "body": last, "more_body": True})
        if not exchange.late:
            # Read what a client still sends, for so long as a body may take.
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    while (await exchange.receive()).get("more_body", False):
                        await asyncio.sleep(_PAUSE_S)
        last = b""
    await send({"type": "http.response.body", "body": last, "more_body": False})
