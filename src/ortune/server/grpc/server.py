"""The gRPC server: its methods by name, its options, its port, its start and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from inspect import isawaitable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ortune.core.errors import BadSettings
from ortune.protocol import messages, metadata
from ortune.protocol.status import Refused, Status, refused
from ortune.server.grpc.inference import ENDING, Inference, inflated, log_refusal, received
from ortune.server.grpc.methods import Answering, ServerMethods
from ortune.server.listeners import Access, Certificate
from ortune.server.logs import Journal
from ortune.server.repository.repository import Repository
from ortune.server.repository.served import Limits

_HEALTH = "/grpc.health.v1.Health/Check"
"""gRPC's own question, which Kubernetes asks."""
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
"""A HealthCheckResponse: field 1, an enumeration."""
_OPEN = frozenset({f"/{messages.SERVICE}/ServerLive", f"/{messages.SERVICE}/ServerReady", _HEALTH})
"""What whoever watches the server may ask without a token."""
_DENIED = Refused(
    "the call has no token that this server takes",
    Status.UNAUTHENTICATED,
    "send metadata `authorization: Bearer TOKEN`",
)


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """All methods of the service, and gRPC's health check.

    Messages come and go as bytes: what cannot be read is refused with a text of ours, and large
    tensors are copied once. A call without a token is refused before its message is read.

    Attributes:
        inference: What answers the two methods that ask a model, and says whether all ends.
    """

    def __init__(
        self, repository: Repository, access: Access, journal: Journal, limits: Limits
    ) -> None:
        self.inference = Inference(repository, journal, limits)
        self._repository, self._access = repository, access
        self._journal, self._limits = journal, limits
        self._handlers = self._made(ServerMethods(repository).by_name())
        self._deny = grpc.stream_stream_rpc_method_handler(self._denied)
        self._end = grpc.stream_stream_rpc_method_handler(self._ended)

    def service(self, handler_call_details: Any) -> Any:
        """Return what answers a call; None where there is no such method."""
        if self.inference.ending:
            return self._end
        method = handler_call_details.method
        found = self._handlers.get(method)
        if found is None or self._access.open or method in _OPEN:
            return found
        held = dict(handler_call_details.invocation_metadata or ())
        return found if self._access.allows(held.get("authorization")) else self._deny

    def _made(self, answers: Mapping[str, Answering]) -> dict[str, Any]:
        """Return path -> handler."""
        made = {
            "ModelInfer": grpc.stream_unary_rpc_method_handler(self.inference.unary),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self.inference.stream),
        }
        for name, answering in answers.items():
            made[name] = grpc.stream_unary_rpc_method_handler(self._plain(name, answering))
        every = {f"/{messages.SERVICE}/{name}": made[name] for name in messages.methods()}
        return {**every, _HEALTH: grpc.stream_unary_rpc_method_handler(self._health)}

    def _plain(self, name: str, answering: Answering) -> Any:
        """Return what answers a method that asks no model."""
        method = messages.methods()[name]
        asked = messages.message(method.input_type.name)
        told = method.output_type.name

        async def answer(requests: Any, context: Any) -> bytes:
            try:
                body = await inflated(await received(context), self._limits.max_body)
                content = answering(_read(asked, body))
                if isawaitable(content):
                    content = await content
                return bytes(metadata.as_message(told, content).SerializeToString())
            except Exception as raised:
                error = refused(raised)
            return await log_refusal(self._journal, context, error)

        return answer

    async def _health(self, requests: Any, context: Any) -> bytes:
        """Answer gRPC's health check, of the server whatever service it names."""
        try:
            await received(context)
        except Refused as error:
            return await log_refusal(self._journal, context, error)
        return _SERVING if self._repository.ready else _NOT_SERVING

    async def _denied(self, requests: Any, context: Any) -> None:
        await log_refusal(self._journal, context, _DENIED)

    async def _ended(self, requests: Any, context: Any) -> None:
        await log_refusal(self._journal, context, ENDING)


def _read(asked: type[Any], body: bytes) -> Any:
    try:
        return asked.FromString(body)
    except DecodeError:
        raise Refused(f"the message is no {asked.__name__}") from None


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
) -> GrpcServer:
    """Take a port, inside the event loop that will serve.

    Args:
        credentials: For TLS, see `credentials`; None for clear text.
        address: ``127.0.0.1:8001`` or ``[::1]:8001``; port 0 takes any free one.

    Raises:
        BadSettings: The port is not to be had.
    """
    service = Service(repository, access, journal, limits)
    inner = grpc.aio.server(
        handlers=(service,),
        options=_options(limits),
        maximum_concurrent_rpcs=_calls(limits),
    )
    try:
        if credentials is None:
            port = inner.add_insecure_port(address)
        else:
            port = inner.add_secure_port(address, credentials)
    except RuntimeError:
        raise BadSettings(
            f"gRPC cannot listen on {address}: it was taken meanwhile, or is no address",
            fix="give another --grpc-port (0 takes any free one), or end what listens there",
        ) from None
    return GrpcServer(inner, service, port)


def credentials(given: Certificate | None) -> grpc.ServerCredentials | None:
    """Return what `server` needs for TLS; None for clear text."""
    if given is None:
        return None
    return grpc.ssl_server_credentials([(given.key.read_bytes(), given.path.read_bytes())])


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", min(limits.max_body, _INT)),
        ("grpc.max_send_message_length", -1),
        ("grpc.per_message_decompression", 0),  # see calls.inflated
        ("grpc.so_reuseport", 1),
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
