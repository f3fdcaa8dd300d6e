"""Toy models behind a repository: each says by its answers which file it is from."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from tests.unit.bundle.engine.scripted import DOUBLING, Doubling, row

from ortune.backends.cpu import Cpu
from ortune.bundle.engine.call import Call
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.instances import Instances, Serving
from ortune.bundle.engine.load import load_engine
from ortune.serving.protocol.inference import InferRequest, InferResponse, OutputRequest
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused
from ortune.serving.server.repository.repository import Repository
from ortune.serving.server.repository.served import Limits, ServedModel
from ortune.serving.server.repository.sources import ModelSource

T = TypeVar("T")
TIMES = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x) => (float[N,4] y, int64[N] most) <float factor = {%s}> {
  y = Mul(x, factor)
  most = ArgMax<axis = 1, keepdims = 0>(y)
}
"""
TEXTS = """<ir_version: 8, opset_import: ["": 17]>
g (string[N] said) => (string[N] heard) { heard = Identity(said) }
"""


def write(path: Path, factor: float = 2, text: str = TIMES) -> Path:
    """Write a model that multiplies; put into its place at once, as one should."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".new")
    onnx.save(onnx.parser.parse_model(text % factor if "%" in text else text), made)
    made.replace(path)
    return path


def opened(path: Path) -> Engine:
    return load_engine(path, on="cpu(threads=1)")


def one(path: Path, **how: Any) -> Repository:
    """A repository of one file, called toy."""
    return Repository([ModelSource("toy", path)], opened, **how)


async def started(path: Path, **how: Any) -> Repository:
    """Such a repository, with its models loaded."""
    repository = one(path, **how)
    await repository.start()
    return repository


def asks(value: float = 1, rows: int = 1, *outputs: str, **more: Any) -> InferRequest:
    """Return a request whose values tell it from others."""
    x = np.full((rows, 4), value, np.float32) + np.arange(4, dtype=np.float32)
    return InferRequest({"x": x}, tuple(OutputRequest(name) for name in outputs), **more)


def output(response: InferResponse, name: str = "y") -> np.ndarray:
    return next(found.array for found in response.outputs if found.name == name)


def scripted(session: Doubling, **how: Any) -> Engine:
    """An engine around a session that can be held."""
    call = Call(Instances("toy", [session]), DOUBLING, Serving(**how))
    stack = ExitStack()
    stack.callback(call.close)
    return Engine({"": call}, Cpu(), stack)


async def holding(
    session: Doubling, folder: Path, limits: Limits | None = None, **how: Any
) -> Any:
    """Return a started repository around it, and its model."""
    path = folder / "toy.onnx"
    path.write_bytes(b"any")
    repository = Repository(
        [ModelSource("toy", path)], lambda path: scripted(session, **how), limits=limits
    )
    await repository.start()
    model = repository.find_model("toy")
    model.call.warm_up(**row(1))  # it is known from now on that requests may be joined
    session.seen.clear()
    session.entered.clear()
    return repository, model


async def refusal(work: Coroutine[Any, Any, Any]) -> tuple[RefusalKind, str]:
    """Await what is refused; return as what, and with which words."""
    try:
        await work
    except RequestRefused as error:
        return error.status, error.text
    raise AssertionError("it was not refused")


async def settled(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


async def behind(served: ServedModel, session: Doubling) -> asyncio.Task[Any]:
    """Occupy the only worker: what comes now waits."""
    session.go.clear()
    first = asyncio.create_task(served.infer(asks(1000, timeout_us=60_000_000)))
    await settled(session.entered.is_set)
    return first
