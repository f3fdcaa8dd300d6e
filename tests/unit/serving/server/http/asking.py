"""An application over real models, and requests to it without a socket."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tests.unit.bundle.engine.scripted import DOUBLING, Doubling

from ortune.backends.cpu import Cpu
from ortune.bundle.engine.call import Call, read_pictures
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.instances import Instances
from ortune.bundle.engine.load import load_engine
from ortune.serving.server.http.app import App
from ortune.serving.server.listeners import Access
from ortune.serving.server.logs import Journal
from ortune.serving.server.repository.repository import Repository
from ortune.serving.server.repository.served import Limits
from ortune.serving.server.repository.sources import find_sources

MODELS = {
    "toy": """
        toy (float[N,4] x) => (float[N,4] doubled, float[N] summed) {
          two = Constant<value = float {2}>()
          axis = Constant<value = int64[1] {1}>()
          doubled = Mul(x, two)
          summed = ReduceSum<keepdims = 0>(x, axis)
        }""",
    "two": "two (float[N,2] a, int64[N,3] b) => (float[N,2] p, int64[N,3] q) {"
    " p = Neg(a) q = Abs(b) }",
    "words": "words (string[n] word) => (string[n] same) { same = Identity(word) }",
    "eye": "eye (float[N,3,4,6] image) => (float[N,3] mean) {"
    " mean = ReduceMean<axes = [2, 3], keepdims = 0>(image) }",
}
"""Name -> model, in ONNX' text."""
PREPROCESS = b"resize = [4, 6]\n"
"""How pictures become the input of ``eye``."""
GATE = "gate"
"""A model that can be held: its input is ``x`` [N, T], its output ``y``."""

Given = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of a refusal, which is all there is in it."""
        assert self.headers["content-type"] == "application/json"
        assert list(self.json) == ["error"]
        return self.json["error"]

    def output(self, name: str) -> Given:
        return next(one for one in self.json["outputs"] if one["name"] == name)


@dataclass
class Client:
    """Asks an application."""

    app: App
    repository: Repository
    session: Doubling
    log: io.StringIO
    tasks: list[asyncio.Task[Answer]] = field(default_factory=list)

    async def __call__(
        self,
        method: str,
        path: str,
        body: bytes | Given | Sequence[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        *,
        length: int | None = None,
        gone: asyncio.Event | None = None,
        hangs: bool = False,
    ) -> Answer:
        """Ask once.

        Args:
            body: Several parts are sent chunked, without a length.
            length: What the client says that the body has.
            gone: The client goes away when it is set.
            hangs: The client sends no last part.
        """
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        parts = [body] if isinstance(body, bytes) else list(body)
        given = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        if not isinstance(body, bytes):
            given.append((b"transfer-encoding", b"chunked"))
        elif body or length is not None:
            told = len(body) if length is None else length
            given.append((b"content-length", str(told).encode()))
        left = [
            {"type": "http.request", "body": part, "more_body": hangs or at < len(parts) - 1}
            for at, part in enumerate(parts)
        ]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if left:
                return left.pop(0)
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "raw_path": path.encode(), "headers": given}
        await self.app(scope, receive, send)
        return _answer(sent)

    def begin(self, *args: Any, **options: Any) -> asyncio.Task[Answer]:
        """Ask beside others."""
        return asyncio.ensure_future(self(*args, **options))

    async def infer(
        self, model: str, inputs: Mapping[str, np.ndarray], binary: bool = False, **said: Any
    ) -> Answer:
        """Post an infer request."""
        body, headers = request(inputs, binary, **said)
        return await self("POST", f"/v2/models/{model}/infer", body, headers)


def request(
    inputs: Mapping[str, np.ndarray], binary: bool = False, **said: Any
) -> tuple[bytes, dict[str, str]]:
    """Return the body of an infer request, and its headers."""
    kinds = {"float32": "FP32", "int64": "INT64", "object": "BYTES"}
    told: list[Given] = []
    raw = b""
    for name, array in inputs.items():
        one: Given = {"name": name, "shape": array.shape, "datatype": kinds[array.dtype.name]}
        if binary:
            one["parameters"] = {"binary_data_size": array.nbytes}
            raw += array.tobytes()
        else:
            one["data"] = array.ravel().tolist()
        told.append(one)
    head = json.dumps({"inputs": told, **said}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))} if binary else {}
    return head + raw, headers


@asynccontextmanager
async def client(
    folder: Path, *models: str, tokens: Iterable[str] = (), explicit: bool = False, **limits: Any
) -> AsyncIterator[Client]:
    """Serve some of `MODELS`, or `GATE`; the toy where none is named."""
    session, log = Doubling(), io.StringIO()
    paths = [_written(folder, name) for name in models or ("toy",)]

    def opened(path: Path) -> Engine:
        if path.stem == GATE:
            call = Call(Instances(GATE, [session]), DOUBLING)
            return Engine({"": call}, Cpu(), ExitStack())
        engine = load_engine(path)
        if path.stem == "eye":
            found = read_pictures(PREPROCESS, "eye", {"": engine.signature})
            engine[""].pictures = found[""]
        return engine

    repository = Repository(
        find_sources(paths), opened, explicit=explicit, limits=Limits(**limits)
    )
    await repository.start()
    journal = Journal(log, log_successes=True)
    try:
        yield Client(App(repository, Access(tokens), journal), repository, session, log)
    finally:
        session.go.set()
        await repository.drain(10)
        journal.close()


def _written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.onnx"
    if name == GATE:
        path.write_bytes(b"held")
    else:
        head = '<ir_version: 8, opset_import: ["": 17]>\n'
        onnx.save(onnx.parser.parse_model(head + MODELS[name]), path)
    return path


def _answer(sent: list[dict[str, Any]]) -> Answer:
    if not sent:
        return Answer(0, {}, b"")
    start, *rest = sent
    assert [one["type"] for one in rest] == ["http.response.body"] * len(rest)
    assert [one["more_body"] for one in rest] == [True] * (len(rest) - 1) + [False]
    headers = {key.decode(): value.decode() for key, value in start["headers"]}
    body = b"".join(bytes(one["body"]) for one in rest)
    assert int(headers["content-length"]) == len(body)
    assert all(key == key.lower() for key in headers)
    return Answer(start["status"], headers, body)
