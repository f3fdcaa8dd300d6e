"""Hostile clients of a real server: what they are refused, and what they may hold."""

from __future__ import annotations

import http.client
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from tests.serving import serving

service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")

INFER = "/inference.GRPCInferenceService/ModelInfer"
SMALL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x) => (float[N,4] y) { y = Neg(x) }
"""
LARGE = 60 << 20


def write(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def ask_http(address: str, length: int) -> tuple[int, str]:
    """Send a head alone, and read the answer."""
    with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
        connection.putrequest("POST", "/v2/models/small/infer")
        connection.putheader("Content-Length", str(length))
        connection.putheader("Inference-Header-Content-Length", "80")
        connection.endheaders(b"x" if length < 100 else b"")
        response = connection.getresponse()
        return response.status, response.read().decode()


def ask_grpc(channel: grpc.Channel, datatype: str, content: bytes, rows: int) -> str:
    request = service_pb2.ModelInferRequest(model_name="small")
    request.inputs.add(name="x", datatype=datatype, shape=[rows, 4])
    request.raw_input_contents.append(content)
    call: Any = channel.unary_unary(INFER)
    try:
        call(request.SerializeToString(), timeout=20)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def test_a_request_larger_than_its_model_takes_is_refused_by_its_length(tmp_path: Path) -> None:
    model = write(tmp_path / "small.onnx", SMALL)
    with serving(model, options=["--on", "cpu(threads=1)"]) as server:
        began = time.monotonic()
        status, text = ask_http(server.http, LARGE)
        assert status == 413 and "--max-body" in text
        assert time.monotonic() - began < 5, "nothing of it was waited for"
        with grpc.insecure_channel(server.grpc) as channel:
            assert ask_grpc(channel, "BYTES", bytes(LARGE), 1) == "RESOURCE_EXHAUSTED"
            whole = np.ones((8, 4), np.float32).tobytes()
            assert ask_grpc(channel, "FP32", whole, 8) == "OK"
            assert ask_grpc(channel, "FP32", 2 * whole, 16) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("option", ["--max-body", "--watch", "--explicit"])
def test_what_is_said_holds_and_a_model_that_may_change_has_more(
    tmp_path: Path, option: str
) -> None:
    model = write(tmp_path / "small.onnx", SMALL)
    options = ["--on", "cpu(threads=1)", option, *(["64M"] if option == "--max-body" else [])]
    with (
        serving(model, options=options) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        assert ask_grpc(channel, "BYTES", bytes(8 << 20), 1) == "INVALID_ARGUMENT"
