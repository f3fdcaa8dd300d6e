"""One request asked once, and its answer as an array: what answers wrongly is not timed."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from benchmarks.serving.load import METHOD, Request

_HEADER = "Inference-Header-Content-Length"


def demand(request: Request, address: str, expected: NDArray[np.float32]) -> None:
    """Ask once and compare.

    Raises:
        RuntimeError: The answer is none, or another.
    """
    found = ask(request, address)
    if found.size != expected.size or not np.allclose(found, expected.ravel(), 1e-4, 1e-4):
        raise RuntimeError(f"it answers {found[:4]}, not {expected.ravel()[:4]}")


def expected(model: Path, array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what onnxruntime itself answers."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    found: NDArray[np.float32] = session.run(None, {"x": array})[0]
    return found


def ask(request: Request, address: str) -> NDArray[np.float32]:
    """Return the first output of an answer, flat.

    Raises:
        RuntimeError: There is none.
    """
    if request.protocol == "grpc":
        return _over_grpc(request, address)
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("POST", request.path, request.body, dict(request.headers))
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {body[:500]!r}")
    if length := response.getheader(_HEADER):
        body = body[int(length) :]
    elif not (response.getheader("Content-Type") or "").startswith("application/octet-stream"):
        head = json.loads(body)
        data = head["data"] if "data" in head else head["outputs"][0]["data"]
        return np.array(data, np.float32).ravel()
    return np.frombuffer(body, np.float32)


def _over_grpc(request: Request, address: str) -> NDArray[np.float32]:
    limit = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(address, options=limit) as channel:
        call = channel.unary_unary(
            METHOD, response_deserializer=service_pb2.ModelInferResponse.FromString
        )
        try:
            answer = call(request.body, timeout=60, metadata=tuple(request.headers.items()))
        except grpc.RpcError as error:
            raise RuntimeError(f"{error.code().name}: {error.details()}") from None
    if answer.raw_output_contents:
        return np.frombuffer(answer.raw_output_contents[0], np.float32)
    return np.array(answer.outputs[0].contents.fp32_contents, np.float32)
