"""One HTTP request on its way to its reply, and what a reply is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import orjson

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

JSON: Header = (b"content-type", b"application/json")
BINARY: Header = (b"content-type", b"application/octet-stream")
_MOST_ID = 128
"""Bytes of a request's id from its header."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer.

    Attributes:
        chunks: Its body.
        headers: All but its length.
    """

    status: int = 200
    chunks: Sequence[bytes | memoryview] = ()
    headers: tuple[Header, ...] = (JSON,)


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
        headers: By lower-case name.
        pending: Whether it has a body that was not read to its end.
        model: The model that it names.
        version: Its version, where it names one.
        echo: ``x-request-id``, where it may stand in a log and a header.
        id: That or, if it has one of its own, the body's.
        queue_ms: Milliseconds that it waited, once it is answered.
        rows: Of its batch, as far as it was read.
        told: Whether the journal hears of it where all goes well.
        received: Bytes of its body.
        late: Whether it did not come in time.
        gone: Whether the client went away.
    """

    __slots__ = (
        "echo",
        "gone",
        "headers",
        "id",
        "late",
        "method",
        "model",
        "path",
        "pending",
        "queue_ms",
        "receive",
        "received",
        "rows",
        "told",
        "version",
    )

    def __init__(self, scope: Message, receive: Receive) -> None:
        self.method: str = "GET" if scope["method"] == "HEAD" else scope["method"]
        raw: str = scope["raw_path"].decode("ascii", "replace")
        self.path = raw.split("/")[1:]
        if "%" in raw:
            self.path = [unquote(one) for one in self.path]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.receive = receive
        self.pending = (
            self.headers.get(b"content-length", b"0") != b"0"
            or b"transfer-encoding" in self.headers
        )
        self.model = self.version = ""
        self.echo = _harmless(self.headers.get(b"x-request-id", b""))
        self.id = self.echo.decode()
        self.rows = self.received = 0
        self.queue_ms = 0.0
        self.told = self.gone = self.late = False

    def header(self, name: bytes) -> str:
        """Return a header as text, empty without it."""
        return self.headers.get(name, b"").decode("latin-1")


def json_reply(value: Any, status: int = 200, *headers: Header) -> Reply:
    """Return a reply of JSON."""
    return Reply(status, (orjson.dumps(value),), (JSON, *headers))


def error_reply(status: int, text: str, *headers: Header) -> Reply:
    """Return a refusal as the protocol words it."""
    return json_reply({"error": text}, status, *headers)


def _harmless(id: bytes) -> bytes:
    """Return a short id of printable ASCII as it is, and none in the place of any other."""
    return id if len(id) <= _MOST_ID and id.isascii() and id.decode().isprintable() else b""
