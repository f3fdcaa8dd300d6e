"""One call: its message received within bounds, its metadata, and how a refusal goes back."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from ortune.protocol.status import Refused, Status

RECEIVE_S = 60.0
"""Seconds for the one message of a call: who sends it slower holds no place for ever."""
_ENDED_S = 1.0
"""Seconds after which the task of a call that gRPC itself has ended is cancelled for certain."""
_GZIP, _ZLIB = b"\x1f\x8b", b"\x78"
"""How compressed messages begin. No message of the service begins so: 0x1f is no tag of protobuf,
and 0x78 is that of a field 15, which none has."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What a call says of itself beside its messages.

    Attributes:
        id: Its ``x-request-id``.
        trace: Its ``traceparent``, W3C Trace Context.
        ends_on_error: A stream ends with the first refusal, as its status (``triton_grpc_error``).
        seconds: Until its deadline; None without one.
    """

    id: str
    trace: str
    ends_on_error: bool
    seconds: float | None


def caller(context: Any) -> Caller:
    """Read a call's metadata and deadline."""
    held = dict(context.invocation_metadata() or ())
    return Caller(
        held.get("x-request-id", ""),
        held.get("traceparent", ""),
        held.get("triton_grpc_error") == "true",
        context.time_remaining(),
    )


async def received(context: Any) -> bytes:
    """Return the message of a call that has one.

    Raises:
        Refused: It is not there in time, or there is none.
        CancelledError: The call was given up, or its message is larger than the limit.
    """
    try:
        async with asyncio.timeout(RECEIVE_S):
            body: bytes = await context.read()
    except TimeoutError:
        raise Refused(
            f"the message did not arrive within {RECEIVE_S:g} s", Status.TIMED_OUT
        ) from None
    if body is grpc.aio.EOF:
        await asyncio.sleep(_ENDED_S)
        raise Refused("the call has no message")
    return body


async def inflated(body: bytes, most: int) -> bytes:
    """Return a message as it was before the client compressed it.

    gRPC itself inflates without a bound and looks at the length afterwards, so it is told to leave
    messages as they are. A thread inflates them: the loop goes on.

    Raises:
        Refused: It is damaged, or longer than `most` bytes.
    """
    if body[:2] != _GZIP and not (body[:1] == _ZLIB and int.from_bytes(body[:2]) % 31 == 0):
        return body
    return await asyncio.to_thread(_inflated, body, most)


def _inflated(body: bytes, most: int) -> bytes:
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, as its head says
    try:
        found = inflater.decompress(body, most + 1)
    except zlib.error as error:
        raise Refused(f"the compressed message is damaged: {error}") from None
    if len(found) > most:
        raise Refused(
            f"the message is larger than {most} bytes when it is inflated", Status.TOO_LARGE
        )
    if not inflater.eof:
        raise Refused("the compressed message is damaged: it ends too early")
    return found


async def refuse(context: Any, error: Refused) -> NoReturn:
    """End a call with an error's status and text, in one line: names in it are the client's."""
    await context.abort(grpc.StatusCode[error.status.grpc], " ".join(error.text.split()))
    raise AssertionError("a call that was aborted goes on")
