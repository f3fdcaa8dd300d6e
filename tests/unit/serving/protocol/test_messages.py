"""gRPC messages against those of the public client; wrong ones are refused, whatever they are."""

from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pool
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.serving.protocol.kit import ARRAYS, grpc_answer, grpc_request, response, same
from tools import open_inference
from tritonclient.grpc import service_pb2

from ortune.serving.protocol import messages
from ortune.serving.protocol.datatypes import to_raw
from ortune.serving.protocol.inference import InferResponse, OutputRequest
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused

TYPED: dict[str, str] = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
LARGE = np.arange(150_000, dtype=np.float32).reshape(1, -1)


def typed(field: str, values: Any, datatype: str = "FP32", shape: tuple[int, ...] = (1, 2)) -> Any:
    made = service_pb2.ModelInferRequest(model_name="m")
    one = made.inputs.add(name="x", datatype=datatype, shape=shape)
    one.contents.SetInParent()
    if field:
        getattr(one.contents, field).extend(values)
    return made


def test_the_descriptors_are_those_of_the_client() -> None:
    assert open_inference.PLACE.read_bytes() == open_inference.descriptors()


def test_the_pool_is_private() -> None:
    ours = messages.find_message_class("ModelInferRequest")
    assert ours.DESCRIPTOR.file.pool is not descriptor_pool.Default()
    assert len(messages.list_methods()) == 20
    kinds = {name: (one.input_type.name, one.output_type.name) for name, one in _methods()}
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert kinds == {
        one.name: (one.input_type.name, one.output_type.name) for one in service.methods
    }


def _methods() -> Any:
    return messages.list_methods().items()


@pytest.mark.parametrize("datatype", ARRAYS)
def test_every_datatype_of_the_client(datatype: str) -> None:
    array = ARRAYS[datatype]
    sent = grpc_request(x=array, y=array[:0])
    sent.id, sent.model_version = "7", "3"
    found = messages.deserialize_request(sent.SerializeToString())
    assert (found.model, found.version, found.request.id) == ("m", "3", "7")
    assert same(found.request.inputs["x"], array) and found.request.binary
    assert found.request.inputs["y"].shape == (0, 2)
    assert found.request.datatypes == {"x": datatype, "y": datatype}
    made = response(id="7", o=array, n=array[:0])
    answer = grpc_answer(messages.serialize_response(made))
    assert same(answer.as_numpy("o"), array) and answer.as_numpy("n").shape == (0, 2)
    assert answer.get_response().id == "7" and answer.get_response().model_name == "m"


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents(datatype: str) -> None:
    array = ARRAYS[datatype]
    sent = typed(TYPED[datatype], array.ravel().tolist(), datatype)
    assert same(messages.deserialize_request(sent.SerializeToString()).request.inputs["x"], array)


def test_no_elements_need_no_contents() -> None:
    body = typed("", (), shape=(0, 2)).SerializeToString()
    assert messages.deserialize_request(body).request.inputs["x"].shape == (0, 2)


def test_large_tensors_are_read_alike() -> None:
    sent = {"x": LARGE, "y": ARRAYS["BYTES"], "z": np.zeros((3, 3), np.float16)}
    body = grpc_request(**sent).SerializeToString()
    found = messages.deserialize_request(body).request.inputs
    for name, array in sent.items():
        assert same(found[name], array) and found[name].flags.aligned


def test_large_answers_are_written_alike() -> None:
    made = response(id="1", o=LARGE, s=ARRAYS["BYTES"])
    back = service_pb2.ModelInferResponse.FromString(messages.serialize_response(made))
    plain = service_pb2.ModelInferResponse(model_name="m", model_version="1", id="1")
    for output in made.outputs:
        shape = output.array.shape
        plain.outputs.add(name=output.name, datatype=output.datatype, shape=shape)
        plain.raw_output_contents.append(bytes(to_raw(output.array)))
    assert back == plain
    streamed = messages.serialize_response(made, streamed=True)
    assert service_pb2.ModelStreamInferResponse.FromString(streamed).infer_response == back


def test_parameters_both_ways() -> None:
    sent = grpc_request(x=ARRAYS["FP32"])
    sent.parameters["timeout"].int64_param = 5000
    sent.parameters["sequence_id"].string_param = "s"
    sent.parameters["rate"].double_param = 0.5
    sent.parameters["triton_enable_empty_final_response"].bool_param = True
    sent.outputs.add(name="o").parameters["classification"].int64_param = 3
    sent.outputs.add(name="p")
    found = messages.deserialize_request(sent.SerializeToString()).request
    assert found.timeout_us == 5000
    assert found.parameters == {
        "sequence_id": "s",
        "rate": 0.5,
        "triton_enable_empty_final_response": True,
    }
    assert found.outputs == (OutputRequest("o", True, 3), OutputRequest("p", True, 0))
    told = {"a": True, "b": 3, "c": 0.5, "d": "x"}
    body = messages.serialize_response(InferResponse("m", "1", "", [], told))
    made = service_pb2.ModelInferResponse.FromString(body)
    assert made.parameters["a"].bool_param and made.parameters["b"].int64_param == 3
    assert made.parameters["c"].double_param == 0.5 and made.parameters["d"].string_param == "x"


def _both() -> Any:
    made = grpc_request(x=ARRAYS["FP32"])
    made.inputs[0].contents.fp32_contents.extend([1, 2])
    return made


def _changed(name: str, value: Any) -> Any:
    made = grpc_request(x=ARRAYS["FP32"])
    setattr(made.inputs[0], name, value)
    return made


def _shaped(*shape: int) -> Any:
    made = grpc_request(x=ARRAYS["FP32"])
    made.inputs[0].shape[:] = shape
    return made


def _told(name: str, choice: str, value: Any, where: str = "") -> Any:
    made = grpc_request(x=ARRAYS["FP32"])
    holder = {"": made, "input": made.inputs[0], "output": made.outputs.add(name="o")}[where]
    setattr(holder.parameters[name], choice, value)
    return made


def _raw(*raw: bytes) -> Any:
    made = grpc_request(x=ARRAYS["FP32"])
    made.raw_input_contents[:] = raw
    return made


WRONG = {
    "both": (_both(), "contents field must not be specified when using raw_input_contents"),
    "no data": (_raw(), "unable to find data for input tensor 'x' for model 'm' in request."),
    "more data": (_raw(bytes(8), b""), "unexpected additional input data for model 'm'"),
    "short": (_raw(bytes(7)), "Expected 8, got 7"),
    "unknown": (_changed("datatype", "FP31"), "invalid datatype"),
    "negative": (_shaped(-1, 2), "Unable to parse 'shape'"),
    "huge": (_shaped(2**40, 2**40), "more elements than can be"),
    "nothing of much": (_shaped(0, 2**62), "more elements than can be"),
    "many dimensions": (_shaped(*[1] * 1000), "1,000 dimensions"),
    "negative timeout": (_told("timeout", "int64_param", -1), "Unable to parse 'timeout'"),
    "timeout of text": (_told("timeout", "string_param", "1"), "Unable to parse 'timeout'"),
    "reserved": (_told("triton_x", "bool_param", True), "reserved for Triton"),
    "shared": (_told("shared_memory_region", "string_param", "r", "input"), "shared memory"),
    "shared out": (_told("shared_memory_region", "string_param", "r", "output"), "shared memory"),
    "classes": (_told("classification", "int64_param", -1, "output"), "classification"),
    "another type": (typed("int_contents", [1, 2]), "in int_contents, expected datatype 'FP32'"),
    "too few": (typed("fp32_contents", [1]), "elements 1 for inference input 'x'"),
    "none at all": (typed("", ()), "elements 0 for inference input 'x'"),
    "too large": (typed("uint_contents", [0, 256], "UINT8"), "out of the range of UINT8"),
    "too small": (typed("int_contents", [0, -129], "INT8"), "out of the range of INT8"),
    "half": (typed("fp32_contents", [1, 2], "FP16"), "expected datatype 'FP16'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused(name: str) -> None:
    sent, text = WRONG[name]
    with pytest.raises(RequestRefused) as caught:
        _ = messages.deserialize_request(sent.SerializeToString()).request
    assert text in caught.value.text and caught.value.status is RefusalKind.INVALID


def test_a_name_twice_is_refused() -> None:
    sent = grpc_request(x=ARRAYS["FP32"])
    sent.inputs.append(sent.inputs[0])
    sent.raw_input_contents.append(sent.raw_input_contents[0])
    with pytest.raises(RequestRefused, match="input 'x' already exists"):
        _ = messages.deserialize_request(sent.SerializeToString()).request


def test_a_parameter_without_a_value_is_refused() -> None:
    sent = grpc_request(x=ARRAYS["FP32"])
    sent.parameters["mine"].SetInParent()
    with pytest.raises(RequestRefused, match="parameter 'mine'"):
        _ = messages.deserialize_request(sent.SerializeToString()).request


@pytest.mark.parametrize("size", [0, 100, 32 << 10, 40 << 10])
def test_other_bytes_are_refused(size: int) -> None:
    for octet in (0, 0x0B, 0x3A, 0x7F, 0xFF):
        body = bytes([octet]) * size
        if not size:
            assert not messages.deserialize_request(body).request.inputs
            continue
        with pytest.raises(RequestRefused):
            messages.deserialize_request(body)


@pytest.mark.parametrize("holder", ["inputs", "outputs", "parameters"])
def test_more_parameters_than_are_parsed_at_once_are_refused(holder: str) -> None:
    request = messages.find_message_class("ModelInferRequest")()
    tensors = getattr(request, holder) if holder != "parameters" else None
    for at in range(40 if tensors is not None else 1):
        one = request if tensors is None else tensors.add(name=str(at))
        for number in range(1000 if tensors is not None else 10_000):
            one.parameters[f"{number:0100}"].bool_param = True
    with pytest.raises(RequestRefused, match="bytes beside its data"):
        messages.deserialize_request(request.SerializeToString())


def test_a_flood_of_empty_fields_is_refused() -> None:
    with pytest.raises(RequestRefused, match="fields"):
        messages.deserialize_request(b"\x2a\0" * 100_000)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_nothing_but_a_refusal_escapes(body: bytes) -> None:
    for given_ in (body, body + b"\x3a\x80\x80\x02" + bytes(32 << 10)):
        try:
            _ = messages.deserialize_request(given_).request
        except RequestRefused:
            continue


@settings(deadline=None)
@given(st.data())
def test_the_walk_over_the_fields_sees_what_protobuf_sees(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 300), max_size=4))
    sent = service_pb2.ModelInferRequest(model_name="m" * data.draw(st.integers(0, 300)))
    for place, size in enumerate(sizes):
        sent.inputs.add(name=str(place), datatype="UINT8", shape=[size])
        sent.raw_input_contents.append(bytes([place]) * size)
    rest, raw, _ = messages.split_raw(sent.SerializeToString())
    assert [bytes(one) for one in raw] == list(sent.raw_input_contents)
    sent.ClearField("raw_input_contents")
    assert service_pb2.ModelInferRequest.FromString(rest) == sent
