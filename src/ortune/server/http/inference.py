"""Infer requests over HTTP: JSON, binary tensors, one raw tensor, or a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ortune.core.facts import TensorSpec
from ortune.protocol import http_body
from ortune.protocol.datatypes import datatype, dtype
from ortune.protocol.inference import InferRequest, InferResponse
from ortune.protocol.status import Refused
from ortune.protocol.tensors import from_raw
from ortune.server.http.bodies import Bodies
from ortune.server.http.exchange import BINARY, Exchange, Reply
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
