"""The models that are served, with one input each, and requests for them in every form."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from benchmarks.serving.load import Request

_HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'


@dataclass(frozen=True)
class Payload:
    """A model whose run takes next to nothing, so that serving it is what is seen.

    Attributes:
        text: The graph, without its weights.
        weights: Shapes of what is added to it.
        shape: Of the input ``x``.
    """

    name: str
    text: str
    weights: dict[str, tuple[int, ...]]
    shape: tuple[int, ...]

    def write(self, folder: Path) -> Path:
        """Write the model."""
        rng = np.random.default_rng(0)
        proto = onnx.parser.parse_model(_HEAD + self.text)
        for key, shape in self.weights.items():
            values = rng.standard_normal(shape).astype(np.float32)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(values, key))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.onnx"
        onnx.save(proto, path)
        return path

    def array(self) -> NDArray[Any]:
        """Return the input."""
        return np.random.default_rng(1).standard_normal(self.shape).astype(np.float32)


SMALL = Payload(
    "small", "g (float[N,256] x) => (float[N,64] y) { y = Gemm(x, w) }", {"w": (256, 64)}, (1, 256)
)
BIG = Payload(
    "big",
    """g (float[N,3,224,224] x) => (float[N,10] y) {
        a = GlobalAveragePool(x)
        b = Flatten(a)
        y = Gemm(b, w)
    }""",
    {"w": (3, 10)},
    (1, 3, 224, 224),
)
MILLISECOND = Payload(
    "millisecond",
    """g (float[N,1024] x) => (float[N,1000] y) {
        a = Gemm(x, w)
        b = Relu(a)
        c = Gemm(b, v)
        d = Relu(c)
        y = Gemm(d, u)
    }""",
    {"w": (1024, 2048), "v": (2048, 2048), "u": (2048, 1000)},
    (1, 1024),
)
"""About 1 ms, 33 MB of weights: joining pays."""
PAYLOADS = {one.name: one for one in (SMALL, BIG)}
"""1 kB and 602 kB."""


def binary(model: str, inputs: dict[str, NDArray[Any]]) -> Request:
    """Return a request of the protocol with its binary extension, outputs binary too.

    It has an id, as one server refuses those without.
    """
    heads = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": _DATATYPES[array.dtype.name],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in inputs.items()
    ]
    head = {"id": "1", "inputs": heads, "parameters": {"binary_data_output": True}}
    text = json.dumps(head).encode()
    said = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(text)),
    }
    body = text + b"".join(array.tobytes() for array in inputs.values())
    return Request("http", body, f"/v2/models/{model}/infer", said)


def plain(model: str, inputs: dict[str, NDArray[Any]]) -> Request:
    """Return a request of the protocol in JSON."""
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": _DATATYPES[array.dtype.name],
            "data": array.ravel().tolist(),
        }
        for name, array in inputs.items()
    ]
    body = json.dumps({"id": "1", "inputs": tensors}).encode()
    said = {"Content-Type": "application/json"}
    return Request("http", body, f"/v2/models/{model}/infer", said)


def message(model: str, inputs: dict[str, NDArray[Any]]) -> Request:
    """Return a request of the protocol over gRPC with raw contents."""
    made = service_pb2.ModelInferRequest(model_name=model, id="1")
    for name, array in inputs.items():
        made.inputs.add(name=name, datatype=_DATATYPES[array.dtype.name], shape=array.shape)
        made.raw_input_contents.append(array.tobytes())
    return Request("grpc", made.SerializeToString())


def own_json(model: str, inputs: dict[str, NDArray[Any]]) -> Request:
    """Return a request in a JSON of the peer's app: LitServe has no v2."""
    (array,) = inputs.values()
    body = json.dumps({"shape": list(array.shape), "data": array.ravel().tolist()}).encode()
    return Request("http", body, f"/{model}", {"Content-Type": "application/json"})


def own_bytes(model: str, inputs: dict[str, NDArray[Any]]) -> Request:
    """Return a request whose body is the tensor alone: Ray Serve has no v2."""
    (array,) = inputs.values()
    said = {"Content-Type": "application/octet-stream"}
    return Request("http", array.tobytes(), f"/{model}", said)


FORMS: dict[str, Callable[[str, dict[str, NDArray[Any]]], Request]] = {
    "HTTP, binary": binary,
    "HTTP, JSON": plain,
    "gRPC": message,
    "HTTP, own JSON": own_json,
    "HTTP, raw bytes": own_bytes,
}
_DATATYPES = {"float32": "FP32", "int64": "INT64"}
