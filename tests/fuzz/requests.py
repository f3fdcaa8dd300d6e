"""Targets `http` and `grpc`: bodies and messages of requests, up to the check before the queue."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ortune.core.facts import TensorSpec
from ortune.serving.protocol import http_body, messages
from ortune.serving.protocol.inference import InferRequest, InferResponse, Output, check_request
from tests.fuzz import mutate, wire
from tests.fuzz.target import Broken, Case, Target

INPUTS = (
    TensorSpec("x", "float32", ("N", 4)),
    TensorSpec("ids", "int64", ("N", None)),
    TensorSpec("words", "str", ("N",)),
)
_LEAVES: tuple[Any, ...] = (
    "FP32",
    "FP16",
    "BF16",
    "BYTES",
    "BOOL",
    "INT8",
    "UINT64",
    "fp32",
    [0],
    [1, 4],
    [-1, 4],
    [0, 2**62, 2**62],
    [2**31, 2**31],
    [1] * 70,
    [[1], 4],
    {"binary_data_size": 16},
    {"binary_data_size": -1},
    {"binary_data_size": 2**63},
    {"shared_memory_region": "r", "shared_memory_byte_size": 4},
    {"classification": 2**63},
    {"timeout": -1},
    [[[[1.5]]]],
    ["a", 1],
    [True, 2],
    [2**64],
)
_UNKNOWN = b"\x7a\xc0\xb8\x02" + bytes(40_000)
"""A field that no request has: it makes a message large."""
_LENGTHS = ("", "0", "1", "-1", "nan", "999999999999999999", "9" * 30, "1e3", "²")


def document(rng: Random, *, binary: bool) -> tuple[dict[str, Any], bytes]:
    """Return a valid request, and what lies behind its JSON."""
    rows = rng.choice((0, 1, 1, 2, 8, 9))
    words = [rng.choice(("", "é", "a" * 300)) for _ in range(rows)]
    given = {
        "x": ("FP32", [rows, 4], np.arange(4 * rows, dtype=np.float32)),
        "ids": ("INT64", [rows, 3], np.arange(3 * rows)),
        "words": ("BYTES", [rows], words),
    }
    inputs, tail = [], b""
    for name, (datatype, shape, values) in given.items():
        one: dict[str, Any] = {"name": name, "shape": shape, "datatype": datatype}
        if binary and rng.random() < 0.8:
            raw = _raw(values)
            one["parameters"] = {"binary_data_size": len(raw)}
            tail += raw
        else:
            one["data"] = list(values) if isinstance(values, list) else values.tolist()
        inputs.append(one)
    outputs = [{"name": "x", "parameters": {"binary_data": True, "classification": 2}}]
    found: dict[str, Any] = {"id": "7", "inputs": inputs, "parameters": {"timeout": 1000}}
    return found | ({"outputs": outputs} if rng.random() < 0.5 else {}), tail


def _raw(values: Any) -> bytes:
    if not isinstance(values, list):
        return bytes(values.tobytes())
    texts = [word.encode() for word in values]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _over_http(rng: Random) -> Case:
    asked, tail = document(rng, binary=rng.random() < 0.6)
    for _ in range(rng.choice((0, 1, 1, 2))):
        asked = mutate.leaves(rng, asked)
        if (
            isinstance(asked, dict)
            and isinstance(asked.get("inputs"), list)
            and rng.random() < 0.6
        ):
            one = rng.choice(asked["inputs"] or [0])
            if isinstance(one, dict) and one:
                one[rng.choice(list(one))] = rng.choice(_LEAVES)
    head = mutate.as_json(asked, rng)
    length = str(len(head))
    if rng.random() < 0.2:
        length = rng.choice((*_LENGTHS, str(len(head) - 1), str(len(head) + 1)))
    body = head + tail
    if rng.random() < 0.15:
        body = mutate.raw(rng, body)
    return _http("a body", body, length if tail or rng.random() < 0.2 else "")


def message(rng: Random) -> bytes:
    """Return a valid message, with raw contents or with typed ones."""
    asked, _ = document(rng, binary=False)
    made = messages.find_message_class("ModelInferRequest")(model_name="m", id="7")
    raw = rng.random() < 0.6
    fields = {"FP32": "fp32_contents", "INT64": "int64_contents", "BYTES": "bytes_contents"}
    for one in asked["inputs"]:
        name, datatype, values = one["name"], one["datatype"], one["data"]
        held = made.inputs.add(name=name, datatype=datatype, shape=one["shape"])
        if raw:
            kinds = {"FP32": "<f4", "INT64": "<i8"}
            given = np.array(values, kinds[datatype]) if datatype in kinds else values
            made.raw_input_contents.append(_raw(given))
            continue
        held.contents.SetInParent()
        flat = [word.encode() for word in values] if datatype == "BYTES" else values
        getattr(held.contents, fields[datatype]).extend(flat)
    made.parameters["timeout"].int64_param = 5
    made.outputs.add(name="x").parameters["classification"].int64_param = 2
    found: bytes = made.SerializeToString()
    return found + _UNKNOWN if rng.random() < 0.2 else found


def _over_grpc(rng: Random) -> Case:
    data = message(rng)
    if rng.random() < 0.8:
        data = wire.change(rng, data, messages.find_message_class("ModelInferRequest").DESCRIPTOR)
    if rng.random() < 0.3:
        data = mutate.raw(rng, data)
    return Case("a message", {"body": data}, ("grpc",))


def _http(name: str, body: bytes, length: str = "") -> Case:
    return Case(name, {"body": body}, ("http", length))


def read(case: Case, folder: Path) -> None:
    """Parse a body as its front does, check it, and answer with what was sent."""
    body = (folder / "body").read_bytes()
    if case.words[0] == "grpc":
        request = messages.deserialize_request(body).request
    else:
        length = http_body.parse_header_length(case.words[1] or None)
        request = http_body.declare_body(body, length, "m").read()
    _hold(request)
    made = InferResponse(
        "m",
        "1",
        request.id,
        [Output(name, request.datatypes[name], one) for name, one in request.inputs.items()],
    )
    messages.find_message_class("ModelInferResponse").FromString(messages.serialize_response(made))
    check_request(request, INPUTS, max_batch=8, model="m", outputs=INPUTS)
    chunks, _ = http_body.encode_response(made, request)
    json.loads(bytes(chunks[0]))


def _hold(request: InferRequest) -> None:
    """Hold what was read against what it says of itself."""
    for name, array in request.inputs.items():
        if array.dtype != object and not array.flags.aligned:
            raise Broken(f"unaligned: input {name!r}")
        if any(not isinstance(one, bytes) for one in array.ravel()[:100] if array.dtype == object):
            raise Broken(f"no bytes: input {name!r}")


def corpus() -> Sequence[Callable[[], Case]]:
    """Return what breaks parsers elsewhere, of both fronts."""
    x: Mapping[str, Any] = {"name": "x", "shape": [1, 4], "datatype": "FP32"}

    def one(**more: Any) -> bytes:
        return json.dumps({"inputs": [{**x, **more}]}).encode()

    made = [
        _http("nothing", b""),
        _http("deep", b"[" * 1_000_000),
        _http("deep data", one(data=0).replace(b": 0}", b": " + b"[" * 900 + b"]" * 900 + b"}")),
        _http("brackets", one(data=0).replace(b": 0}", b": [" + b"[]," * 3_000_000 + b"[]]}")),
        _http("numbers", one(data=0).replace(b": 0}", b": [" + b"1," * 4_000_000 + b"1]}")),
        _http("long number", one(data=0).replace(b": 0}", b": [" + b"9" * 1_000_000 + b"]}")),
        _http("long name", one(name="x" * 4_000_000, data=[1])),
        _http("long shape", one(shape=[1] * 1_000_000, data=[1])),
        _http("deep shape", one(shape=[[[[1]]]] * 100_000, data=[1])),
        _http("huge shape", one(shape=[2**63 - 1] * 32, data=[1])),
        _http("empty and huge", one(shape=[0, 2**62, 2**62], data=[])),
        _http("many inputs", json.dumps({"inputs": [x] * 100_000}).encode()),
        _http("gzip", gzip.compress(bytes(1000))),
        *(_http(f"length {length!r}", one(data=[1, 2, 3, 4]), length) for length in _LENGTHS),
    ]
    raw = json.dumps({"inputs": [{**x, "parameters": {"binary_data_size": 16}}]}).encode()
    texts = raw.replace(b"FP32", b"BYTES").replace(b"[1, 4]", b"[4]")
    for tail in (b"", bytes(15), bytes(16), bytes(17), b"\xff" * 16, b"\x10\0\0\0" * 4):
        made += [_http("binary", head + tail, str(len(head))) for head in (raw, texts)]
    varint = b"\xff" * 9 + b"\x7f"
    for data in (
        b"\x3a" + varint,
        b"\x2a\0" * 2_000_000,
        b"\x3a\0" * 2_000_000,
        b"\x0b" * 1_000_000,
        varint * 100_000,
        b"\x2a\x04\x1a\x02\x80\x80" * 10_000,
        b"\x22\0" * 1_000_000,
    ):
        made.append(Case("fields", {"body": data}, ("grpc",)))
    return [lambda one=one: one for one in made]  # type: ignore[misc]


TARGETS = (
    Target("http", cache(corpus), _over_http, read),
    Target("grpc", tuple, _over_grpc, read),
)
