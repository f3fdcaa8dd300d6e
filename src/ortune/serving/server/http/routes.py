"""The routes of the protocol over HTTP, infer requests among them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from ortune.core.facts import TensorSpec
from ortune.serving.protocol import http_body, metadata
from ortune.serving.protocol.datatypes import datatype, dtype, from_raw
from ortune.serving.protocol.inference import InferRequest, InferResponse
from ortune.serving.protocol.status import Refused
from ortune.serving.server.http.exchange import (
    BINARY,
    Bodies,
    Exchange,
    HttpError,
    Reply,
    json_reply,
)
from ortune.serving.server.repository.counters import METRICS_TYPE, metrics_text
from ortune.serving.server.repository.repository import Repository
from ortune.serving.server.repository.served import Served

PICTURES = ("image/jpeg", "image/png")
_LENGTH = b"inference-header-content-length"
_JOINED = 1 << 16
"""Bytes of an answer that is copied into one piece: cheaper than a write for each of its parts."""

Answer: TypeAlias = Callable[[Exchange], Awaitable[Reply]]
Route: TypeAlias = tuple[tuple[str, ...], Answer]
"""Methods, and what answers."""
_GET, _POST, _BOTH = ("GET", "HEAD"), ("POST",), ("GET", "HEAD", "POST")


def _json(content: Callable[[Exchange], Any]) -> Answer:
    """Return what answers with JSON that is there at once."""

    async def answer(exchange: Exchange) -> Reply:
        return json_reply(content(exchange))

    return answer


async def _empty(exchange: Exchange) -> Reply:
    return Reply()


class Routes:
    """Finds what answers a request.

    Args:
        bodies: Reads theirs.
    """

    def __init__(self, repository: Repository, bodies: Bodies) -> None:
        self._repository, self._bodies = repository, bodies
        statistics = _GET, _json(self._statistics)
        trace = _BOTH, self._trace
        self._of_model: Mapping[tuple[str, ...], Route] = {
            ("infer",): (_POST, self._infer),
            (): (_GET, _json(lambda exchange: self._served(exchange).metadata())),
            ("ready",): (_GET, self._model_ready),
            ("config",): (_GET, _json(lambda exchange: self._served(exchange).config())),
            ("stats",): statistics,
            ("trace", "setting"): trace,
        }
        self._of_server: Mapping[tuple[str, ...], Route] = {
            ("v2", "health", "live"): (_GET, _empty),
            ("v2", "health", "ready"): (_GET, self._ready),
            ("v2",): (_GET, _json(lambda exchange: metadata.server_metadata())),
            ("v2", "models", "stats"): statistics,
            ("v2", "repository", "index"): (_POST, self._index),
            ("v2", "trace", "setting"): trace,
            ("v2", "logging"): (_BOTH, self._logging),
            ("metrics",): (_GET, self._metrics),
        }

    def find(self, exchange: Exchange) -> Route:
        """Return what answers; the exchange learns which model is meant.

        Raises:
            HttpError: Nothing does.
        """
        found: Route | None
        match exchange.path:
            case ["v2", "models", name, *rest] if rest or name != "stats":
                exchange.model = name
                if len(rest) > 1 and rest[0] == "versions":
                    exchange.version, rest = rest[1], rest[2:]
                found = self._of_model.get(tuple(rest))
            case ["v2", "repository", "models", name, "load" | "unload" as action]:
                exchange.model, exchange.told = name, True
                found = _POST, self._load if action == "load" else self._unload
            case ["v2", "systemsharedmemory" | "cudasharedmemory" as memory, *rest]:
                found = _shared_memory(memory.removesuffix("sharedmemory"), rest)
            case path:
                found = self._of_server.get(tuple(path))
        if found is None:
            raise HttpError(
                404, "Not Found: routes begin with /v2, as the Open Inference Protocol says"
            )
        return found

    # --- inference --------------------------------------------------------------------------

    async def _infer(self, exchange: Exchange) -> Reply:
        """Answer an infer request."""
        exchange.told = True
        served = self._repository.model(exchange.model, exchange.version)
        exchange.version = served.version
        length = exchange.headers.get(_LENGTH)
        head = None if length is None else http_body.header_length(length.decode("latin-1"))
        body = await self._bodies.read(exchange, head or 0)
        try:
            return await _answer(exchange, served, body, head)
        finally:
            self._bodies.release(len(body))

    # --- the server -------------------------------------------------------------------------

    async def _ready(self, exchange: Exchange) -> Reply:
        return Reply(200 if self._repository.ready else 400)

    async def _metrics(self, exchange: Exchange) -> Reply:
        text = metrics_text(
            (one.name, one.version, one.counters) for one in self._repository.models()
        )
        return Reply(200, (text.encode(),), ((b"content-type", METRICS_TYPE.encode()),))

    async def _trace(self, exchange: Exchange) -> Reply:
        if exchange.model:
            self._repository.model(exchange.model)
        metadata.check_unchanged(metadata.TRACE_SETTINGS, await self._body(exchange))
        return json_reply(metadata.TRACE_SETTINGS)

    async def _logging(self, exchange: Exchange) -> Reply:
        metadata.check_unchanged(metadata.LOG_SETTINGS, await self._body(exchange))
        return json_reply(metadata.LOG_SETTINGS)

    # --- models and the repository ----------------------------------------------------------

    def _served(self, exchange: Exchange) -> Served:
        return self._repository.model(exchange.model, exchange.version)

    async def _model_ready(self, exchange: Exchange) -> Reply:
        try:
            self._served(exchange)
        except Refused as error:
            raise HttpError(400, error.text) from None
        return Reply()

    def _statistics(self, exchange: Exchange) -> Mapping[str, Any]:
        return {"model_stats": self._repository.statistics(exchange.model, exchange.version)}

    async def _index(self, exchange: Exchange) -> Reply:
        body = await self._body(exchange)
        return json_reply(self._repository.index(body.get("ready") is True))

    async def _load(self, exchange: Exchange) -> Reply:
        parameters = (await self._body(exchange)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise Refused("'parameters' of a load request is no object")
        await self._repository.load(exchange.model, parameters)
        return Reply()

    async def _unload(self, exchange: Exchange) -> Reply:
        await self._body(exchange)
        await self._repository.unload(exchange.model)
        return Reply()

    async def _body(self, exchange: Exchange) -> dict[str, Any]:
        """Return the JSON of a request that may have none."""
        body = await self._bodies.read(exchange)
        self._bodies.release(len(body))
        try:
            content = orjson.loads(body) if body else {}
        except orjson.JSONDecodeError as error:
            raise Refused(f"failed to parse the request JSON buffer: {error}") from None
        if not isinstance(content, dict):
            raise Refused("the body of the request is no JSON object")
        return content


def _shared_memory(kind: str, rest: Sequence[str]) -> Route | None:
    """Return what answers for regions of shared memory: there are none."""
    match rest:
        case ["status"]:
            return _GET, _json(lambda exchange: [])
        case ["region", name, "status"]:
            return _GET, _json(lambda exchange: metadata.refuse_region(kind, name))
        case ["unregister"] | ["region", _, "unregister"]:
            return _POST, _empty
        case ["region", name, "register"]:
            return _POST, _json(lambda exchange: metadata.refuse_registration(name))
    return None


async def _answer(
    exchange: Exchange, served: Served, body: bytes | memoryview, head: int | None
) -> Reply:
    kind = exchange.header(b"content-type").partition(";")[0].strip().lower()
    if kind in PICTURES:
        exchange.rows = 1
        response = await served.infer_picture(bytes(body), exchange.id)
        exchange.queue_ms = response.queue_ns / 1e6
        return _reply(response, InferRequest({}))
    if head == 0:
        request = raw_request(body, served.inputs, batched=served.max_batch > 0)
    else:
        request = http_body.parse(body, head, served.name)
    exchange.id = request.id or exchange.id
    if served.max_batch:
        array = next(iter(request.inputs.values()), None)
        exchange.rows = len(array) if array is not None and array.ndim else 1
    response = await served.infer(request)
    exchange.queue_ms = response.queue_ns / 1e6
    return _reply(response, request)


def _reply(response: InferResponse, request: InferRequest) -> Reply:
    chunks, length = http_body.write(response, request)
    if sum(map(len, chunks)) <= _JOINED:
        chunks = [b"".join(chunks)]
    if length is None:
        return Reply(200, chunks)
    return Reply(200, chunks, (BINARY, (_LENGTH, str(length).encode())))


def raw_request(
    body: bytes | memoryview, inputs: Sequence[TensorSpec], *, batched: bool
) -> InferRequest:
    """Return the request whose body is the data of the model's only input, and nothing else.

    Its shape is the model's: a batch of one, and the dimension that is free follows from the
    length. The outputs are binary. (Binary tensor data extension, "raw binary request".)

    Raises:
        Refused: The model has several inputs or free dimensions, or the length does not fit.
    """
    shape = [
        1 if batched and axis == 0 else dim if isinstance(dim, int) else -1
        for axis, dim in enumerate(inputs[0].shape or ())
    ]
    if len(inputs) != 1 or shape.count(-1) > 1:
        raise Refused(
            "a raw binary request needs a model with one input, of one free dimension at most",
            fix="name the inputs in JSON, and its length in Inference-Header-Content-Length",
        )
    name, kind = inputs[0].name, datatype(inputs[0].dtype)
    if kind == "BYTES":  # the body is one element
        body, count = len(body).to_bytes(4, "little") + body, 1
    else:
        count = len(body) // dtype(kind).itemsize
    if -1 in shape:
        shape[shape.index(-1)] = count // math.prod(dim for dim in shape if dim > 0)
    array = from_raw(name, kind, shape, body)
    return InferRequest({name: array}, binary=True, datatypes={name: kind})
