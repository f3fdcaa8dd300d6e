"""The gRPC server: its options, its port, its start and its end."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc

from ortune.core.errors import BadSettings
from ortune.server.access import Access
from ortune.server.grpc.service import Service
from ortune.server.journal import Journal
from ortune.server.repository.repository import Repository
from ortune.server.repository.served import Limits
from ortune.server.tls import Certificate

_INT = 2**31 - 1
"""gRPC's options are C ints."""
_ALIVE_MS, _ALIVE_WAIT_MS = 60_000, 20_000
"""A peer that is silent is asked for a sign of life, and without one its calls are given up."""
_PING_MS = 5_000
"""Clients may ask so often themselves; gRPC's own limit of 5 minutes ends their connections."""
_HANDSHAKE_MS = 10_000
"""For TLS and the first frames: who connects and says nothing is cut."""
LAME_DUCK_S = 0.5
"""Seconds in which clients that go on asking learn that they should not."""
_BESIDE = 64
"""Calls beside those that a model's queue can hold: metadata, health, statistics."""


class GrpcServer:
    """The service on one port.

    Attributes:
        port: It listens there from the beginning on, and answers from `start` on.
    """

    def __init__(self, inner: Any, service: Service, port: int) -> None:
        self._inner, self._service, self.port = inner, service, port

    async def start(self) -> None:
        """Answer."""
        await self._inner.start()

    async def stop(self, seconds: float) -> None:
        """Take no more calls; return when those that run are answered, or time is up.

        Streams are answered as far as they were read, and then end. gRPC itself drops calls that
        arrive while it stops, as if they had been cancelled: before that, they are told.
        """
        self._service.inference.end_streams()
        await asyncio.sleep(LAME_DUCK_S)
        await self._inner.stop(seconds)


def server(
    repository: Repository,
    access: Access,
    journal: Journal,
    limits: Limits,
    credentials: grpc.ServerCredentials | None,
    address: str,
    *,
    shared: bool = True,
) -> GrpcServer:
    """Take a port, inside the event loop that will serve.

    Args:
        credentials: For TLS, see `credentials`; None for clear text.
        address: ``127.0.0.1:8001`` or ``[::1]:8001``; port 0 takes any free one.
        shared: Other processes may listen on the same port (SO_REUSEPORT), and share its
            connections. Else whoever listens there already is in the way.

    Raises:
        BadSettings: The port is not to be had.
    """
    _demand_free(address, shared)
    service = Service(repository, access, journal, limits)
    inner = grpc.aio.server(
        handlers=(service,),
        options=_options(limits, shared),
        maximum_concurrent_rpcs=_calls(limits),
    )
    return GrpcServer(inner, service, _listen(inner, address, credentials))


def credentials(given: Certificate | None) -> grpc.ServerCredentials | None:
    """Return what `server` needs for TLS; None for clear text."""
    if given is None:
        return None
    return grpc.ssl_server_credentials([(given.key.read_bytes(), given.path.read_bytes())])


def _options(limits: Limits, shared: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", min(limits.max_body, _INT)),
        ("grpc.max_send_message_length", -1),
        ("grpc.per_message_decompression", 0),  # see calls.inflated
        ("grpc.so_reuseport", int(shared)),
        ("grpc.max_concurrent_streams", min(_calls(limits), _INT)),
        ("grpc.keepalive_time_ms", _ALIVE_MS),
        ("grpc.keepalive_timeout_ms", _ALIVE_WAIT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ]


def _calls(limits: Limits) -> int:
    """Return how many calls may be open at the same time: twice what may wait, and some."""
    return 2 * limits.max_queue + _BESIDE


def _listen(server: Any, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        if credentials is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, credentials))
    except RuntimeError:
        raise _not_listening(address, "it was taken meanwhile") from None


def _demand_free(address: str, shared: bool) -> None:
    """Take an address for a moment: gRPC keeps to itself, or to stderr, why it cannot.

    Raises:
        BadSettings: It is not to be had.
    """
    host, _, port = address.rpartition(":")
    try:
        family, kind, _, _, where = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared and hasattr(socket, "SO_REUSEPORT"):
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            tried.bind(where)
    except OSError as error:
        raise _not_listening(address, (error.strerror or str(error)).lower()) from None
    except ValueError:
        raise _not_listening(address, "it is no address") from None


def _not_listening(address: str, why: str) -> BadSettings:
    return BadSettings(
        f"gRPC cannot listen on {address}: {why}",
        fix="give another --grpc-port (0 takes any free one), or end what listens there",
    )
