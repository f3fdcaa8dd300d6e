"""What a request declares is checked before its data is parsed, and that in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.unit.serving.server.repository.toys import TEXTS, one, refusal, write

from ortune.serving.protocol import http_body, inference, messages
from ortune.serving.protocol.inference import InferRequest
from ortune.serving.protocol.status import RefusalKind, RequestRefused
from ortune.serving.server.repository.served import count_held_bytes

COUNT = 20_000
TEXT = b"\1\0\0\0a"


def http(name: str, rows: int) -> inference.DeclaredRequest:
    """A body with a large BYTES tensor behind its JSON."""
    entry = {
        "name": name,
        "datatype": "BYTES",
        "shape": [rows],
        "parameters": {"binary_data_size": len(TEXT) * COUNT},
    }
    head = json.dumps({"inputs": [entry]}).encode()
    return http_body.declare_body(head + TEXT * COUNT, len(head), "toy")


def grpc(name: str, rows: int) -> inference.DeclaredRequest:
    request = messages.find_message_class("ModelInferRequest")(model_name="toy")
    request.inputs.add(name=name, datatype="BYTES", shape=[rows])
    request.raw_input_contents.append(TEXT * COUNT)
    return messages.deserialize_request(request.SerializeToString()).declared


def typed(name: str, rows: int) -> inference.DeclaredRequest:
    request = messages.find_message_class("ModelInferRequest")(model_name="toy")
    tensor = request.inputs.add(name=name, datatype="BYTES", shape=[rows])
    tensor.contents.bytes_contents.extend([b"abcd"] * COUNT)
    return messages.deserialize_request(request.SerializeToString()).declared


BOTH = pytest.mark.parametrize("declare", [http, grpc, typed])


@BOTH
def test_a_wrong_type_is_refused_before_its_data_is_parsed(
    declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(declared: inference.DeclaredRequest) -> InferRequest:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(inference.DeclaredRequest, "read", parse)

    async def run() -> tuple[RefusalKind, str]:
        repository = one(write(tmp_path / "toy.onnx"))
        await repository.start()
        try:
            return await refusal(repository.find_model("toy").read(declare("x", 4)))
        finally:
            await repository.drain(5)

    kind, text = asyncio.run(run())
    assert kind is RefusalKind.INVALID and "data-type is 'BYTES'" in text


@BOTH
def test_what_fits_is_parsed_in_a_thread(
    declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    read = inference.DeclaredRequest.read

    def read_noting(self: inference.DeclaredRequest) -> InferRequest:
        threads.add(threading.current_thread() is threading.main_thread())
        return read(self)

    monkeypatch.setattr(inference.DeclaredRequest, "read", read_noting)

    async def run() -> InferRequest:
        repository = one(write(tmp_path / "toy.onnx", text=TEXTS), limits=None)
        await repository.start()
        model = repository.find_model("toy")
        model.max_batch = 0
        try:
            return await model.read(declare("said", COUNT))
        finally:
            await repository.drain(5)

    array = asyncio.run(run()).inputs["said"]
    assert threads == {False}
    assert array.shape == (COUNT,) and len(set(array.tolist())) == 1
    assert count_held_bytes(array) > 41 * COUNT


def test_typed_texts_beyond_the_shape_are_not_made() -> None:
    declared = typed("said", 3)
    with pytest.raises(RequestRefused, match="more than 3"):
        declared.read()


def test_json_larger_than_a_model_can_take_is_refused_by_its_length(tmp_path: Path) -> None:
    async def run() -> None:
        repository = one(write(tmp_path / "toy.onnx"))
        await repository.start()
        model = repository.find_model("toy")
        model.check_json_size(60_000)
        with pytest.raises(RequestRefused, match="10000000 bytes of JSON are more than any"):
            model.check_json_size(10_000_000)
        await repository.drain(5)

    asyncio.run(run())


def test_a_declared_tensor_takes_no_memory() -> None:
    array = inference.declare_tensor("x", "FP32", [1 << 30, 1 << 10])
    assert array.shape == (1 << 30, 1 << 10) and array.strides == (0, 0)
    assert array.dtype == np.float32
