"""Bodies over HTTP against the public client; wrong ones are refused, whatever they are."""

import json
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.serving.protocol.kit import (
    ARRAYS,
    http_answer,
    http_inputs,
    http_request,
    response,
    same,
)

from ortune.serving.protocol.http_body import declare_body, encode_response, parse_header_length
from ortune.serving.protocol.inference import InferRequest, OutputRequest
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused

X = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
RAW = np.array([1, 2], np.float32).tobytes()


def body(*inputs: Any, **top: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **top}).encode()


def blob(**changes: Any) -> dict[str, Any]:
    one: dict[str, Any] = {key: value for key, value in X.items() if key != "data"}
    return one | {"parameters": {"binary_data_size": 8}} | changes


@pytest.mark.parametrize("datatype", ARRAYS)
def test_every_datatype_of_the_client_in_binary(datatype: str) -> None:
    array = ARRAYS[datatype]
    found = declare_body(*http_request(http_inputs(True, x=array, y=array[:0]))).read()
    assert same(found.inputs["x"], array) and found.inputs["y"].shape == (0, 2)
    assert found.datatypes == {"x": datatype, "y": datatype} and found.binary
    answer = http_answer(*encode_response(response(id="7", o=array, n=array[:0]), found))
    assert same(answer.as_numpy("o"), array) and answer.as_numpy("n").shape == (0, 2)
    assert answer.get_response()["id"] == "7" and answer.get_response()["model_version"] == "1"


@pytest.mark.parametrize("datatype", sorted(set(ARRAYS) - {"FP16", "BF16"}))
def test_every_datatype_of_the_client_in_json(datatype: str) -> None:
    array = ARRAYS[datatype]
    asked = [tritonclient.http.InferRequestedOutput("o", binary_data=False)]
    found = declare_body(*http_request(http_inputs(False, x=array), outputs=asked)).read()
    assert same(found.inputs["x"], array)
    chunks, length = encode_response(response(o=array), found)
    assert length is None
    wanted = array if datatype != "BYTES" else np.array([["", "é"]], object)
    assert same(http_answer(chunks, length).as_numpy("o"), wanted)


def test_what_the_client_asks_for() -> None:
    asked = [
        tritonclient.http.InferRequestedOutput("a", class_count=3),
        tritonclient.http.InferRequestedOutput("b", binary_data=False),
    ]
    sent = http_request(
        http_inputs(True, x=ARRAYS["FP32"]),
        outputs=asked,
        request_id="a b",
        sequence_id=4,
        sequence_start=True,
        priority=2,
        timeout=5000,
        parameters={"mine": 0.5},
    )
    found = declare_body(*sent).read()
    assert found.outputs == (OutputRequest("a", True, 3), OutputRequest("b", False, 0))
    assert (found.id, found.timeout_us, found.binary) == ("a b", 5000, False)
    assert found.parameters == {
        "sequence_id": 4,
        "sequence_start": True,
        "sequence_end": False,
        "priority": 2,
        "mine": 0.5,
    }


def test_binary_for_one_output_and_json_for_another() -> None:
    request = InferRequest({}, (OutputRequest("b", True), OutputRequest("a", False)), binary=True)
    chunks, length = encode_response(response(b=ARRAYS["INT8"], a=ARRAYS["FP32"]), request)
    assert length == len(chunks[0]) and len(chunks) == 2
    answer = http_answer(chunks, length)
    assert same(answer.as_numpy("a"), ARRAYS["FP32"]) and same(
        answer.as_numpy("b"), ARRAYS["INT8"]
    )


def test_data_may_be_nested_in_any_way() -> None:
    for data in ([1, 2], [[1, 2]], [[1], [2]], [[[1]], [[2.0]]]):
        assert declare_body(body({**X, "data": data}), None).read().inputs["x"].tolist() == [
            [1, 2]
        ]


def test_a_large_tensor_is_no_copy_where_it_lies_aligned() -> None:
    array = np.zeros((1, 150_000), np.float32)
    sent, length = http_request(http_inputs(True, x=array))
    assert length is not None
    room = np.zeros(len(sent) + 8, np.uint8)
    held = room[-length % 8 :][: len(sent)]
    held[:] = np.frombuffer(sent, np.uint8)
    assert np.shares_memory(declare_body(held.data, length).read().inputs["x"], room)


def test_nan_is_null_in_json() -> None:
    odd = np.array([np.nan, np.inf, 1], np.float32)
    ((head,), _) = encode_response(response(o=odd), InferRequest({}))
    assert json.loads(bytes(head))["outputs"][0]["data"] == [None, None, 1.0]


def test_numbers_beyond_float32_are_infinite() -> None:
    assert declare_body(body({**X, "data": [1e39, 2**70]}), None).read().inputs["x"].tolist() == [
        [np.inf, 2.0**70]
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (b"", "should be in range"),
        (b"{", "failed to parse the request JSON buffer"),
        (b"[" * 100_000, "failed to parse the request JSON buffer"),
        (b"\xff", "failed to parse the request JSON buffer"),
        (b'{"inputs": [{"name": NaN}]}', "failed to parse the request JSON buffer"),
        (b"[]", "Unable to parse the request"),
        (b"{}", "Unable to parse 'inputs'"),
        (b'{"inputs": {}}', "Unable to parse 'inputs'"),
        (body(*[X] * 4097), "Unable to parse 'inputs'"),
        (body(1), "Unable to parse an input"),
        (body({**X, "name": 1}), "Unable to parse 'name'"),
        (body({**X, "datatype": None}), "Unable to parse 'datatype'"),
        (body({**X, "datatype": "fp32"}), "invalid datatype 'fp32'"),
        (body({**X, "shape": 4}), "Unable to parse 'shape'"),
        (body({**X, "shape": [[1], 2]}), "Unable to parse 'shape'"),
        (body({**X, "shape": [-1, 2]}), "Unable to parse 'shape'"),
        (body({**X, "shape": [2**70, 2]}), "Unable to parse 'shape'"),
        (body({**X, "shape": [2**60, 2]}), "more elements"),
        (body({**X, "shape": [2**40]}), "Shape does not match true shape"),
        (body({**X, "data": [1]}), "Shape does not match true shape"),
        (body({**X, "data": [[1, 2], 3]}), "an element is no FP32"),
        (body({**X, "data": ["1", "2"]}), "an element is no FP32"),
        (body({**X, "data": [True, False]}), "an element is no FP32"),
        (body({**X, "data": [None, 1]}), "an element is no FP32"),
        (body({**X, "data": [{}, {}]}), "an element is no FP32"),
        (body({**X, "data": 1}), "a list is wanted"),
        (body({**X, "data": "ab"}), "a list is wanted"),
        (body({**X, "datatype": "INT32", "data": [1.5, 2]}), "an element is no INT32"),
        (body({**X, "datatype": "UINT8", "data": [1, 256]}), "out of the range of UINT8"),
        (body({**X, "datatype": "UINT8", "data": [1, -1]}), "out of the range of UINT8"),
        (body({**X, "datatype": "INT64", "data": [1, 2**63]}), "out of the range of INT64"),
        (body({**X, "datatype": "BOOL", "data": [0, 1]}), "an element is no BOOL"),
        (body({**X, "datatype": "BYTES", "data": ["a", 1]}), "an element is no BYTES"),
        (body({**X, "datatype": "BYTES", "data": [["a", "b"], "ab"]}), "an element is no BYTES"),
        (body({**X, "datatype": "FP16"}), "receiving FP16 data via JSON is not supported"),
        (body({**X, "datatype": "BF16"}), "receiving BF16 data via JSON is not supported"),
        (body(X, X), "input 'x' already exists"),
        (body({**X, "parameters": {"binary_data_size": 8}}), "must set one of"),
        (body({key: value for key, value in X.items() if key != "data"}), "must set one of"),
        (body(blob()), "expecting 8 additional bytes for model 'm'"),
        (body(blob(parameters={"binary_data_size": -1})), "'binary_data_size' of input 'x'"),
        (body(blob(parameters={"binary_data_size": True})), "'binary_data_size' of input 'x'"),
        (body(blob(parameters={"binary_data_size": 2**63})), "additional bytes"),
        (body(blob(parameters=[])), "Unable to parse 'parameters'"),
        (body(blob(parameters={"shared_memory_region": "r"})), "shared memory"),
        (body(X, parameters=[]), "Unable to parse 'parameters'"),
        (body(X, parameters={"timeout": -1}), "Unable to parse 'timeout'"),
        (body(X, parameters={"timeout": 1.5}), "Unable to parse 'timeout'"),
        (body(X, parameters={"binary_data_output": 1}), "Unable to parse 'binary_data_output'"),
        (body(X, parameters={"triton_x": 1}), "reserved for Triton"),
        (body(X, parameters={"mine": []}), "parameter 'mine'"),
        (body(X, id=7), "Unable to parse 'id'"),
        (body(X, outputs={}), "Unable to parse 'outputs'"),
        (body(X, outputs=[{}]), "Unable to parse 'name'"),
        (body(X, outputs=[{"name": "o", "parameters": {"binary_data": 1}}]), "'binary_data'"),
        (body(X, outputs=[{"name": "o", "parameters": {"classification": -1}}]), "classification"),
    ],
)
def test_what_is_no_request_is_refused(given: bytes, text: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        declare_body(given, None, "m").read()
    assert text in caught.value.text and caught.value.status is RefusalKind.INVALID


def test_a_million_brackets_are_refused_before_they_are_objects() -> None:
    with pytest.raises(RequestRefused, match="brackets"):
        declare_body(body({**X, "data": [[]] * 1_000_001}), None).read()


@pytest.mark.parametrize(("size", "more"), [(8, b"x"), (0, b""), (4, b""), (8, RAW)])
def test_sizes_are_held_against_each_other(size: int, more: bytes) -> None:
    head = body(blob(parameters={"binary_data_size": size}))
    with pytest.raises(RequestRefused):
        declare_body(head + RAW + more, len(head)).read()


@pytest.mark.parametrize("length", [-1, 0, 10**6])
def test_a_wrong_length_of_the_json_is_refused(length: int) -> None:
    with pytest.raises(RequestRefused, match="inference header size should be in range"):
        declare_body(body(X), length).read()


def test_the_header_is_a_number() -> None:
    assert parse_header_length(None) is None and parse_header_length("12") == 12
    for odd in ("", "nan", "-1", "1.5", "+1", " 1", "²", "٣", "9" * 5000, "1_0"):
        with pytest.raises(RequestRefused, match="Unable to parse"):
            parse_header_length(odd)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_what_json_cannot_carry_is_refused(datatype: str) -> None:
    with pytest.raises(RequestRefused, match=f"sending {datatype} data via JSON is not supported"):
        encode_response(response(o=ARRAYS[datatype]), InferRequest({}))


def test_bytes_that_are_no_text_want_binary() -> None:
    with pytest.raises(RequestRefused, match="binary_data"):
        encode_response(response(o=np.array([b"\xff"], object)), InferRequest({}))


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["FP32", "BYTES", "x"])
)
keys = st.sampled_from(
    ["inputs", "outputs", "name", "shape", "datatype", "data", "parameters", "binary_data_size"]
)
documents = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=30
)


@settings(deadline=None)
@given(documents, st.binary(max_size=40), st.none() | st.integers(-2, 60))
def test_nothing_but_a_refusal_escapes(document: Any, tail: bytes, length: int | None) -> None:
    try:
        found = declare_body(json.dumps(document).encode() + tail, length).read()
    except RequestRefused:
        return
    assert isinstance(found, InferRequest)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "name": st.just("x"),
            "shape": st.lists(st.integers(-1, 3), max_size=3),
            "datatype": st.sampled_from([*ARRAYS, "FP31"]),
        },
        optional={"data": documents, "parameters": documents},
    ),
    st.binary(max_size=40),
)
def test_an_input_is_refused_or_fits_its_shape(one: dict[str, Any], tail: bytes) -> None:
    head = body(one)
    try:
        found = declare_body(head + tail, len(head)).read()
    except RequestRefused:
        return
    assert found.inputs["x"].shape == tuple(one["shape"])
