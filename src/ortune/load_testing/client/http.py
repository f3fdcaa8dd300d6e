"""Requests over HTTP: connections that stay open, one request at a time on each."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import httptools

from ortune.load_testing.client.answers import KeptAnswers
from ortune.load_testing.client.drive import LOST, REFUSED, TIMED_OUT

_LONGEST = 300
"""Characters of an error's text that are kept."""


class HttpSender:
    """Sends ready requests; a connection that was closed is opened again, as clients do.

    Attributes:
        examples: Status -> the text of its first error.
    """

    def __init__(
        self,
        host: str,
        port: int,
        requests: Sequence[bytes],
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        answers: KeptAnswers | None = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            requests: Heads and bodies.
            answers: Takes every right answer, where they are compared.
        """
        self.examples: dict[str, str] = {}
        self._address, self._tls, self._timeout_s = (host, port), tls, timeout_s
        self._requests, self._answers = requests, answers
        self._idle: deque[_Connection] = deque()

    async def send(self, ticket: int) -> str:
        """Send a request as `Sender` says."""
        sample = ticket % len(self._requests)
        try:
            connection = await self._connection()
            status, body, head = await connection.ask(self._requests[sample], self._timeout_s)
        except TimeoutError:
            return TIMED_OUT
        except ConnectionRefusedError:
            return REFUSED
        except OSError as error:
            self.examples.setdefault(LOST, str(error)[:_LONGEST])
            return LOST
        if not connection.closed:
            self._idle.append(connection)
        if status != 200:
            text = body.decode(errors="replace")[:_LONGEST]
            self.examples.setdefault(str(status), text)
            return str(status)
        if self._answers is not None:
            self._answers.add(sample, body, head)
        return ""

    async def prepare(self, callers: int) -> None:
        """Open connections as `Sender` says."""
        with suppress(OSError):
            while len(self._idle) < callers:
                self._idle.append(await self._opened())

    async def close(self) -> None:
        """Close the connections."""
        for one in self._idle:
            one.close()

    async def _connection(self) -> _Connection:
        """Return the connection that has been idle for longest, or a new one."""
        while self._idle:
            if not (found := self._idle.popleft()).closed:
                return found
        return await self._opened()

    async def _opened(self) -> _Connection:
        loop, (host, port) = asyncio.get_running_loop(), self._address
        async with asyncio.timeout(self._timeout_s):
            _, made = await loop.create_connection(
                lambda: _Connection(keep=self._answers is not None), host, port, ssl=self._tls
            )
        return made


class _Connection(asyncio.Protocol):
    """One connection, and the answer that it waits for."""

    def __init__(self, *, keep: bool) -> None:
        self.closed = False
        self._keep = keep
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[tuple[int, bytes, int]] | None = None
        self._begin()

    def _begin(self) -> None:
        self._keeps, self._head = self._keep, -1
        self._chunks: list[bytes] = []

    async def ask(self, request: bytes, timeout_s: float) -> tuple[int, bytes, int]:
        """Return the status, the body where it is kept, and the length of its JSON.

        Raises:
            TimeoutError: There is no answer in time.
            OSError: The connection broke.
        """
        loop = asyncio.get_running_loop()
        self._begin()
        self._waiting = loop.create_future()
        late = loop.call_later(timeout_s, self._end, TimeoutError())
        self._transport.write(request)
        try:
            return await self._waiting
        finally:
            late.cancel()
            self._waiting = None

    def close(self) -> None:
        self.closed = True
        self._transport.abort()

    def _end(self, error: BaseException) -> None:
        self.close()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = exc if isinstance(exc, OSError) else ConnectionResetError("closed by the server")
        self._end(reason)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ConnectionError(f"the answer is not HTTP: {error}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"inference-header-content-length" and value.isdigit():
            self._head = int(value)

    def on_headers_complete(self) -> None:
        self._keeps = self._keep or self._parser.get_status_code() != 200

    def on_body(self, body: bytes) -> None:
        if self._keeps:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        if self._waiting is not None and not self._waiting.done():
            status = self._parser.get_status_code()
            self._waiting.set_result((status, b"".join(self._chunks), self._head))


def context(ca: str) -> ssl.SSLContext:
    """Return what checks a server's certificate.

    Args:
        ca: A file with certificates to trust; the system's without it.
    """
    return ssl.create_default_context(cafile=str(Path(ca)) if ca else None)
