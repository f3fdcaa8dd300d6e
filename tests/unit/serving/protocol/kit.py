"""Requests and answers as the public clients make and read them."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from ortune.serving.protocol.datatypes import find_datatype
from ortune.serving.protocol.inference import InferResponse, Output

ARRAYS: Mapping[str, NDArray[Any]] = {
    "BOOL": np.array([[True, False]]),
    "UINT8": np.array([[0, 255]], np.uint8),
    "UINT16": np.array([[0, 65535]], np.uint16),
    "UINT32": np.array([[0, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 127]], np.int8),
    "INT16": np.array([[-32768, 32767]], np.int16),
    "INT32": np.array([[-(2**31), 2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63), 2**63 - 1]], np.int64),
    "FP16": np.array([[0.5, -2]], np.float16),
    "FP32": np.array([[0.1, -3e38]], np.float32),
    "FP64": np.array([[0.1, -1e300]]),
    "BF16": np.array([[0.5, -2]], ml_dtypes.bfloat16),
    "BYTES": np.array([[b"", "é".encode()]], object),
}
"""Datatype -> [1, 2], with the ends of its range."""


def http_inputs(binary: bool, **arrays: NDArray[Any]) -> list[Any]:
    """Return inputs of the client over HTTP."""
    found = []
    for name, array in arrays.items():
        one = tritonclient.http.InferInput(name, list(array.shape), find_datatype(array.dtype))
        found.append(one.set_data_from_numpy(array, binary_data=binary))
    return found


def http_request(*args: Any, **more: Any) -> tuple[bytes, int | None]:
    """Return body and length of its JSON as the client sends them."""
    return tritonclient.http.InferenceServerClient.generate_request_body(*args, **more)


def http_answer(chunks: list[bytes | memoryview], length: int | None) -> Any:
    """Return an answer as the client reads it."""
    return tritonclient.http.InferenceServerClient.parse_response_body(
        b"".join(chunks), header_length=length
    )


def grpc_request(model: str = "m", **arrays: NDArray[Any]) -> Any:
    """Return a message as the client sends it."""
    made = service_pb2.ModelInferRequest(model_name=model)
    for name, array in arrays.items():
        one = tritonclient.grpc.InferInput(name, list(array.shape), find_datatype(array.dtype))
        one.set_data_from_numpy(array)
        made.inputs.append(one._get_tensor())
        made.raw_input_contents.append(one._get_content())
    return made


def grpc_answer(body: bytes) -> Any:
    """Return a serialized answer as the client reads it."""
    return tritonclient.grpc.InferResult(service_pb2.ModelInferResponse.FromString(body))


def response(id: str = "", **arrays: NDArray[Any]) -> InferResponse:
    """Return an answer with these outputs."""
    outputs = [Output(name, find_datatype(array.dtype), array) for name, array in arrays.items()]
    return InferResponse("m", "1", id, outputs)


def same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays are the same to the last bit."""
    if one.dtype == object:
        return one.shape == other.shape and one.tolist() == other.tolist()
    return (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())
