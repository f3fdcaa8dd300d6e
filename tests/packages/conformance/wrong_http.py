"""Requests over HTTP that are wrong."""

from __future__ import annotations

import gzip
import json

from tests.packages.conformance.asking import Case, binary_case, http_case
from tests.packages.conformance.http_cases import RAW, A, B, blob, json_case, sums, without

_SHARED = {"shared_memory_region": "r", "shared_memory_byte_size": 16}


def cases() -> dict[str, Case]:
    """Return every case by its name."""
    return _bodies() | _tensors() | _shapes() | _binary() | _encodings()


def fatal() -> dict[str, Case]:
    """Return what the real Triton 2.51 ends at; ours alone is asked."""
    texts = {"name": "x", "shape": [1, 3], "datatype": "BYTES", "data": [*"abc"]}
    asked = [{"name": "y", "parameters": {"classification": 1}}]
    return {
        "classes of text": json_case({"inputs": [texts], "outputs": asked}, model="echo-BYTES")
    }


def _bodies() -> dict[str, Case]:
    return {
        "no body": json_case(b""),
        "no JSON": json_case(b"{"),
        "a list": json_case([]),
        "a number": json_case(b"1"),
        "no inputs": json_case({}),
        "inputs empty": json_case({"inputs": []}),
        "inputs no list": json_case({"inputs": {"a": 1}}),
        "an input no object": json_case({"inputs": [1, 2]}),
        "not UTF-8": json_case(b'{"inputs": "\xff"}'),
        "a model that is not there": json_case(sums(), model="none"),
        "a version that is not there": http_case(
            "POST", "/v2/models/sum/versions/9/infer", sums()
        ),
        "a version that is no number": http_case(
            "POST", "/v2/models/sum/versions/x/infer", sums()
        ),
        "an output that is not there": json_case(sums(outputs=[{"name": "none"}])),
        "an output twice": json_case(sums(outputs=[{"name": "sum"}, {"name": "sum"}])),
        "an output without name": json_case(sums(outputs=[{}])),
        "outputs no list": json_case(sums(outputs={"name": "sum"})),
        "id no text": json_case(sums(id=7)),
        "parameters no object": json_case(sums(parameters=[1])),
        "binary_data no truth value": json_case(
            sums(outputs=[{"name": "sum", "parameters": {"binary_data": "yes"}}])
        ),
        "classes no number": json_case(
            sums(outputs=[{"name": "sum", "parameters": {"classification": "two"}}])
        ),
        "no classes": json_case(
            sums(outputs=[{"name": "sum", "parameters": {"classification": 0}}])
        ),
    }


def _tensors() -> dict[str, Case]:
    return {
        "an input missing": json_case({"inputs": [A]}),
        "an input too many": json_case({"inputs": [A, B, {**A, "name": "c"}]}),
        "an input twice": json_case({"inputs": [A, A]}),
        "an input of another name": json_case(sums({**A, "name": "c"})),
        "no name": json_case(sums(without(A, "name"))),
        "no shape": json_case(sums(without(A, "shape"))),
        "no datatype": json_case(sums(without(A, "datatype"))),
        "no data": json_case(sums(without(A, "data"))),
        "name no text": json_case(sums({**A, "name": 1})),
        "datatype of another size": json_case(sums({**A, "datatype": "FP64"})),
        "datatype of the same size": json_case(sums({**A, "datatype": "INT32"})),
        "datatype unknown": json_case(sums({**A, "datatype": "FLOAT"})),
        "datatype in small letters": json_case(sums({**A, "datatype": "fp32"})),
        "data too short": json_case(sums({**A, "data": [1, 2, 3]})),
        "data too long": json_case(sums({**A, "data": [1, 2, 3, 4, 5]})),
        "data empty": json_case(sums({**A, "data": []})),
        "data no list": json_case(sums({**A, "data": 1})),
        "data of objects": json_case(sums({**A, "data": [{}, {}, {}, {}]})),
        "data ragged": json_case(sums({**A, "data": [[1, 2, 3], [4]]})),
        "data not a number": json_case(json.dumps(sums({**A, "data": [float("nan"), 1, 2, 3]}))),
        "shared memory that is not there": json_case(
            sums({**without(A, "data"), "parameters": _SHARED})
        ),
    }


def _shapes() -> dict[str, Case]:
    nine = {"shape": [9, 4], "data": [0] * 36}
    return {
        "a wrong dimension": json_case(sums({**A, "shape": [1, 3], "data": [1, 2, 3]})),
        "rank 1": json_case(sums({**A, "shape": [4]})),
        "rank 3": json_case(sums({**A, "shape": [1, 1, 4]})),
        "rank 0": json_case(sums({**A, "shape": [], "data": [1]})),
        "a negative dimension": json_case(sums({**A, "shape": [-1, 4]})),
        "a dimension beyond 64 bits": json_case(sums({**A, "shape": [2**70, 4]})),
        "a product beyond 64 bits": json_case(sums({**A, "shape": [2**40, 2**40]})),
        "a dimension with a fraction": json_case(sums({**A, "shape": [1.5, 4]})),
        "a dimension as text": json_case(sums({**A, "shape": ["1", 4]})),
        "shape no list": json_case(sums({**A, "shape": 4})),
        "batch 0": json_case(
            sums({**A, "shape": [0, 4], "data": []}, {**B, "shape": [0, 4], "data": []})
        ),
        "batch 9 of 8": json_case(sums({**A, **nine}, {**B, **nine})),
        "batches that differ": json_case(sums({**A, "shape": [2, 4], "data": [0] * 8})),
        "a fixed shape missed": json_case(
            {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]},
            model="whole",
        ),
        "a free dimension of none": json_case(
            {"inputs": [{"name": "x", "shape": [1, 0], "datatype": "FP32", "data": []}]},
            model="free",
        ),
    }


def _binary() -> dict[str, Case]:
    raw = sums(blob("a"), blob("b"))
    return {
        "binary too short": binary_case(raw, RAW),
        "binary too long": binary_case(raw, RAW, RAW, b"more"),
        "binary size too small for the shape": binary_case(sums(blob("a", 12)), RAW[:12]),
        "binary size too large for the shape": binary_case(sums(blob("a", 20)), RAW, b"more"),
        "binary size negative": binary_case(sums(blob("a", -16)), RAW),
        "binary size huge": binary_case(sums(blob("a", 2**62)), RAW),
        "binary size no number": binary_case(
            sums(blob("a", parameters={"binary_data_size": "16"})), RAW
        ),
        "binary size and data": binary_case(sums({**blob("a"), "data": [1, 2, 3, 4]}), RAW),
        "binary size without header": json_case(sums(blob("a"))),
        "header length too large": binary_case(raw, RAW, RAW, length="100000"),
        "header length too small": binary_case(raw, RAW, RAW, length="10"),
        "header length 0": binary_case(raw, RAW, RAW, length="0"),
        "header length negative": binary_case(raw, RAW, RAW, length="-1"),
        "header length no number": binary_case(raw, RAW, RAW, length="ten"),
    }


def _encodings() -> dict[str, Case]:
    text = json.dumps(sums()).encode()
    return {
        "gzip that is none": json_case(text, Content_Encoding="gzip"),
        "gzip cut off": json_case(gzip.compress(text)[:-12], Content_Encoding="gzip"),
        "an unknown encoding": json_case(text, Content_Encoding="br"),
    }
