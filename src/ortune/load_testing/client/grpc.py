"""Requests over gRPC: calls of ready messages on several connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from ortune.load_testing.client.answers import KeptAnswers

METHOD = "/inference.GRPCInferenceService/ModelInfer"
CONNECTIONS = 16
"""Of one client process at most: of several servers behind one port each gets some of them."""
_LONGEST = 300
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)
"""The last one: without it all channels of a process share one connection."""


class GrpcSender:
    """Sends ready messages; the time-out is the call's deadline, which the server is told.

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
        tls: grpc.ChannelCredentials | None = None,
        token: str = "",
        answers: KeptAnswers | None = None,
    ) -> None:
        """Connect to nothing yet; made inside the event loop.

        Args:
            requests: Serialized ``ModelInferRequest``.
            answers: Takes every right answer, where they are compared.
        """
        self.examples: dict[str, str] = {}
        self._requests, self._timeout_s, self._answers = requests, timeout_s, answers
        self._metadata = (("authorization", f"Bearer {token}"),) if token else None
        self._channels = [_channel(f"{host}:{port}", tls) for _ in range(CONNECTIONS)]
        self._calls = [channel.unary_unary(METHOD) for channel in self._channels]
        self._used = 1

    async def prepare(self, callers: int) -> None:
        """Open connections as `Sender` says: one a caller, 16 at most."""
        self._used = min(callers, CONNECTIONS)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                for one in self._channels[: self._used]:
                    await one.channel_ready()

    async def send(self, ticket: int) -> str:
        """Send a request as `Sender` says."""
        sample = ticket % len(self._requests)
        call = self._calls[ticket % self._used]
        try:
            body = await call(
                self._requests[sample], timeout=self._timeout_s, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            word = str(error.code().name)
            self.examples.setdefault(word, str(error.details() or "")[:_LONGEST])
            return word
        if self._answers is not None:
            self._answers.add(sample, body, -1)
        return ""

    async def close(self) -> None:
        """Close the connections."""
        for one in self._channels:
            await one.close()


def _channel(address: str, tls: grpc.ChannelCredentials | None) -> Any:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    return grpc.aio.secure_channel(address, tls, options=OPTIONS)


def credentials(ca: str) -> grpc.ChannelCredentials:
    """Return what checks a server's certificate.

    Args:
        ca: A file with certificates to trust; the system's without it.
    """
    return grpc.ssl_channel_credentials(Path(ca).read_bytes() if ca else None)
