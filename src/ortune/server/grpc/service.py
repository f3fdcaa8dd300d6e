"""The service by the names of its methods: who may call which, and what a call's end is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from ortune.protocol import messages, metadata
from ortune.protocol.status import Refused, Status, refused
from ortune.server.access import Access
from ortune.server.grpc.calls import caller, inflated, received, refuse
from ortune.server.grpc.inference import ENDING, Inference
from ortune.server.grpc.methods import Answering, ServerMethods
from ortune.server.journal import Journal
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
                content = await answering(_read(asked, body))
                return bytes(metadata.as_message(told, content).SerializeToString())
            except Exception as raised:
                error = refused(raised)
            return await self._refuse(context, error)

        return answer

    async def _health(self, requests: Any, context: Any) -> bytes:
        """Answer gRPC's health check, of the server whatever service it names."""
        try:
            await received(context)
        except Refused as error:
            return await self._refuse(context, error)
        return _SERVING if self._repository.ready else _NOT_SERVING

    async def _denied(self, requests: Any, context: Any) -> None:
        await self._refuse(context, _DENIED)

    async def _ended(self, requests: Any, context: Any) -> None:
        await self._refuse(context, ENDING)

    async def _refuse(self, context: Any, error: Refused) -> NoReturn:
        self._journal.request(
            "grpc", "", "", caller(context).id, error.status.grpc, 0.0, error=error.text
        )
        await refuse(context, error)


def _read(asked: type[Any], body: bytes) -> Any:
    try:
        return asked.FromString(body)
    except DecodeError:
        raise Refused(f"the message is no {asked.__name__}") from None
