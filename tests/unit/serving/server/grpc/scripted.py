"""Models that do as they are told behind a real server, and calls to it as bytes."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import numpy as np

from ortune.serving.protocol import messages
from ortune.serving.protocol.datatypes import find_datatype
from ortune.serving.protocol.inference import DeclaredRequest, InferRequest, Output
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused
from ortune.serving.server.grpc.server import GrpcServer
from ortune.serving.server.listeners import Access, Certificate
from ortune.serving.server.logs import Journal, LoggedRequest
from ortune.serving.server.repository.memory_budget import MemoryBudget
from ortune.serving.server.repository.served import Limits, TimedResponse

T = TypeVar("T")


class Doubling:
    """Gives twice its inputs, or itself of text; can be held, and told to fail.

    Attributes:
        seen: Requests, in the order that they came.
        given_up: Requests that were cancelled.
        go: While it is not set, requests wait.
        fails: What the next request with this id gets.
    """

    version = "1"

    def __init__(self, name: str = "m") -> None:
        self.name = name
        self.seen: list[InferRequest] = []
        self.given_up: list[str] = []
        self.go = asyncio.Event()
        self.go.set()
        self.fails: dict[str, Exception] = {}
        self.turns: dict[str, asyncio.Event] = {}

    def build_metadata(self) -> dict[str, Any]:
        return {"name": self.name}

    build_config = build_statistics = build_metadata

    async def read(self, declared: DeclaredRequest) -> InferRequest:
        return declared.read()

    async def infer(self, request: InferRequest) -> TimedResponse:
        self.seen.append(request)
        try:
            await self.turns.get(request.id, self.go).wait()
        except asyncio.CancelledError:
            self.given_up.append(request.id)
            raise
        if request.id in self.fails:
            raise self.fails[request.id]
        outputs = [
            Output(f"{name}_out", find_datatype(array.dtype), _doubled(array))
            for name, array in request.inputs.items()
        ]
        return TimedResponse(
            self.name, self.version, request.id, outputs, rows=2, queue_ns=3_000_000
        )


class Models:
    """A repository of one model."""

    ready = True

    def __init__(self, model: Doubling | None = None, **limits: Any) -> None:
        self.only, self.limits = model or Doubling(), Limits(**limits)
        self.memory = MemoryBudget(self.limits.max_held)

    def find_model(self, name: str, version: str = "") -> Doubling:
        if name != self.only.name:
            raise RequestRefused(
                f"Request for unknown model: '{name}' is not found", RefusalKind.NOT_FOUND
            )
        return self.only

    def list_models(self) -> list[Doubling]:
        return [self.only]

    def list_statistics(self, name: str = "", version: str = "") -> list[dict[str, Any]]:
        return (
            [self.find_model(name).build_statistics()] if name else [self.only.build_statistics()]
        )

    def build_index(self, ready: bool = False) -> list[dict[str, str]]:
        return [{"name": self.only.name, "version": "1", "state": "READY"}]

    async def load(self, name: str, parameters: Any = None) -> None:
        raise RequestRefused(
            "explicit model load / unload is not allowed", RefusalKind.UNAVAILABLE
        )

    unload = load


class Seen:
    """What the journal was told."""

    def __init__(self) -> None:
        self.requests: list[LoggedRequest] = []

    def observe(self, answered: LoggedRequest) -> None:
        self.requests.append(answered)

    def close(self) -> None: ...


@asynccontextmanager
async def serving(
    repository: Any = None,
    *,
    access: Access | None = None,
    seen: Seen | None = None,
    certificate: Certificate | None = None,
) -> AsyncIterator[tuple[GrpcServer, str]]:
    """Serve on a free port; yield the server and its address."""
    journal = Journal(io.StringIO(), observer=seen)
    made = GrpcServer(
        repository or Models(), access or Access(), journal, certificate, "127.0.0.1:0"
    )
    await made.start()
    try:
        yield made, f"127.0.0.1:{made.port}"
    finally:
        await made.stop(0.2)
        journal.close()


@asynccontextmanager
async def connected(
    repository: Any = None, **how: Any
) -> AsyncIterator[tuple[GrpcServer, grpc.aio.Channel]]:
    """As `serving`, with a channel to it in the place of its address."""
    async with (
        serving(repository, **how) as (made, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield made, channel


async def settled(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


def path(method: str) -> str:
    """Return a method's name on the wire."""
    return f"/{messages.SERVICE}/{method}"


def body(values: Any = (1, 2), *, id: str = "", model: str = "m", **inputs: Any) -> bytes:
    """Return a serialized request for an input x of float32, or for those that are given."""
    request = messages.find_message_class("ModelInferRequest")(model_name=model, id=id)
    for name, array in (inputs or {"x": np.array(values, np.float32)}).items():
        request.inputs.add(name=name, datatype=find_datatype(array.dtype), shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())


def answer(given: bytes) -> Any:
    """Read a ModelInferResponse."""
    return messages.find_message_class("ModelInferResponse").FromString(given)


async def refusal(call: Awaitable[Any]) -> tuple[str, str]:
    """Return the status and the text that a call gets."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    raise AssertionError("the call was answered")


def _doubled(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array if array.dtype.kind in "Ob" else array + array
