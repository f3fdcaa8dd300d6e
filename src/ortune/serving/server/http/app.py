"""The ASGI application: who may ask, the routes, and what the journal hears of it."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, TypeAlias

import orjson

from ortune.core.facts import TensorSpec
from ortune.serving.protocol import http_body, metadata
from ortune.serving.protocol.datatypes import find_datatype, find_dtype, from_raw
from ortune.serving.protocol.inference import SMALL_BYTES, InferRequest
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused, make_refusal
from ortune.serving.server.client_limits import CLIENT, identify_client
from ortune.serving.server.http.exchange import (
    BINARY,
    SETTINGS_BYTES,
    Bodies,
    ClientWatch,
    Disconnected,
    Exchange,
    Header,
    HttpError,
    Message,
    Receive,
    Reply,
    Send,
    error_reply,
    json_reply,
    send_reply,
)
from ortune.serving.server.listeners import Access
from ortune.serving.server.logs import Journal, LoggedRequest
from ortune.serving.server.repository.counters import METRICS_TYPE, metrics_text
from ortune.serving.server.repository.repository import Repository
from ortune.serving.server.repository.served import ServedModel, TimedResponse

PICTURES = ("image/jpeg", "image/png")
_LENGTH = b"inference-header-content-length"
_JOINED = 1 << 16
"""Bytes of an answer that is copied into one piece: cheaper than a write for each of its parts."""

Answer: TypeAlias = Callable[[Exchange], Awaitable[Reply]]
Route: TypeAlias = tuple[tuple[str, ...], Answer]
"""Methods, and what answers."""
_GET, _POST, _BOTH = ("GET", "HEAD"), ("POST",), ("GET", "HEAD", "POST")


def _make_json_answer(content: Callable[[Exchange], Any]) -> Answer:
    """Return what answers with JSON that is there at once."""

    async def answer(exchange: Exchange) -> Reply:
        return json_reply(content(exchange))

    return answer


async def _answer_empty(exchange: Exchange) -> Reply:
    return Reply()


class Routes:
    """Finds what answers a request, which `bodies` reads."""

    def __init__(self, repository: Repository, bodies: Bodies) -> None:
        self._repository, self._bodies = repository, bodies
        statistics = _GET, _make_json_answer(self._list_statistics)
        trace = _BOTH, self._answer_trace_settings
        self._of_model: Mapping[tuple[str, ...], Route] = {
            ("infer",): (_POST, self._answer_infer),
            (): (
                _GET,
                _make_json_answer(lambda exchange: self._find_served(exchange).build_metadata()),
            ),
            ("ready",): (_GET, self._answer_model_ready),
            ("config",): (
                _GET,
                _make_json_answer(lambda exchange: self._find_served(exchange).build_config()),
            ),
            ("stats",): statistics,
            ("trace", "setting"): trace,
        }
        self._of_server: Mapping[tuple[str, ...], Route] = {
            ("v2", "health", "live"): (_GET, _answer_empty),
            ("v2", "health", "ready"): (_GET, self._answer_ready),
            ("v2",): (_GET, _make_json_answer(lambda exchange: metadata.server_metadata())),
            ("v2", "models", "stats"): statistics,
            ("v2", "repository", "index"): (_POST, self._answer_index),
            ("v2", "trace", "setting"): trace,
            ("v2", "logging"): (_BOTH, self._answer_log_settings),
            ("metrics",): (_GET, self._answer_metrics),
        }

    def find_route(self, exchange: Exchange) -> Route:
        """Return what answers, and tell the exchange the model; HttpError where nothing does."""
        route: Route | None
        match exchange.path:
            case ["v2", "models", name, *segments] if segments or name != "stats":
                exchange.model = name
                if len(segments) > 1 and segments[0] == "versions":
                    exchange.version, segments = segments[1], segments[2:]
                route = self._of_model.get(tuple(segments))
            case ["v2", "repository", "models", name, "load" | "unload" as action]:
                exchange.model, exchange.logs_success = name, True
                route = _POST, self._load_model if action == "load" else self._unload_model
            case ["v2", "systemsharedmemory" | "cudasharedmemory" as memory, *segments]:
                route = _find_memory_route(memory.removesuffix("sharedmemory"), segments)
            case path:
                route = self._of_server.get(tuple(path))
        if route is None:
            raise HttpError(
                404, "Not Found: routes begin with /v2, as the Open Inference Protocol says"
            )
        return route

    # --- inference --------------------------------------------------------------------------

    async def _answer_infer(self, exchange: Exchange) -> Reply:
        """Answer an infer request."""
        exchange.logs_success = True
        served = self._repository.find_model(exchange.model, exchange.version)
        exchange.version = served.version
        length = exchange.headers.get(_LENGTH)
        head = None if length is None else http_body.parse_header_length(length.decode("latin-1"))
        kind = exchange.read_header(b"content-type").partition(";")[0].strip().lower()
        is_picture = kind in PICTURES
        fits = not is_picture or served.call.pictures is None
        cap = None
        if fits:
            cap = served.bound_json() if head is None else served.bound_body(head)
        body = await self._bodies.read_body(exchange, head or 0, cap)
        held_bytes = len(body)
        try:
            if is_picture:
                exchange.rows, request = 1, InferRequest({})
                response = await served.infer_picture(bytes(body), exchange.id)
            else:
                request = await _parse_infer(exchange, served, body, head)
                self._bodies.memory.release_bytes(held_bytes)  # its inputs count from here on
                held_bytes, body = 0, b""
                response = await served.infer(request)
        finally:
            self._bodies.memory.release_bytes(held_bytes)
        exchange.queue_ms = response.queue_ns / 1e6
        try:
            if response.held_bytes > SMALL_BYTES and not (request.binary or request.outputs):
                return await asyncio.to_thread(_build_reply, response, request)  # JSON of it
            return _build_reply(response, request)
        except BaseException:
            self._bodies.memory.release_bytes(response.held_bytes)
            raise

    # --- the server -------------------------------------------------------------------------

    async def _answer_ready(self, exchange: Exchange) -> Reply:
        return Reply(200 if self._repository.ready else 400)

    async def _answer_metrics(self, exchange: Exchange) -> Reply:
        text = metrics_text(
            (served.name, served.version, served.counters)
            for served in self._repository.list_models()
        )
        return Reply(200, (text.encode(),), ((b"content-type", METRICS_TYPE.encode()),))

    async def _answer_trace_settings(self, exchange: Exchange) -> Reply:
        if exchange.model:
            self._repository.find_model(exchange.model)
        metadata.check_unchanged(metadata.TRACE_SETTINGS, await self._read_json_body(exchange))
        return json_reply(metadata.TRACE_SETTINGS)

    async def _answer_log_settings(self, exchange: Exchange) -> Reply:
        metadata.check_unchanged(metadata.LOG_SETTINGS, await self._read_json_body(exchange))
        return json_reply(metadata.LOG_SETTINGS)

    # --- models and the repository ----------------------------------------------------------

    def _find_served(self, exchange: Exchange) -> ServedModel:
        return self._repository.find_model(exchange.model, exchange.version)

    async def _answer_model_ready(self, exchange: Exchange) -> Reply:
        try:
            self._find_served(exchange)
        except RequestRefused as error:
            raise HttpError(400, error.text) from None
        return Reply()

    def _list_statistics(self, exchange: Exchange) -> Mapping[str, Any]:
        return {"model_stats": self._repository.list_statistics(exchange.model, exchange.version)}

    async def _answer_index(self, exchange: Exchange) -> Reply:
        body = await self._read_json_body(exchange)
        return json_reply(self._repository.build_index(body.get("ready") is True))

    async def _load_model(self, exchange: Exchange) -> Reply:
        parameters = (await self._read_json_body(exchange)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise RequestRefused("'parameters' of a load request is no object")
        await self._repository.load(exchange.model, parameters)
        return Reply()

    async def _unload_model(self, exchange: Exchange) -> Reply:
        await self._read_json_body(exchange)
        await self._repository.unload(exchange.model)
        return Reply()

    async def _read_json_body(self, exchange: Exchange) -> dict[str, Any]:
        """Return the JSON of a request that may have none."""
        body = await self._bodies.read_body(exchange, cap=SETTINGS_BYTES)
        self._bodies.memory.release_bytes(len(body))
        try:
            content = orjson.loads(body) if body else {}
        except orjson.JSONDecodeError as error:
            raise RequestRefused(f"failed to parse the request JSON buffer: {error}") from None
        if not isinstance(content, dict):
            raise RequestRefused("the body of the request is no JSON object")
        return content


def _find_memory_route(kind: str, segments: Sequence[str]) -> Route | None:
    """Return what answers for regions of shared memory: there are none."""
    match segments:
        case ["status"]:
            return _GET, _make_json_answer(lambda exchange: [])
        case ["region", name, "status"]:
            return _GET, _make_json_answer(lambda exchange: metadata.refuse_region(kind, name))
        case ["unregister"] | ["region", _, "unregister"]:
            return _POST, _answer_empty
        case ["region", name, "register"]:
            return _POST, _make_json_answer(lambda exchange: metadata.refuse_registration(name))
    return None


async def _parse_infer(
    exchange: Exchange, served: ServedModel, body: bytes | memoryview, head: int | None
) -> InferRequest:
    """Return the request that a body holds; what is large is parsed in a thread."""
    json_bytes = len(body) if head is None else head
    if head == 0:
        request = raw_request(body, served.inputs, batched=served.max_batch > 0)
    elif json_bytes <= SMALL_BYTES:
        request = await served.read(http_body.declare_body(body, head, served.name))
    else:
        declared = await asyncio.to_thread(http_body.declare_body, body, head, served.name)
        request = await served.read(replace(declared, parsed_bytes=json_bytes))
    exchange.id = request.id or exchange.id
    if served.max_batch:
        array = next(iter(request.inputs.values()), None)
        exchange.rows = len(array) if array is not None and array.ndim else 1
    return request


def _build_reply(response: TimedResponse, request: InferRequest) -> Reply:
    chunks, length = http_body.encode_response(response, request)
    if sum(map(len, chunks)) <= _JOINED:
        chunks = [b"".join(chunks)]
    if length is None:
        return Reply(200, chunks, held_bytes=response.held_bytes)
    headers = (BINARY, (_LENGTH, str(length).encode()))
    return Reply(200, chunks, headers, response.held_bytes)


def raw_request(
    body: bytes | memoryview, inputs: Sequence[TensorSpec], *, batched: bool
) -> InferRequest:
    """Return the request whose body is the data of the model's only input, and nothing else.

    Its shape is the model's: a batch of one, and the dimension that is free follows from the
    length. The outputs are binary. (Binary tensor data extension, "raw binary request".) Raises
    RequestRefused: the model has several inputs or free dimensions, or the length does not fit.
    """
    shape = [
        1 if batched and axis == 0 else dim if isinstance(dim, int) else -1
        for axis, dim in enumerate(inputs[0].shape or ())
    ]
    if len(inputs) != 1 or shape.count(-1) > 1:
        raise RequestRefused(
            "a raw binary request needs a model with one input, of one free dimension at most",
            fix="name the inputs in JSON, and its length in Inference-Header-Content-Length",
        )
    name, kind = inputs[0].name, find_datatype(inputs[0].dtype)
    if kind == "BYTES":  # the body is one element
        body, count = len(body).to_bytes(4, "little") + body, 1
    else:
        count = len(body) // find_dtype(kind).itemsize
    if -1 in shape:
        shape[shape.index(-1)] = count // math.prod(dim for dim in shape if dim > 0)
    array = from_raw(name, kind, shape, body)
    return InferRequest({name: array}, binary=True, datatypes={name: kind})


_OPEN = (["v2", "health", "live"], ["v2", "health", "ready"])
"""What needs no token: whoever watches over processes has none."""
_BEARER: Header = (b"www-authenticate", b"Bearer")
_LATE = "the body of the request did not come in time"
_MOST_NAME = 128
"""Characters of a name that is no model's, in the journal."""


class App:
    """Answers requests by HTTP, to who may ask; uvicorn calls it.

    The journal hears of infer requests and of what is refused. `period_s` is that of
    `ClientWatch`.
    """

    def __init__(
        self,
        repository: Repository,
        access: Access,
        journal: Journal,
        period_s: float | None = None,
    ) -> None:
        self._period_s = period_s
        limits = repository.limits
        self._access, self._journal = access, journal
        self._memory = repository.memory
        self._routes = Routes(repository, Bodies(limits.max_body, repository.memory))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. Raises NotImplementedError: it is none of HTTP."""
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']}")
        began = perf_counter_ns()
        CLIENT.set(identify_client((scope.get("client") or ("",))[0]))
        exchange = Exchange(scope, receive)
        watching = ClientWatch(exchange, self._period_s)
        try:
            reply, error = await self._answer_exchange(exchange)
        finally:
            watching.end()
        try:
            if reply.status >= 400 or exchange.logs_success:
                self._journal.log_request(
                    LoggedRequest(
                        front="http",
                        model=exchange.model[:_MOST_NAME],
                        version=exchange.version[:_MOST_NAME],
                        id=exchange.id,
                        status=reply.status,
                        ms=(perf_counter_ns() - began) / 1e6,
                        queue_ms=exchange.queue_ms,
                        rows=exchange.rows,
                        error=error,
                        trace=exchange.read_header(b"traceparent"),
                    )
                )
            if not exchange.gone:
                await send_reply(exchange, reply, send)
        finally:
            self._memory.release_bytes(reply.held_bytes)

    async def _answer_exchange(self, exchange: Exchange) -> tuple[Reply, str]:
        """Return the answer, and the error that it tells."""
        try:
            allowed = self._access.open or exchange.path in _OPEN
            if not allowed and not self._access.allows(exchange.read_header(b"authorization")):
                raise RequestRefused("the request has no valid token", RefusalKind.UNAUTHENTICATED)
            methods, answer = self._routes.find_route(exchange)
            if exchange.method not in methods:
                raise HttpError(405, "Method Not Allowed", (b"allow", ", ".join(methods).encode()))
            return await answer(exchange), ""
        except HttpError as error:
            return error_reply(error.status, str(error), *error.headers), str(error)
        except Disconnected:
            exchange.gone = True
        except asyncio.CancelledError:
            if exchange.late:
                return error_reply(408, _LATE), _LATE
            if not exchange.gone:
                raise
        except Exception as error:
            refusal = make_refusal(error)
            headers = (_BEARER,) if refusal.status is RefusalKind.UNAUTHENTICATED else ()
            return error_reply(refusal.status.http, refusal.text, *headers), refusal.text
        return Reply(RefusalKind.CANCELLED.http), "the client went away"
