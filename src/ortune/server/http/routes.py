"""The routes of the protocol over HTTP, infer requests among them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from ortune.core.facts import TensorSpec
from ortune.protocol import http_body
from ortune.protocol.datatypes import datatype, dtype, from_raw
from ortune.protocol.inference import InferRequest, InferResponse
from ortune.protocol.metadata import (
    LOG_SETTINGS,
    TRACE_SETTINGS,
    check_unchanged,
    server_metadata,
)
from ortune.protocol.status import Refused, Status
from ortune.server.http.exchange import BINARY, Bodies, Exchange, HttpError, Reply, json_reply
from ortune.server.repository.counters import METRICS_TYPE, metrics_text
from ortune.server.repository.repository import Repository
from ortune.server.repository.served import Served

PICTURES = ("image/jpeg", "image/png")
_LENGTH = b"inference-header-content-length"
_JOINED = 1 << 16
"""Bytes of an answer that is copied into one piece: cheaper than a write for each of its parts."""


class HttpInference:
    """Answers infer requests.

    Args:
        bodies: Reads theirs.
    """

    def __init__(self, repository: Repository, bodies: Bodies) -> None:
        self._repository, self._bodies = repository, bodies

    async def infer(self, exchange: Exchange) -> Reply:
        """Answer one.

        Raises:
            Refused: It is wrong, does not fit the model, or cannot be answered now.
            HttpError: Its body cannot be read.
            Disconnected: The client went away.
        """
        exchange.told = True
        served = self._repository.model(exchange.model, exchange.version)
        exchange.version = served.version
        given = exchange.headers.get(_LENGTH)
        head = None if given is None else http_body.header_length(given.decode("latin-1"))
        body = await self._bodies.read(exchange, head or 0)
        try:
            return await _answer(exchange, served, body, head)
        finally:
            self._bodies.release(len(body))


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
        asked = raw_request(body, served.inputs, batched=served.max_batch > 0)
    else:
        asked = http_body.parse(body, head, served.name)
    exchange.id = asked.id or exchange.id
    if served.max_batch:
        exchange.rows = _rows(asked)
    response = await served.infer(asked)
    exchange.queue_ms = response.queue_ns / 1e6
    return _reply(response, asked)


def _reply(response: InferResponse, asked: InferRequest) -> Reply:
    chunks, length = http_body.write(response, asked)
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
        known = math.prod(dim for dim in shape if dim > 0)
        shape[shape.index(-1)] = count // known
    array = from_raw(name, kind, shape, body)
    return InferRequest({name: array}, binary=True, datatypes={name: kind})


def _rows(asked: InferRequest) -> int:
    array = next(iter(asked.inputs.values()), None)
    return len(array) if array is not None and array.ndim else 1


Route: TypeAlias = tuple[tuple[str, ...], Callable[[Exchange], Awaitable[Reply]]]
"""Methods, and what answers."""

_GET, _POST, _BOTH = ("GET", "HEAD"), ("POST",), ("GET", "HEAD", "POST")


class Routes:
    """Finds what answers a request.

    Args:
        bodies: Reads theirs.
    """

    def __init__(self, repository: Repository, bodies: Bodies) -> None:
        self._repository, self._bodies = repository, bodies
        self._infer: Route = _POST, HttpInference(repository, bodies).infer

    def find(self, exchange: Exchange) -> Route:
        """Return what answers; the exchange learns which model is meant.

        Raises:
            HttpError: Nothing does.
        """
        match exchange.path:
            case ["v2", "models", name, *rest] if rest or name != "stats":
                return self._of_model(exchange, name, rest)
            case ["v2", "health", "live"]:
                return _GET, _live
            case ["v2", "health", "ready"]:
                return _GET, self._ready
            case ["v2"]:
                return _GET, _server
            case ["v2", "models", "stats"]:
                return _GET, self._statistics
            case ["v2", "repository", "index"]:
                return _POST, self._index
            case ["v2", "repository", "models", name, "load" | "unload" as action]:
                exchange.model, exchange.told = name, True
                return _POST, self._load if action == "load" else self._unload
            case ["v2", "systemsharedmemory" | "cudasharedmemory", *rest]:
                return _shared_memory(rest)
            case ["v2", "trace", "setting"]:
                return _BOTH, self._trace
            case ["v2", "logging"]:
                return _BOTH, self._logging
            case ["metrics"]:
                return _GET, self._metrics
        raise _no_route()

    def _of_model(self, exchange: Exchange, name: str, rest: list[str]) -> Route:
        exchange.model = name
        if len(rest) > 1 and rest[0] == "versions":
            exchange.version, rest = rest[1], rest[2:]
        match rest:
            case ["infer"]:
                return self._infer
            case []:
                return _GET, self._metadata
            case ["ready"]:
                return _GET, self._model_ready
            case ["config"]:
                return _GET, self._config
            case ["stats"]:
                return _GET, self._statistics
            case ["trace", "setting"]:
                return _BOTH, self._trace
        raise _no_route()

    # --- the server -------------------------------------------------------------------------

    async def _ready(self, exchange: Exchange) -> Reply:
        return Reply(200 if self._repository.ready else 400)

    async def _metrics(self, exchange: Exchange) -> Reply:
        text = metrics_text(
            (one.name, one.version, one.counters) for one in self._repository.models()
        )
        kind = (b"content-type", METRICS_TYPE.encode())
        return Reply(200, (text.encode(),), (kind,))

    async def _trace(self, exchange: Exchange) -> Reply:
        if exchange.model:
            self._repository.model(exchange.model)
        return await self._settings(exchange, TRACE_SETTINGS)

    async def _logging(self, exchange: Exchange) -> Reply:
        return await self._settings(exchange, LOG_SETTINGS)

    async def _settings(self, exchange: Exchange, settings: Mapping[str, Any]) -> Reply:
        check_unchanged(settings, await self._json(exchange))
        return json_reply(settings)

    # --- a model ----------------------------------------------------------------------------

    async def _metadata(self, exchange: Exchange) -> Reply:
        found = self._repository.model(exchange.model, exchange.version)
        return json_reply(found.metadata())

    async def _config(self, exchange: Exchange) -> Reply:
        found = self._repository.model(exchange.model, exchange.version)
        return json_reply(found.config())

    async def _model_ready(self, exchange: Exchange) -> Reply:
        try:
            self._repository.model(exchange.model, exchange.version)
        except Refused as error:
            raise HttpError(400, error.text) from None
        return Reply()

    async def _statistics(self, exchange: Exchange) -> Reply:
        stats = self._repository.statistics(exchange.model, exchange.version)
        return json_reply({"model_stats": stats})

    # --- the repository ---------------------------------------------------------------------

    async def _index(self, exchange: Exchange) -> Reply:
        asked = await self._json(exchange)
        return json_reply(self._repository.index(asked.get("ready") is True))

    async def _load(self, exchange: Exchange) -> Reply:
        parameters = (await self._json(exchange)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise Refused("'parameters' of a load request is no object")
        await self._repository.load(exchange.model, parameters)
        return Reply()

    async def _unload(self, exchange: Exchange) -> Reply:
        await self._json(exchange)
        await self._repository.unload(exchange.model)
        return Reply()

    async def _json(self, exchange: Exchange) -> dict[str, Any]:
        """Return the body of a request that may have none."""
        body = await self._bodies.read(exchange)
        self._bodies.release(len(body))
        try:
            found = orjson.loads(body) if body else {}
        except orjson.JSONDecodeError as error:
            raise Refused(f"failed to parse the request JSON buffer: {error}") from None
        if not isinstance(found, dict):
            raise Refused("the body of the request is no JSON object")
        return found


async def _live(exchange: Exchange) -> Reply:
    return Reply()


async def _server(exchange: Exchange) -> Reply:
    return json_reply(server_metadata())


def _shared_memory(rest: list[str]) -> Route:
    """Return what answers for regions of shared memory: there are none."""
    match rest:
        case ["status"]:
            return _GET, _no_regions
        case ["region", _, "status"]:
            return _GET, _no_region
        case ["unregister"] | ["region", _, "unregister"]:
            return _POST, _live
        case ["region", _, "register"]:
            return _POST, _not_registered
    raise _no_route()


async def _no_regions(exchange: Exchange) -> Reply:
    return json_reply([])


async def _no_region(exchange: Exchange) -> Reply:
    region = f"{exchange.path[1].removesuffix('sharedmemory')} shared memory region"
    raise Refused(f"Unable to find {region}: '{exchange.path[3]}'", Status.NOT_FOUND)


async def _not_registered(exchange: Exchange) -> Reply:
    raise Refused(
        f"failed to register shared memory region '{exchange.path[3]}': not supported",
        Status.UNSUPPORTED,
        "send tensors in the request itself",
    )


def _no_route() -> HttpError:
    return HttpError(404, "Not Found: routes begin with /v2, as the Open Inference Protocol says")
