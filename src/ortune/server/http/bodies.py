"""Bodies of requests: read and inflated under one cap."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortune.protocol.status import Refused, Status
from ortune.server.http.exchange import Exchange, HttpError

_ENCODINGS = ("gzip", "deflate")
_STEP = 1 << 18
"""Bytes that are inflated before others have their turn: less than 1 ms."""
_ALIGNED = 8
"""Bytes of the protocol's widest numbers."""


class Disconnected(Exception):
    """The client went away before its request was whole."""


@dataclass(eq=False, slots=True)
class _Body:
    """What came of one body, inflated."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0


class Bodies:
    """Reads bodies: none larger than the cap, and not everybody's largest at once.

    Args:
        cap: Bytes of a body at most, before and after it is inflated.
        most: Bytes of all that are held; one alone may have more.
    """

    def __init__(self, cap: int, most: int) -> None:
        self._cap, self._most = cap, max(cap, most)
        self._held = 0

    async def read(self, exchange: Exchange, head: int = 0) -> bytes | memoryview:
        """Return the body of a request, inflated; it counts as held until it is released.

        Args:
            head: Bytes behind which its tensors begin: a body that comes in several parts is laid
                so that their numbers can be read in place.

        Raises:
            Refused: It is too large, or cannot be inflated, or too much is held.
            HttpError: Its encoding is not known.
            Disconnected: The client went away.
        """
        inflater = _inflater(exchange.header(b"content-encoding").lower())
        self._demand_fits(int(exchange.header(b"content-length") or 0))
        body = _Body()
        try:
            await self._receive(exchange, body, inflater)
            if inflater is not None and not inflater.eof:
                raise _not_inflated("it ends too early")
        except BaseException:
            self._held -= body.size
            raise
        return body.parts[0] if len(body.parts) == 1 else _joined(body.parts, body.size, head)

    def release(self, size: int) -> None:
        """Hold so many bytes less."""
        self._held -= size

    async def _receive(self, exchange: Exchange, body: _Body, inflater: Any) -> None:
        while exchange.pending:
            message = await exchange.receive()
            if message["type"] != "http.request":
                raise Disconnected
            exchange.pending = message.get("more_body", False)
            part: bytes = message.get("body", b"")
            exchange.received += len(part)
            self._demand_fits(exchange.received)
            if inflater is None:
                self._keep(body, part)
            else:
                await self._inflate(body, inflater, part)

    async def _inflate(self, body: _Body, inflater: Any, part: bytes) -> None:
        """Inflate in steps, so that nothing is made of a bomb but its first bytes."""
        while True:
            try:
                made = inflater.decompress(part, _STEP)
            except zlib.error as error:
                raise _not_inflated(str(error)) from None
            self._keep(body, made)
            if inflater.unused_data:
                raise _not_inflated("something is behind its end")
            if len(made) < _STEP:
                return
            part = inflater.unconsumed_tail
            await asyncio.sleep(0)

    def _keep(self, body: _Body, part: bytes) -> None:
        body.parts.append(part)
        body.size += len(part)
        self._held += len(part)
        self._demand_fits(body.size)
        if self._held > self._most:
            raise Refused("too many large requests at once", Status.UNAVAILABLE)

    def _demand_fits(self, size: int) -> None:
        if size > self._cap:
            raise Refused(
                f"the request is larger than {self._cap} bytes",
                Status.TOO_LARGE,
                "send less at once, or serve with a larger --max-body",
            )


def _inflater(encoding: str) -> Any:
    """Return what inflates a body, None where it is plain."""
    if encoding in _ENCODINGS:
        return zlib.decompressobj(zlib.MAX_WBITS | 32)  # tells gzip from zlib by the first bytes
    if encoding not in ("", "identity"):
        accepted = (b"accept-encoding", ", ".join(_ENCODINGS).encode())
        raise HttpError(415, "Unsupported compression type", accepted)
    return None


def _not_inflated(why: str) -> Refused:
    return Refused(f"the body cannot be inflated: {why}")


def _joined(parts: Sequence[bytes], size: int, head: int) -> memoryview:
    """Return the parts in one piece, in which byte `head` is aligned."""
    room = np.empty(size + _ALIGNED, np.uint8)
    start = -(room.ctypes.data + head) % _ALIGNED
    whole = room.data[start : start + size]
    at = 0
    for part in parts:
        whole[at : at + len(part)] = part
        at += len(part)
    return whole
