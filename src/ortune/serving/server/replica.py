"""A process of a deployment on Ray Serve: models, batches and checks behind Ray's proxies."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc

from ortune.core.errors import OrtuneError
from ortune.core.hardware.cpus import set_usable_cpus, usable_cpus
from ortune.core.temporary_folder import open_temporary_folder
from ortune.serving.protocol import messages
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused
from ortune.serving.server.grpc.server import Service
from ortune.serving.server.http.app import App
from ortune.serving.server.http.exchange import Message, Receive, Send
from ortune.serving.server.listeners import Access
from ortune.serving.server.logs import make_spans, open_journal
from ortune.serving.server.run import make_repository
from ortune.serving.server.settings import Serve

NAME = "ortune"
"""Of the application on the cluster, and of the namespace of what belongs to it."""
FILES = "files"
"""Of the actor that knows the files of the models."""
_BODY_S = 60.0
"""Seconds for a body, which waits in the proxy where that is busy."""


@dataclass(frozen=True)
class ReplicaJob:
    """What a replica is to serve.

    Attributes:
        request: Its models are folders of `files`.
        files: Path below the replica's folder -> SHA-256.
    """

    request: Serve
    access: Access
    files: Mapping[str, str]
    cpus: int


class Replica:
    """One process of the deployment: the models, and both fronts of the server behind proxies.

    Ray calls a method of the service by its name; `messages.add_services` tells it the names.
    """

    async def __init__(self, job: ReplicaJob) -> None:  # type: ignore[misc]  # Ray awaits it
        import ray
        from ray import serve

        self._stack = ExitStack()
        holder = ray.get_actor(FILES, namespace=NAME)
        try:
            # Of this node's CPUs, each replica has some to itself, if they suffice.
            first = serve.get_replica_context().rank.local_rank * job.cpus
            cpus = usable_cpus()
            set_usable_cpus({cpus[at % len(cpus)] for at in range(first, first + job.cpus)})
            folder = self._stack.enter_context(open_temporary_folder())
            for name, digest in job.files.items():
                content = await (await holder.find.remote(name))
                if hashlib.sha256(content).hexdigest() != digest:
                    raise OrtuneError(f"'{name}' arrived changed", fix="serve it again")
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            names = [text.partition("=")[0] for text in job.request.names]
            key = job.request.require_signature
            request = replace(  # with paths of this node
                job.request,
                models=tuple(f"{name}={folder / name}" for name in names),
                require_signature=None if key is None else folder / key,
            )
            observer = make_spans(request.trace)
            self._journal = self._stack.enter_context(open_journal(request, observer))
            self._repository = make_repository(request, self._journal)
            await self._repository.start()
        except OrtuneError as error:
            await holder.report.remote(error)
            raise
        self._max_body = self._repository.limits.max_body
        self._service = Service(self._repository, job.access, self._journal)
        self._app = App(self._repository, job.access, self._journal, _BODY_S)

    def __serve_build_asgi_app__(self) -> Callable[..., Any]:
        """Return what Ray calls with HTTP requests."""

        async def answer(scope: Message, receive: Receive, send: Send) -> None:
            await self._answer_http(scope, receive, send)

        return answer  # a method would be taken for ASGI 2

    def list_names(self) -> list[str]:
        """Return the names of the models."""
        return list(dict.fromkeys(served.name for served in self._repository.list_models()))

    async def _answer_http(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._repository.drain(1.0)
            self._stack.close()
            await send({"type": "lifespan.shutdown.complete"})
            return

        async def send_bytes(message: Message) -> None:  # Ray pickles it, and no view of memory
            if "body" in message:
                message = {**message, "body": bytes(message["body"])}
            await send(message)

        await self._app(scope, receive, send_bytes)

    def find_handler(self, method: str, context: Any) -> Any:
        """Return gRPC's handler of a method, or what refuses the call."""
        metadata = tuple(context.invocation_metadata())
        return self._service.service(SimpleNamespace(method=method, invocation_metadata=metadata))

    async def answer_unary(self, method: str, message: bytes, context: Any) -> _Answer:
        """Answer a call of one message."""

        async def once() -> AsyncIterator[bytes]:
            yield message

        handler = self.find_handler(method, context)
        call = ProxiedCall(context, once(), self._max_body)
        try:
            return _Answer(await (handler.stream_unary or handler.stream_stream)(None, call))
        finally:
            call.end()

    async def answer_stream(
        self, method: str, stream: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[_Answer]:
        """Yield the answers of a stream."""
        call = ProxiedCall(context, stream, self._max_body)
        handler = self.find_handler(method, context)
        task = asyncio.create_task(call.run(handler.stream_stream))
        try:
            while (answer := await call.answers.get()) is not None:
                yield _Answer(answer)
            await task
        finally:
            call.end()
            task.cancel()


class _Answer(bytes):
    """A message that is serialized already; Ray asks it to be."""

    def SerializeToString(self) -> bytes:  # noqa: N802 (protobuf's own name)
        return bytes(self)


class ProxiedCall:
    """One call as gRPC's own context shows it to a method of the service.

    Of a stream, None is behind the last of its `answers`. When `ended`, nobody waits for them.
    """

    def __init__(self, context: Any, requests: AsyncIterator[bytes], max_body: int) -> None:
        self._context, self._requests, self._max_body = context, requests, max_body
        self._callbacks, self.ended = list[Callable[[Any], None]](), False
        self.answers: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self.peer, self.invocation_metadata = context.peer, context.invocation_metadata

    async def run(self, answer: Callable[[Any, Any], Awaitable[None]]) -> None:
        """Have a stream answered."""
        try:
            await answer(None, self)
        finally:
            if not self.ended:
                await self.answers.put(None)

    def time_remaining(self) -> None:
        """Return None: Ray's proxy keeps the deadline, and cancels the call when it is over."""

    async def read(self) -> bytes:
        message: bytes = await anext(self._requests, grpc.aio.EOF)
        if message is not grpc.aio.EOF and len(message) > self._max_body:
            raise RequestRefused(
                f"the message is larger than {self._max_body} bytes", RefusalKind.TOO_LARGE
            )
        return message

    async def write(self, answer: bytes) -> None:
        await self.answers.put(answer)

    async def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        self._context.set_code(code)
        self._context.set_details(text)
        raise RuntimeError(text)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        self.ended = True
        for callback in self._callbacks:
            callback(None)


def _add_method(path: str, is_stream: bool) -> None:
    """Give `Replica` a method of the service, of the name and the parameters that Ray wants."""

    async def unary(self: Replica, message: bytes, grpc_context: Any) -> _Answer:
        return await self.answer_unary(path, message, grpc_context)

    async def stream(
        self: Replica, requests: AsyncIterator[bytes], grpc_context: Any
    ) -> AsyncIterator[_Answer]:
        async for answer in self.answer_stream(path, requests, grpc_context):
            yield answer

    setattr(Replica, path.rpartition("/")[2], stream if is_stream else unary)


for _path, _is_stream in messages.list_paths().items():
    _add_method(_path, _is_stream)
