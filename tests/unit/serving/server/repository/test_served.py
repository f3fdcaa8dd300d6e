"""One model behind the protocol: what it answers, what it refuses, and what waits."""

import asyncio
import gc
import io
import json
import threading
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.unit.bundle.engine.scripted import Doubling
from tests.unit.serving.server.repository import toys
from tests.unit.serving.server.repository.toys import (
    TEXTS,
    TIMES,
    asks,
    behind,
    holding,
    output,
    refusal,
    settled,
    started,
    write,
)

from ortune.bundle.engine.call import PictureInput, prepare_checks
from ortune.bundle.engine.load import load_engine
from ortune.core.facts import TensorSpec
from ortune.core.preprocess import Preprocess
from ortune.serving.protocol import http_body, inference, messages
from ortune.serving.protocol.datatypes import find_datatype
from ortune.serving.protocol.inference import InferRequest, OutputRequest
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused
from ortune.serving.server.client_limits import CLIENT, identify_client
from ortune.serving.server.repository.repository import Repository
from ortune.serving.server.repository.served import (
    Limits,
    MemoryBudget,
    ServedModel,
    Timeouts,
    count_held_bytes,
)
from ortune.serving.server.repository.sources import ModelSource

SAME = """<ir_version: 10, opset_import: ["": 19]>
g (KIND[N,3] x) => (KIND[N,3] y) { y = Identity(x) }
"""
PICTURES = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,3,4,6] image) => (float[N,3] mean) {
  mean = ReduceMean<axes = [2, 3], keepdims = 0>(image)
}
"""


async def served(path: Path, **how: Any) -> ServedModel:
    repository = Repository([ModelSource("toy", path)], lambda path: load_engine(path, **how))
    await repository.start()
    return repository.find_model("toy")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return toys.write(tmp_path / "toy.onnx", 3)


@pytest.fixture
def session() -> Doubling:
    return Doubling()


async def test_answers_are_the_engine_s(path: Path) -> None:
    model = await served(path)
    for rows in (1, 3, 8):
        request = asks(0.25, rows, id="seven")
        response = await model.infer(request)
        with load_engine(path) as engine:
            expected = engine(**request.inputs)
        assert [one.name for one in response.outputs] == ["y", "most"]
        assert [one.datatype for one in response.outputs] == ["FP32", "INT64"]
        for answer in response.outputs:
            np.testing.assert_array_equal(answer.array, expected[answer.name])
        assert (response.model, response.version, response.id) == ("toy", "1", "seven")
        assert (response.rows, response.parameters) == (rows, {})
        assert response.infer_ns > 0


async def test_only_what_is_asked_for_comes_in_its_order(path: Path) -> None:
    response = await (await served(path)).infer(asks(1, 1, "most", "y"))
    assert [one.name for one in response.outputs] == ["most", "y"]


async def test_classes_in_the_place_of_scores(path: Path) -> None:
    request = InferRequest(asks(1, 2).inputs, (OutputRequest("y", classes=2),))
    (found,) = (await (await served(path)).infer(request)).outputs
    assert (found.name, found.datatype) == ("y", "BYTES")
    assert found.array.tolist() == [[b"12.000000:3", b"9.000000:2"]] * 2


@pytest.mark.parametrize(
    ("told", "dtype"),
    [
        *((name, np.dtype(name)) for name in ("bool", "float16", "uint8")),
        ("bfloat16", np.dtype(ml_dtypes.bfloat16)),
    ],
)
async def test_every_number_comes_back_as_it_went(tmp_path: Path, told: str, dtype: Any) -> None:
    path = toys.write(tmp_path / "toy.onnx", text=SAME.replace("KIND", told))
    model = await served(path)
    given = np.arange(6).reshape(2, 3).astype(dtype)
    request = InferRequest({"x": given}, (OutputRequest("y", binary=True),))
    (found,) = (await model.infer(request)).outputs
    assert found.array.dtype == given.dtype
    assert found.datatype == find_datatype(given.dtype)
    np.testing.assert_array_equal(found.array, given)


async def test_what_does_not_fit_is_refused_before_it_waits(path: Path) -> None:
    model = await served(path)
    for request, words in (
        (InferRequest({"x": np.zeros((1, 5), np.float32)}), "Expected [-1,4], got [1,5]"),
        (asks(1, 9), "batch-size must be <= 8"),
        (asks(1, 1, "z"), "unexpected inference output 'z'"),
    ):
        status, text = await refusal(model.infer(request))
        assert status is RefusalKind.INVALID
        assert words in text
    assert not model.counters.runs
    assert model.counters.failed == {"OTHER": 3}


async def test_a_refused_request_is_let_go_without_the_collector(path: Path) -> None:
    model = await served(path)
    gc.collect()
    gc.disable()  # a cycle of an error and the frame that raised it would stay
    try:
        for rows in (9, 10, 11):
            data = np.zeros((rows, 4), np.float32)
            kept = weakref.ref(data)
            assert (await refusal(model.infer(InferRequest({"x": data}))))[0]
            del data
            assert kept() is None
    finally:
        gc.enable()


async def test_where_nothing_is_joined_requests_have_any_number_of_rows(path: Path) -> None:
    model = await served(path, max_batch=1)
    assert output(await model.infer(asks(1, 100))).shape == (100, 4)
    config = model.build_config()
    assert config["max_batch_size"] == 0
    assert config["input"][0]["dims"] == [-1, 4]


async def test_what_it_says_of_itself(path: Path) -> None:
    model = await served(path, max_batch=4, max_delay_us=100)
    told = model.build_metadata()
    assert (told["name"], told["versions"]) == ("toy", ["1"])
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    config = model.build_config()
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, [4])
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 100


async def test_texts_go_in_as_bytes_and_come_out(tmp_path: Path) -> None:
    path = toys.write(tmp_path / "toy.onnx", text=toys.TEXTS)
    model = await served(path)
    given = np.array(["häh".encode(), b"", b"two words"], object)
    (found,) = (await model.infer(InferRequest({"said": given}))).outputs
    assert found.datatype == "BYTES"
    assert found.array.tolist() == ["häh", "", "two words"]
    broken = InferRequest({"said": np.array([b"\xff"], object)})
    assert (await refusal(model.infer(broken)))[0] is RefusalKind.INVALID


async def test_requests_are_joined_and_each_gets_its_own(
    tmp_path: Path, session: Doubling
) -> None:
    _, model = await holding(session, tmp_path)
    first = await behind(model, session)
    tasks = [asyncio.create_task(model.infer(asks(n))) for n in range(6)]
    await settled(lambda: model.counters.waiting == 6)
    session.go.set()
    found = await asyncio.gather(first, *tasks)
    assert [output(one)[0, 0] for one in found] == [2000, 0, 2, 4, 6, 8, 10]
    assert found[1].queue_ns > 0
    assert [len(one) for one in session.seen] == [1, 6]


async def test_a_full_queue_says_so(tmp_path: Path, session: Doubling) -> None:
    _, model = await holding(session, tmp_path, max_queue=2)
    first = await behind(model, session)
    tasks = [asyncio.create_task(model.infer(asks(n))) for n in range(2)]
    await settled(lambda: model.counters.waiting == 2)
    refused = await refusal(model.infer(asks(9)))
    assert refused == (RefusalKind.UNAVAILABLE, "Exceeds maximum queue size")
    session.go.set()
    await asyncio.gather(first, *tasks)
    assert (await model.infer(asks(4))).rows == 1
    assert model.counters.failed == {"REJECTED": 1}


@pytest.mark.parametrize(("own", "default"), [(20_000, 30.0), (0, 0.02)])
async def test_a_request_out_of_time_leaves_the_queue(
    tmp_path: Path, session: Doubling, own: int, default: float
) -> None:
    _, model = await holding(session, tmp_path, Limits(timeout_s=default))
    first = await behind(model, session)
    late = await refusal(model.infer(asks(5, timeout_us=own)))
    assert late == (RefusalKind.TIMED_OUT, "Request timeout expired")
    assert model.counters.waiting == 0
    session.go.set()
    await first
    assert model.counters.failed == {"REJECTED": 1}
    assert len(session.seen) == 1


async def test_a_request_whose_time_is_not_over_is_answered(
    tmp_path: Path, session: Doubling
) -> None:
    _, model = await holding(session, tmp_path)
    first = await behind(model, session)
    second = asyncio.create_task(model.infer(asks(5, timeout_us=20_000_000)))
    await asyncio.sleep(0.1)
    session.go.set()
    assert output(await second)[0, 0] == 10
    await first


async def test_a_caller_that_gives_up_leaves_the_queue(tmp_path: Path, session: Doubling) -> None:
    _, model = await holding(session, tmp_path)
    first = await behind(model, session)
    task = asyncio.create_task(model.infer(asks(5)))
    await settled(lambda: model.counters.waiting == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.counters.waiting == 0
    session.go.set()
    await first
    assert model.counters.failed == {"CANCELED": 1}
    assert model.running == 0
    assert len(session.seen) == 1


async def test_what_the_model_refuses_fails_alone(tmp_path: Path, session: Doubling) -> None:
    _, model = await holding(session, tmp_path)
    first = await behind(model, session)
    values = (3, -3, 4)
    tasks = [asyncio.create_task(model.infer(asks(value))) for value in values]
    await settled(lambda: model.counters.waiting == 3)
    session.go.set()
    found = await asyncio.gather(first, *tasks, return_exceptions=True)
    assert isinstance(found[2], RequestRefused)
    assert found[2].status is RefusalKind.INVALID
    assert "negative" in found[2].text
    assert [output(found[n])[0, 0] for n in (1, 3)] == [6, 8]
    assert model.counters.failed == {"BACKEND": 1}


async def test_data_of_waiting_requests_is_bounded(tmp_path: Path, session: Doubling) -> None:
    """A row has 16 bytes, and 16 as an answer, which is held until it is sent."""
    _, model = await holding(session, tmp_path, Limits(max_held=72))
    first = await behind(model, session)
    second = asyncio.create_task(model.infer(asks(1, 2)))
    await settled(lambda: model.counters.waiting == 1)
    assert (await refusal(model.infer(asks(2, 2))))[0] is RefusalKind.UNAVAILABLE
    session.go.set()
    for answer in await asyncio.gather(first, second):
        assert answer.held_bytes == 16 * answer.rows
        model._context.memory.release_bytes(answer.held_bytes)
    assert (await model.infer(asks(2, 8))).rows == 8, "alone, one may have more"


def picture(kind: str) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (7, 9, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def huge() -> bytes:
    """A few kB that claim 81 million pixels."""
    file = io.BytesIO()
    Image.new("1", (9000, 9000)).save(file, "PNG")
    return file.getvalue()


async def seeing(folder: Path) -> ServedModel:
    model = await served(toys.write(folder / "toy.onnx", text=PICTURES))
    spec = TensorSpec("image", "float32", ("N", 3, 4, 6))
    model.call.pictures = PictureInput(
        Preprocess(resize=(4, 6), mean=(0.5, 0.25, 0.0), dtype="float32"),
        prepare_checks([spec])["image"],
    )
    return model


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
async def test_pictures_are_prepared_as_the_engine_does(tmp_path: Path, kind: str) -> None:
    model = await seeing(tmp_path)
    body = picture(kind)
    found = output(await model.infer_picture(body, "five"), "mean")
    expected = model.call(image=Image.open(io.BytesIO(body)))["mean"]
    np.testing.assert_array_equal(found, expected)
    assert model.counters.answered == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"no picture", picture("GIF"), picture("PNG")[:60], huge()],
    ids=["nothing", "text", "gif", "torn", "huge"],
)
async def test_bodies_that_are_no_picture_are_refused(tmp_path: Path, body: bytes) -> None:
    model = await seeing(tmp_path)
    assert (await refusal(model.infer_picture(body)))[0] is RefusalKind.INVALID
    assert model.counters.failed == {"OTHER": 1}


async def test_a_model_that_knows_no_pictures_says_so(path: Path) -> None:
    model = await served(path)
    assert (await refusal(model.infer_picture(picture("PNG"))))[0] is RefusalKind.UNSUPPORTED


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_a_client_is_an_address_or_a_network_of_version_6(host: str, client: str) -> None:
    assert identify_client(host) == client


async def test_a_client_has_half_of_the_memory_and_one_request_whatever_it_takes() -> None:
    memory = MemoryBudget(100)
    memory.reserve_bytes(10)  # nobody's
    CLIENT.set("a")
    memory.reserve_bytes(60)
    with pytest.raises(RequestRefused, match="this client has too much under way"):
        memory.reserve_bytes(1)
    with pytest.raises(RequestRefused, match="too many large requests"):
        memory.hold_part(1, alone=50)
    memory.release_bytes(61)
    memory.hold_part(70, alone=80)
    CLIENT.set("b")
    memory.reserve_bytes(20)
    with pytest.raises(RequestRefused, match="Exceeds maximum queue size"):
        memory.reserve_bytes(1)
    assert memory.used_bytes == 100


# What a request declares is checked before its data is parsed, and that in a thread.


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
        repository = await started(write(tmp_path / "toy.onnx"))
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
        repository = await started(write(tmp_path / "toy.onnx", text=TEXTS), limits=None)
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


async def test_json_larger_than_a_model_can_take_is_refused_by_its_length(tmp_path: Path) -> None:
    repository = await started(write(tmp_path / "toy.onnx"))
    model = repository.find_model("toy")
    assert model.bound_body(60_000) == 64 << 20
    assert model.bound_json() < 100_000
    with pytest.raises(RequestRefused, match="10000000 bytes of JSON are more than any"):
        model.bound_body(10_000_000)
    await repository.drain(5)


@pytest.mark.parametrize(
    ("text", "fits", "json_bytes", "most"),
    [
        (TIMES, True, 0, (1 << 20) + 16 * 32),  # 8 rows of 4 numbers
        (TIMES, True, 100, (1 << 20) + 100 + 16 * 32),
        (TIMES, True, None, (1 << 16) + 64 * 32),
        (TIMES, False, 0, 64 << 20),
        (TEXTS, True, 0, 64 << 20),
        (TIMES.replace("[N,4] x", "[4,9999999] x"), True, 0, 64 << 20),
        (TIMES.replace("[N,4] x", "[N,M] x"), True, None, 64 << 20),
    ],
)
async def test_a_request_is_no_larger_than_the_inputs_of_its_model(
    tmp_path: Path, text: str, fits: bool, json_bytes: int | None, most: int
) -> None:
    repository = await started(
        write(tmp_path / "toy.onnx", text=text), limits=Limits(fits_models=fits)
    )
    model = repository.find_model("toy")
    bound = model.bound_json() if json_bytes is None else model.bound_body(json_bytes)
    assert bound == most
    if not json_bytes:
        assert repository.bound_message() == model.bound_body(0)
    await repository.drain(5)


def test_a_declared_tensor_takes_no_memory() -> None:
    array = inference.declare_tensor("x", "FP32", [1 << 30, 1 << 10])
    assert array.shape == (1 << 30, 1 << 10) and array.strides == (0, 0)
    assert array.dtype == np.float32


# What is late is given up, and nothing else.


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=20))
def test_the_late_ones_are_given_up(plan: list[tuple[bool, int]]) -> None:
    async def main() -> None:
        timeouts = Timeouts(0.03)

        async def one(slow: bool, begins: int) -> str:
            await asyncio.sleep(begins / 500)
            try:
                await timeouts.run_within(asyncio.sleep(30 if slow else 0))
            except TimeoutError:
                return "late"
            return "done"

        found = await asyncio.gather(*(one(*each) for each in plan))
        assert found == ["late" if slow else "done" for slow, _ in plan]

    asyncio.run(main())


async def test_a_caller_s_own_cancelling_is_no_time_out() -> None:
    timeouts = Timeouts(0.02)
    task = asyncio.create_task(timeouts.run_within(asyncio.sleep(30)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    both = asyncio.create_task(timeouts.run_within(slow_to_end()))
    await asyncio.sleep(0.04)
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    assert await timeouts.run_within(asyncio.sleep(0, "still at work")) == "still at work"


async def slow_to_end() -> None:
    """Take its time when it is cancelled."""
    try:
        await asyncio.sleep(30)
    finally:
        await asyncio.sleep(0.05)


async def test_without_a_bound_nothing_is_late() -> None:
    await Timeouts(0).run_within(asyncio.sleep(0.05))


async def test_a_task_that_was_late_goes_on() -> None:
    timeouts = Timeouts(0.01)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await timeouts.run_within(asyncio.sleep(30))
    current = asyncio.current_task()
    assert not current.cancelling()
