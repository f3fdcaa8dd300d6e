"""Requests as bytes: the codec of the server and the public client read them, and theirs are."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ortune.core.errors import BadData, BadSettings
from ortune.serving.load_testing import bodies
from ortune.serving.load_testing.requests import ServerUrl
from ortune.serving.protocol import http_body, messages
from ortune.serving.protocol.inference import InferRequest, InferResponse, Output

HERE = ServerUrl.parse("http://127.0.0.1:8000")
SAMPLE: dict[str, Any] = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([[1], [-2]], np.int64),
    "c": np.array([["ä", "longer"]]),
    "d": np.array([True, False]),
    "e": np.array([1.5], ml_dtypes.bfloat16),
}


def same(request: InferRequest) -> None:
    assert list(request.inputs) == list(SAMPLE)
    for name, array in request.inputs.items():
        wanted = SAMPLE[name]
        assert array.shape == wanted.shape
        if array.dtype == object:
            assert [one.decode() for one in array.flat] == list(wanted.flat)
        else:
            np.testing.assert_array_equal(array, wanted)


def test_over_http() -> None:
    head, _, body = bodies.http_request(HERE, "m x", "3", SAMPLE, "secret").partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    found = dict(header.split(": ") for header in headers)
    assert line == "POST /v2/models/m%20x/versions/3/infer HTTP/1.1"
    assert found["Authorization"] == "Bearer secret"
    assert int(found["Content-Length"]) == len(body)
    request = http_body.declare_body(body, int(found["Inference-Header-Content-Length"])).read()
    same(request)
    assert request.binary


def test_over_grpc() -> None:
    kind = messages.find_message_class("ModelInferRequest")
    made = kind.FromString(bodies.grpc_request("m", "3", SAMPLE))
    assert (made.model_name, made.model_version) == ("m", "3")
    same(messages.deserialize_request(made.SerializeToString()).request)


ANSWER = InferResponse(
    "m",
    "1",
    "",
    [
        Output("y", "FP32", np.array([[1.5, -2]], np.float32)),
        Output("t", "BYTES", np.array([["ä", "b"]], object)),
    ],
)


@pytest.mark.parametrize("binary", [True, False])
def test_answers_over_http(binary: bool) -> None:
    chunks, head = http_body.encode_response(ANSWER, InferRequest({}, binary=binary))
    found = bodies.read_answer("http", b"".join(chunks), -1 if head is None else head)
    np.testing.assert_array_equal(found["y"], [[1.5, -2]])
    assert found["t"].tolist() == [["ä", "b"]]


def test_answers_over_grpc() -> None:
    found = bodies.read_answer("grpc", messages.serialize_response(ANSWER))
    np.testing.assert_array_equal(found["y"], [[1.5, -2]])
    assert found["t"].tolist() == [["ä", "b"]]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", json.dumps({"outputs": [{"name": "y"}]}).encode()]
)
def test_an_answer_that_is_none(body: bytes) -> None:
    with pytest.raises(BadData, match="cannot be read"):
        bodies.read_answer("http", body, -1)


def test_samples_are_stacked_in_turn() -> None:
    rows: list[Any] = [{"x": np.full((1, 2), k, np.float32)} for k in range(3)]
    found = bodies.stack_batches(rows, 2)
    assert [one["x"][:, 0].tolist() for one in found] == [[0, 1], [2, 0]]
    assert bodies.stack_batches(rows, 0) == rows
    with pytest.raises(BadData, match="cannot be joined"):
        bodies.stack_batches([{"x": np.zeros((1, 2))}, {"x": np.zeros((1, 3))}], 2)


def test_inputs_as_a_server_tells_them() -> None:
    told = [
        {"name": "x", "datatype": "FP16", "shape": [-1, 4]},
        {"name": "t", "datatype": "BYTES", "shape": [1]},
    ]
    found = bodies.input_specs({"inputs": told})
    assert [(one.name, one.dtype, one.shape) for one in found] == [
        ("x", "float16", (None, 4)),
        ("t", "str", (1,)),
    ]


@pytest.mark.parametrize(
    ("text", "spelled", "tls"),
    [
        ("http://localhost:8000", "http://localhost:8000", False),
        ("grpcs://host.example", "grpcs://host.example:443", True),
        ("grpc://[::1]:9", "grpc://[::1]:9", False),
        ("http://h/", "http://h:8000", False),
    ],
)
def test_addresses(text: str, spelled: str, tls: bool) -> None:
    found = ServerUrl.parse(text)
    assert (str(found), found.tls) == (spelled, tls)


@pytest.mark.parametrize(
    "text", ["ftp://h:1", "http://", "http://h:99999", "http://h/v2/models/x", "h:8000", "://"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(BadSettings, match="no address"):
        ServerUrl.parse(text)
