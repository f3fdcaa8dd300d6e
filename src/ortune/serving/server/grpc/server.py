"""The gRPC server: its methods by name, its options, its port, its start and its end."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from ortune.core import regular_file
from ortune.core.errors import BadSettings
from ortune.serving.protocol import messages, metadata
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused, make_refusal
from ortune.serving.server.client_limits import CLIENT, PeerLimit, identify_client
from ortune.serving.server.grpc.connections import ConnectionWatch, split_peer
from ortune.serving.server.grpc.inference import (
    ENDING,
    Inference,
    inflate_message,
    log_refusal,
    receive_message,
)
from ortune.serving.server.http.exchange import SETTINGS_BYTES, make_size_refusal
from ortune.serving.server.listeners import Access, Certificate
from ortune.serving.server.logs import Journal
from ortune.serving.server.repository.repository import Repository
from ortune.serving.server.repository.served import Limits

Content: TypeAlias = Mapping[str, Any]
"""A message in the protocol's JSON form."""
_LOG_FIELDS = {str: "string_param", bool: "bool_param", int: "uint32_param"}
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"
"""A HealthCheckResponse: field 1, an enumeration."""
_OPEN = frozenset(
    {f"/{messages.SERVICE}/ServerLive", f"/{messages.SERVICE}/ServerReady", messages.HEALTH}
)
"""What whoever watches the server may ask without a token."""
_DENIED = RequestRefused(
    "the call has no token that this server takes",
    RefusalKind.UNAUTHENTICATED,
    "send metadata `authorization: Bearer TOKEN`",
)
_INT = 2**31 - 1
"""gRPC's options are C ints."""
_ALIVE_MS, _ALIVE_WAIT_MS = 60_000, 20_000
"""A peer that is silent is asked for a sign of life, and without one its calls are given up."""
_PING_MS = 5_000
"""Clients may ask so often themselves; gRPC's own limit of 5 minutes ends their connections."""
_HANDSHAKE_MS = 10_000
"""For TLS and the first frames: who connects and says nothing is cut."""
_STREAMS = 128
"""Calls of one connection at a time; further ones wait in their client. gRPC lets the calls of all
clients in one after the other, and drops some at random where a thousand wait for that. Its
"overload protection" counts calls that have ended, and refuses a connection's first hundreds."""
LAME_DUCK_S = 0.5
"""Seconds in which clients that go on asking learn that they should not."""
_BESIDE = 64
"""Calls beside those that a model's queue can hold: metadata and statistics; of one client about
the server's health."""


_MOST_WATCHING = 16 * _BESIDE
"""Calls about the server's health, of all clients; they have places of their own."""


def count_calls(limits: Limits) -> int:
    """Return how many calls may be open: twice what may wait, and some. A client has half."""
    return 2 * limits.max_queue + _BESIDE


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """All methods of the service, and gRPC's health check.

    Messages come and go as bytes: what cannot be read is refused with a text of ours, and large
    tensors are copied once. A call without a token is refused before its message is read. `watch`
    hears of every message; `inference` says whether all ends.
    """

    def __init__(
        self,
        repository: Repository,
        access: Access,
        journal: Journal,
        max_message: int | None = None,
    ) -> None:
        limits = repository.limits
        self.watch = ConnectionWatch(max(limits.max_held // 2, 2 * limits.max_body), journal)
        self.inference = Inference(repository, journal, self.watch, max_message or limits.max_body)
        self._repository, self._access, self._journal = repository, access, journal
        prefix = f"/{messages.SERVICE}"
        most = count_calls(limits)
        calls = PeerLimit(most, most // 2, "calls")
        watching = PeerLimit(_MOST_WATCHING, _BESIDE, "calls about its health")
        unary = grpc.stream_unary_rpc_method_handler
        infer_unary = self._limit_peers(calls, self.inference.infer_unary)
        infer_stream = self._limit_peers(calls, self.inference.infer_stream)
        self._handlers = {
            f"{prefix}/ModelInfer": unary(infer_unary),
            f"{prefix}/ModelStreamInfer": grpc.stream_stream_rpc_method_handler(infer_stream),
            messages.HEALTH: unary(self._limit_peers(watching, self._check_health)),
        }
        for name, operation in self._list_operations().items():
            path = f"{prefix}/{name}"
            limit = watching if path in _OPEN else calls
            self._handlers[path] = unary(
                self._limit_peers(limit, self._make_handler(name, operation))
            )
        self._deny = grpc.stream_stream_rpc_method_handler(self._refuse_unauthenticated)
        self._end = grpc.stream_stream_rpc_method_handler(self._refuse_ending)

    def service(self, handler_call_details: Any) -> Any:
        """Return what answers a call; None where there is no such method."""
        if self.inference.ending:
            return self._end
        method = handler_call_details.method
        handler = self._handlers.get(method)
        if handler is None or self._access.open or method in _OPEN:
            return handler
        headers = dict(handler_call_details.invocation_metadata or ())
        return handler if self._access.allows(headers.get("authorization")) else self._deny

    def _limit_peers(
        self, limit: PeerLimit, answer: Callable[[Any, Any], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """Return what answers as long as the client has not too many calls open."""

        async def answer_one(requests: Any, context: Any) -> Any:
            client = identify_client(split_peer(context.peer())[0])
            CLIENT.set(client)
            try:
                limit.open_one(client)
            except RequestRefused as error:
                await log_refusal(self._journal, context, error)
            try:
                return await answer(requests, context)
            finally:
                limit.close_one(client)

        return answer_one

    def _list_operations(self) -> dict[str, Callable[[Any], Content | Awaitable[Content]]]:
        """Return each method that asks no model: its request's message to its answer's content."""
        models = self._repository
        return {
            "ServerLive": lambda _: {"live": True},
            "ServerReady": lambda _: {"ready": models.ready},
            "ModelReady": self._model_ready,
            "ServerMetadata": lambda _: metadata.server_metadata(),
            "ModelMetadata": lambda request: models.find_model(
                request.name, request.version
            ).build_metadata(),
            "ModelConfig": lambda request: {
                "config": models.find_model(request.name, request.version).build_config()
            },
            "ModelStatistics": lambda request: {
                "model_stats": models.list_statistics(request.name, request.version)
            },
            "RepositoryIndex": lambda request: {
                "models": models.build_index(_check_repository(request).ready)
            },
            "RepositoryModelLoad": self._load_model,
            "RepositoryModelUnload": self._unload_model,
            "SystemSharedMemoryStatus": lambda request: _list_regions(request, "system"),
            "SystemSharedMemoryRegister": lambda request: metadata.refuse_registration(
                request.name
            ),
            "SystemSharedMemoryUnregister": lambda _: {},
            "CudaSharedMemoryStatus": lambda request: _list_regions(request, "CUDA"),
            "CudaSharedMemoryRegister": lambda request: metadata.refuse_registration(request.name),
            "CudaSharedMemoryUnregister": lambda _: {},
            "TraceSetting": self._read_trace_settings,
            "LogSettings": _read_log_settings,
        }

    def _make_handler(self, name: str, operation: Callable[[Any], Any]) -> Any:
        """Return what answers a method that asks no model."""
        method = messages.list_methods()[name]
        kind = messages.find_message_class(method.input_type.name)

        async def answer(requests: Any, context: Any) -> bytes:
            try:
                body = await receive_message(context, self.watch)
                if len(body) > SETTINGS_BYTES:
                    raise make_size_refusal(SETTINGS_BYTES)
                body = await inflate_message(body, SETTINGS_BYTES)
                try:
                    request = kind.FromString(body)
                except DecodeError:
                    raise RequestRefused(f"the message is no {kind.__name__}") from None
                content = operation(request)
                if isawaitable(content):
                    content = await content
                message = metadata.as_message(method.output_type.name, content)
                return bytes(message.SerializeToString())
            except Exception as raised:
                error = make_refusal(raised)
            return await log_refusal(self._journal, context, error)

        return answer

    def _model_ready(self, request: Any) -> Content:
        """Answer whether a model is ready; no, as Triton does, where there is no such model."""
        try:
            self._repository.find_model(request.name, request.version)
        except RequestRefused as error:
            if error.status is RefusalKind.INVALID:
                raise
            return {"ready": False}
        return {"ready": self._repository.ready}

    async def _load_model(self, request: Any) -> Content:
        parameters = {
            name: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
            for name, value in _check_repository(request).parameters.items()
        }
        await self._repository.load(request.model_name, parameters)
        return {}

    async def _unload_model(self, request: Any) -> Content:
        await self._repository.unload(_check_repository(request).model_name)
        return {}

    def _read_trace_settings(self, request: Any) -> Content:
        """Tell the settings of traces; those of this server are set where it is started."""
        if request.model_name:
            self._repository.find_model(request.model_name)
        settings = {
            name: value if isinstance(value, list) else [value]
            for name, value in metadata.TRACE_SETTINGS.items()
        }
        metadata.check_unchanged(
            settings, {name: list(value.value) or None for name, value in request.settings.items()}
        )
        return {"settings": {name: {"value": value} for name, value in settings.items()}}

    async def _check_health(self, requests: Any, context: Any) -> bytes:
        """Answer gRPC's health check, of the server whatever service it names."""
        try:
            await receive_message(context, self.watch)
        except RequestRefused as error:
            return await log_refusal(self._journal, context, error)
        return _SERVING if self._repository.ready else _NOT_SERVING

    async def _refuse_unauthenticated(self, requests: Any, context: Any) -> None:
        await log_refusal(self._journal, context, _DENIED)

    async def _refuse_ending(self, requests: Any, context: Any) -> None:
        await log_refusal(self._journal, context, ENDING)


def _check_repository(request: Any) -> Any:
    """Return a request about the repository, of which there is one alone."""
    if request.repository_name:
        raise RequestRefused(
            "'repository_name' specification is not supported", RefusalKind.UNSUPPORTED
        )
    return request


def _list_regions(request: Any, kind: str) -> Content:
    return metadata.refuse_region(kind, request.name) if request.name else {}


def _read_log_settings(request: Any) -> Content:
    """Tell the settings of the log; they are set where the server is started."""
    settings = {
        name: {_LOG_FIELDS[type(value)]: value} for name, value in metadata.LOG_SETTINGS.items()
    }
    changes = {}
    for name, value in request.settings.items():
        choice = value.WhichOneof("parameter_choice")
        changes[name] = {choice: getattr(value, choice)} if choice else None
    metadata.check_unchanged(settings, changes)
    return {"settings": settings}


class GrpcServer:
    """The service on one port, inside the event loop that will serve; without TLS if need be.

    It listens on `port` of its address, ``127.0.0.1:8001`` or ``[::1]:8001``, from the beginning
    on, any free one for 0, and answers from `start` on. `max_message`: bytes of a message at most,
    as it comes and inflated; None for the limit of all requests. gRPC refuses a larger one by its
    head. Raises BadSettings: the port is not to be had.
    """

    def __init__(
        self,
        repository: Repository,
        access: Access,
        journal: Journal,
        certificate: Certificate | None,
        address: str,
        max_message: int | None = None,
    ) -> None:
        max_message = max_message or repository.limits.max_body
        self._service = Service(repository, access, journal, max_message)
        self._inner = grpc.aio.server(
            handlers=(self._service,),
            options=[
                ("grpc.max_receive_message_length", min(max_message, _INT)),
                ("grpc.max_send_message_length", -1),
                ("grpc.per_message_decompression", 0),  # see inflated
                ("grpc.so_reuseport", 1),
                ("grpc.max_concurrent_streams", _STREAMS),
                ("grpc.http.overload_protection", 0),
                ("grpc.keepalive_time_ms", _ALIVE_MS),
                ("grpc.keepalive_timeout_ms", _ALIVE_WAIT_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS),
                ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ],
        )
        try:
            if certificate is None:
                self.port = self._inner.add_insecure_port(address)
            else:
                pair = (
                    regular_file.read_bytes(certificate.key),
                    regular_file.read_bytes(certificate.path),
                )
                credentials = grpc.ssl_server_credentials([pair])
                self.port = self._inner.add_secure_port(address, credentials)
        except RuntimeError:
            raise BadSettings(
                f"gRPC cannot listen on {address}: it was taken meanwhile, or is no address",
                fix="give another --grpc-port (0 takes any free one), or end what listens there",
            ) from None

    async def start(self) -> None:
        """Answer."""
        await self._inner.start()
        service = self._service
        watches = service.watch.run(self.port), service.inference.answers.run()
        self._watching = [asyncio.create_task(watch) for watch in watches]

    async def stop(self, seconds: float) -> None:
        """Take no more calls; return when those that run are answered, or time is up.

        Streams are answered as far as they were read, and then end. gRPC itself drops calls that
        arrive while it stops, as if they had been cancelled: before that, they are told.
        """
        self._service.inference.end_streams()
        await asyncio.sleep(LAME_DUCK_S)
        for watching in self._watching:
            watching.cancel()
        await self._inner.stop(max(0.0, seconds - LAME_DUCK_S))
