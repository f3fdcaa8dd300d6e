"""Requests over HTTP."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.packages.conformance.asking import Case, binary_case, http_case

A = {"name": "a", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
B = {"name": "b", "shape": [1, 4], "datatype": "FP32", "data": [0.5, 0.25, -1, 8]}
RAW = np.array([1, 2, 3, 4], np.float32).tobytes()
_INFER = "/v2/models/sum/infer"


def sums(a: Mapping[str, Any] = A, b: Mapping[str, Any] = B, **top: Any) -> dict[str, Any]:
    """Return a request to the model of two inputs."""
    return {"inputs": [a, b], **top}


def without(tensor: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in tensor.items() if key not in names}


def blob(name: str, size: int = 16, **changes: Any) -> dict[str, Any]:
    """Return an input whose values lie behind the JSON."""
    one = {"name": name, "shape": [1, 4], "datatype": "FP32"}
    return {**one, "parameters": {"binary_data_size": size}, **changes}


def json_case(body: Any, model: str = "sum", **headers: str) -> Case:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return http_case("POST", f"/v2/models/{model}/infer", body, named)


def echo(datatype: str, data: Any, shape: Any = (1, 3), **top: Any) -> Case:
    one = {"name": "x", "shape": list(shape), "datatype": datatype, "data": data}
    return json_case({"inputs": [one], **top}, f"echo-{datatype}")


def _rows(count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    more = {"shape": [count, 4], "data": list(range(4 * count))}
    return {**A, **more}, {**B, **more}


def _text(*words: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(one)) + one for one in words)


def _gets() -> dict[str, Case]:
    paths = (
        "/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/sum",
        "/v2/models/sum/versions/1", "/v2/models/sum/ready", "/v2/models/sum/versions/1/ready",
        "/v2/models/sum/versions/9/ready", "/v2/models/none/ready", "/v2/models/none",
        "/v2/models/sum/versions/9", "/v2/models/sum/versions/x", "/v2/models/free",
        "/v2/models/whole", "/v2/models/echo-BYTES", "/v2/models/sum/config",
        "/v2/models/whole/config", "/v2/models/none/config", "/v2/models/sum/versions/1/config",
        "/v2/models/none/stats", "/v2/models/sum/versions/9/stats",
        "/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status",
        "/v2/systemsharedmemory/region/none/status", "/v2/trace/setting", "/v2/logging",
        "/v2/nothing", "/nothing", "/", "/v2/models", "/v2/models/sum/nothing",
        "/v2/models/..%2f..%2fetc", "/v2/models/sum/infer", "/v2/repository/index",
    )  # fmt: skip
    return {f"GET {path}": http_case("GET", path) for path in paths}


def _others() -> dict[str, Case]:
    posts = {
        "/v2/repository/index": {},
        "/v2/repository/models/sum/load": {},
        "/v2/repository/models/sum/unload": {},
        "/v2/repository/models/none/load": {},
        "/v2/systemsharedmemory/region/r/register": {"key": "/r", "offset": 0, "byte_size": 4},
        "/v2/systemsharedmemory/unregister": {},
        "/v2/health/live": {},
        "/v2/models/sum": {},
    }
    found = {f"POST {path}": http_case("POST", path, body) for path, body in posts.items()}
    ready = http_case("POST", "/v2/repository/index", {"ready": True})
    return found | {
        "index of what is ready": ready,
        "HEAD": http_case("HEAD", "/v2/health/live"),
        "DELETE": http_case("DELETE", "/v2/models/sum"),
        "PUT": http_case("PUT", _INFER, sums()),
    }


def _right() -> dict[str, Case]:
    compressed = json.dumps(sums()).encode()
    raw = sums(blob("a"), blob("b"))
    nested = sums({**A, "data": [[1, 2, 3, 4]]})
    both = [{"name": "difference"}, {"name": "sum"}]
    return {
        "flat data": json_case(sums()),
        "nested data": json_case(nested),
        "an id": json_case(sums(id="a b/1")),
        "a version": http_case("POST", "/v2/models/sum/versions/1/infer", sums()),
        "one output": json_case(sums(outputs=[{"name": "difference"}])),
        "outputs in another order": json_case(sums(outputs=both)),
        "no outputs asked for": json_case(sums(outputs=[])),
        "batch 8": json_case(sums(*_rows(8))),
        "a free dimension": json_case(
            {"inputs": [{**A, "name": "x", "shape": [2, 2]}]}, model="free"
        ),
        "no batch dimension": json_case(
            {"inputs": [{**A, "name": "x", "shape": [2, 3], "data": [-1, 1, 2, 3, 4, 5]}]},
            model="whole",
        ),
        "content type JSON": json_case(sums(), Content_Type="application/json"),
        "content type text": json_case(sums(), Content_Type="text/plain"),
        "content type bytes": json_case(sums(), Content_Type="application/octet-stream"),
        "binary in": binary_case(raw, RAW, RAW),
        "binary in, JSON out": binary_case(
            {**raw, "outputs": [{"name": "sum", "parameters": {"binary_data": False}}]}, RAW, RAW
        ),
        "binary and JSON in": binary_case(sums(blob("a")), RAW),
        "binary out of all": json_case(sums(parameters={"binary_data_output": True})),
        "binary out of one": json_case(
            sums(outputs=[{"name": "sum", "parameters": {"binary_data": True}}, both[0]])
        ),
        "binary out, but not of one": json_case(
            sums(
                outputs=[{"name": "sum", "parameters": {"binary_data": False}}, both[0]],
                parameters={"binary_data_output": True},
            )
        ),
        "header length of a whole JSON body": http_case(
            "POST", _INFER, compressed, {"Inference-Header-Content-Length": str(len(compressed))}
        ),
        "gzip": json_case(gzip.compress(compressed), Content_Encoding="gzip"),
        "deflate": json_case(zlib.compress(compressed), Content_Encoding="deflate"),
        "chunked": http_case("POST", _INFER, sums(), chunked=True),
        "classes": json_case(
            sums(outputs=[{"name": "sum", "parameters": {"classification": 2}}])
        ),
        "more classes than there are": json_case(
            sums(outputs=[{"name": "sum", "parameters": {"classification": 9}}])
        ),
        "classes, binary": json_case(
            sums(
                outputs=[{"name": "sum", "parameters": {"classification": 2}}],
                parameters={"binary_data_output": True},
            )
        ),
        "classes of a batch": json_case(
            sums(*_rows(2), outputs=[{"name": "sum", "parameters": {"classification": 1}}])
        ),
        "unknown parameters": json_case(sums(parameters={"mine": "x", "also": 1, "b": True})),
        "a priority and a time": json_case(sums(parameters={"priority": 1, "timeout": 5_000_000})),
        "unknown keys": json_case({**sums(), "mine": {"x": [1]}}),
        "one tensor alone": json_case(
            RAW[:12], model="echo-FP32", Inference_Header_Content_Length="0"
        ),
        "spaces around": json_case(b" \n" + compressed + b"\n "),
    }  # fmt: skip


def _types() -> dict[str, Case]:
    whole = {name: echo(name, [0, 1, 2]) for name in ("UINT8", "UINT16", "UINT32", "INT8")}
    whole |= {name: echo(name, [0, -1, 2]) for name in ("INT16", "INT32", "INT64")}
    return {f"JSON {name}": case for name, case in whole.items()} | {
        "JSON UINT64": echo("UINT64", [0, 1, 2**64 - 1]),
        "JSON INT64, the ends": echo("INT64", [-(2**63), 2**63 - 1, 0]),
        "JSON BOOL": echo("BOOL", [True, False, True]),
        "JSON BOOL of numbers": echo("BOOL", [1, 0, 1]),
        "JSON BOOL of other numbers": echo("BOOL", [2, 0, 1]),
        "JSON FP16": echo("FP16", [1.0, 2.0, 3.0]),
        "JSON FP32": echo("FP32", [0.1, -1e-30, 3e38]),
        "JSON FP32, too large": echo("FP32", [1e39, 0, 0]),
        "JSON FP32 of truth values": echo("FP32", [True, False, True]),
        "JSON FP32 of text": echo("FP32", ["1", "2", "3"]),
        "JSON FP32 of nothing": echo("FP32", [None, 1, 2]),
        "JSON FP64": echo("FP64", [0.1, -1e-300, 1e300]),
        "JSON BYTES": echo("BYTES", ["", "grüße", 'a "b" \n']),
        "JSON BYTES of numbers": echo("BYTES", [1, 2, 3]),
        "JSON UINT8, too large": echo("UINT8", [0, 1, 300]),
        "JSON UINT8, negative": echo("UINT8", [0, 1, -1]),
        "JSON INT8, too small": echo("INT8", [0, 1, -129]),
        "JSON INT32 of fractions": echo("INT32", [0, 1, 1.5]),
        "JSON INT32 of whole floats": echo("INT32", [0, 1, 2.0]),
        "JSON INT64, too large": echo("INT64", [0, 1, 2**63]),
        "binary BYTES": _binary_text(_text(b"", b"grob", b"a" * 300)),
        "binary BYTES, one missing": _binary_text(_text(b"", b"a")),
        "binary BYTES, one more": _binary_text(_text(b"", b"a", b"b", b"c")),
        "binary BYTES, a length too large": _binary_text(_text(b"", b"a") + b"\xff\0\0\0x"),
        "binary BYTES, half a length": _binary_text(_text(b"", b"a") + b"\1\0"),
        "binary FP16": _binary_echo("FP16", np.array([1, 2.5, -3], np.float16).tobytes()),
        "binary FP16, JSON out": _binary_echo(
            "FP16", np.zeros(3, np.float16).tobytes(), binary=False
        ),
        "binary BOOL": _binary_echo("BOOL", b"\0\1\1"),
        "binary BOOL of other bytes": _binary_echo("BOOL", b"\0\1\2"),
    }


def _binary_text(raw: bytes) -> Case:
    return _binary_echo("BYTES", raw)


def _binary_echo(datatype: str, raw: bytes, *, binary: bool = True) -> Case:
    one = blob("x", len(raw), shape=[1, 3], datatype=datatype)
    asked = [{"name": "y", "parameters": {"binary_data": binary}}]
    return binary_case({"inputs": [one], "outputs": asked}, raw, model=f"echo-{datatype}")


def cases() -> dict[str, Case]:
    """Return every case by its name."""
    return _gets() | _others() | _right() | _types()
