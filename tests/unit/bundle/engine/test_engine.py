"""The engine under many callers: every answer is its own, and closing is quiet."""

from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.bundle.engine.scripted import in_threads
from tests.unit.studies import MODEL, study, write_golden, write_model

from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.hardware.cpus import effective_cpus

FLEXIBLE = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,T] x) => (float[N,T] y) <float two = {2}> { y = Mul(x, two) }"""
STATE = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x, float[2,N,4] state) => (float[N,4] y, float[2,N,4] next) {
  sum = ReduceSum<keepdims = 0>(state, axis)
  y = Add(x, sum)
  next = Add(state, x)
}"""
LOOKUP = """<ir_version: 8, opset_import: ["": 17]>
g (int64[N,T] ids) => (float[N,T] y) <float[4] table = {10,20,30,40}> { y = Gather(table, ids) }"""
WORKERS = 8


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "toy.onnx", FLEXIBLE)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    import onnx

    proto = onnx.parser.parse_model(STATE)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "axis"))
    onnx.save(proto, tmp_path / "state.onnx")
    return tmp_path / "state.onnx"


def sample(number: int) -> dict[str, np.ndarray]:
    """Return a sample that is like no other, of one of a few shapes."""
    rng = np.random.default_rng(number)
    return {"x": rng.random((1 + number % 2, 3 + number % 3), np.float32) + number}


def right(given: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> bool:
    return np.array_equal(found["y"], given["x"] * 2)


def counts() -> list[int | str]:
    return [1, "2"] if effective_cpus() > 1 else [1]


@pytest.mark.parametrize("instances", counts())
def test_threads_and_event_loops_at_once_get_their_own_answers(
    model: Path, instances: int | str
) -> None:
    wrong: list[int] = []

    def calls(engine: Engine, start: int) -> None:
        for number in range(start, start + 200):
            given = sample(number)
            if not right(given, engine(**given)):
                wrong.append(number)

    async def submits(engine: Engine, start: int) -> None:
        async def one(number: int) -> None:
            given = sample(number)
            if not right(given, await engine.submit(**given)):
                wrong.append(number)

        for turn in range(3):
            await asyncio.gather(*(one(start + 100 * turn + n) for n in range(100)))

    with load_engine(model, on="cpu(threads=1)", instances=instances) as engine:
        direct = [lambda n=n: calls(engine, 1000 * n) for n in range(WORKERS)]
        queued = [lambda n=n: asyncio.run(submits(engine, 50_000 * n)) for n in (1, 2)]
        assert not in_threads([*direct, *queued])
        assert engine.statistics.failed == engine.statistics.depth == 0
    assert not wrong


class TestBatch:
    def test_answers_come_in_order_whatever_the_shapes(self, model: Path) -> None:
        samples = [sample(n) for n in range(50)]
        for instances in counts():
            with load_engine(model, instances=instances, max_batch=8) as engine:
                found = engine.batch(samples)
                assert all(map(right, samples, found)) and len(found) == 50
                assert engine.batch([]) == []
                assert right(samples[0], engine.batch(samples[:1])[0])

    def test_a_state_stays_with_its_sample(self, state: Path) -> None:
        rng = np.random.default_rng(0)
        samples = [
            {"x": rng.random((n, 4), np.float32), "state": rng.random((2, n, 4), np.float32)}
            for n in (1, 1, 2, 1)
        ]
        with load_engine(state) as engine:
            for given, found in zip(samples, engine.batch(samples), strict=True):
                alone = engine(**given)
                for name in alone:
                    np.testing.assert_array_equal(found[name], alone[name])

    def test_a_wrong_sample_is_named_before_any_runs(self, model: Path) -> None:
        with load_engine(model) as engine:
            with pytest.raises(BadData, match=r"sample 1: input 'x': Got float64\[1, 4\]") as no:
                engine.batch([sample(0), {"x": np.zeros((1, 4))}])
            assert len(str(no.value).splitlines()) == 2
            with pytest.raises(BadData, match=r"sample 0: .*'x' is missing"):
                engine.batch([{}])

    def test_what_the_runtime_refuses_is_an_error(self, tmp_path: Path) -> None:
        path = write_model(tmp_path / "ids.onnx", LOOKUP)
        with load_engine(path) as engine, pytest.raises(BadData, match="runtime refused"):
            engine.batch([{"ids": np.array([[n]])} for n in (0, 3, 99)])


class TestSubmit:
    def test_inputs_are_checked_before_they_wait(self, model: Path) -> None:
        async def main(engine: Engine) -> None:
            with pytest.raises(BadData, match=r"Got float64\[1, 4\], expected float32\[N, T\]"):
                await engine.submit(x=np.zeros((1, 4)))
            with pytest.raises(BadData, match="Got: none; expected: x"):
                await engine.submit()

        with load_engine(model) as engine:
            asyncio.run(main(engine))
            assert engine.statistics.batches == {}

    def test_a_bad_value_fails_alone(self, tmp_path: Path) -> None:
        path = write_model(tmp_path / "ids.onnx", LOOKUP)

        async def main(engine: Engine) -> None:
            ids = [n % 4 if n != 13 else 99 for n in range(40)]
            calls = (engine.submit(ids=np.array([[one]])) for one in ids)
            found = await asyncio.gather(*calls, return_exceptions=True)
            for one, answer in zip(ids, found, strict=True):
                if one == 99:
                    assert isinstance(answer, BadData) and "runtime refused" in str(answer)
                else:
                    assert answer["y"] == 10 * (one + 1)

        with load_engine(path) as engine:
            asyncio.run(main(engine))
            assert engine.statistics.failed == 1


class TestClose:
    def test_under_calls_each_ends_or_is_told(self, model: Path) -> None:
        engine = load_engine(model)
        started, told = threading.Barrier(WORKERS + 2), []

        def calls() -> None:
            started.wait()
            try:
                for number in range(100_000):
                    given = sample(number % 50)
                    assert right(given, engine(**given))
            except OrtuneError as error:
                told.append(str(error))

        async def submits() -> None:
            started.wait()
            try:
                for _ in range(100_000):
                    found = await asyncio.gather(*(engine.submit(**sample(n)) for n in range(5)))
                    assert all(right(sample(n), one) for n, one in enumerate(found))
            except OrtuneError as error:
                told.append(str(error))

        def close() -> None:
            started.wait()
            engine.close()

        assert not in_threads([*[calls] * WORKERS, lambda: asyncio.run(submits()), close])
        assert len(told) == WORKERS + 1
        assert all("the engine of toy.onnx is closed\n  fix: load it again" in one for one in told)

    def test_no_thread_is_left(self, model: Path) -> None:
        model = model.rename(model.with_name("alone.onnx"))  # no other test's threads are its own
        with load_engine(model) as engine:
            assert not serving(model.name), "nobody has submitted anything"
            asyncio.run(engine.submit(**sample(0)))
            assert serving(model.name)
        assert not serving(model.name)
        engine = load_engine(model)
        asyncio.run(engine.submit(**sample(0)))
        call = engine[""]
        del engine
        gc.collect()
        with pytest.raises(OrtuneError, match="closed"):
            call(**sample(0))
        assert gone(model.name)

    def test_nor_where_loading_fails(self, tmp_path: Path) -> None:
        made = study(tmp_path)
        path = tmp_path / "a.ortune"
        pack(made, path)
        other = write_model(tmp_path / "other.onnx", MODEL.replace("{1,2,3,4}", "{9,9,9,9}"))
        write_golden(made, made.best, other)
        pack(made, path, force=True)
        with pytest.raises(OrtuneError, match="golden sample"):
            load_engine(path)
        assert gone("toy")


def serving(name: str) -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == f"ortune {name}"]


def gone(name: str) -> bool:
    for one in threading.enumerate():
        if one.name == f"ortune {name}":
            one.join(20)
    return not serving(name)


class TestWarmUp:
    def test_zeros_of_the_smallest_shape(self, model: Path, state: Path) -> None:
        for path in (model, state):
            with load_engine(path) as engine:
                engine.warm_up()

    def test_text_too(self, tmp_path: Path) -> None:
        text = """<ir_version: 8, opset_import: ["": 17]>
        g (string[N] s) => (string[N] t) { t = Identity(s) }"""
        with load_engine(write_model(tmp_path / "text.onnx", text)) as engine:
            engine.warm_up()

    def test_what_takes_no_zeros_says_so(self, tmp_path: Path) -> None:
        text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[N] a) => (float[3,L] c) <int64[2] s = {3,-1}> { c = Reshape(a, s) }"""
        with load_engine(write_model(tmp_path / "odd.onnx", text)) as engine:
            with pytest.raises(BadData, match="refused a") as no:
                engine.warm_up()
            assert "engine.warm_up(name=array)" in no.value.fix
            with pytest.raises(BadData, match="Got float64"):
                engine.warm_up(a=np.zeros(3))
            engine.warm_up(a=np.zeros(3, np.float32))
            engine.close()
            with pytest.raises(OrtuneError, match="closed"):
                engine.warm_up()

    def test_a_sequence_has_no_zeros(self, tmp_path: Path) -> None:
        text = """<ir_version: 8, opset_import: ["": 17]>
        g (seq(float[N]) s) => (int64 n) { n = SequenceLength(s) }"""
        with load_engine(write_model(tmp_path / "seq.onnx", text)) as engine:
            with pytest.raises(BadData, match="input 's' is no array") as no:
                engine.warm_up()
            assert "a sample of yours" in no.value.fix


def test_instances_share_the_cpus(model: Path) -> None:
    cpus = effective_cpus()
    if cpus < 2:
        pytest.skip("one CPU")
    with load_engine(model, instances="2") as engine:
        assert str(engine.backend) == f"cpu(threads={cpus // 2})"
        assert engine.placement() == {"CPUExecutionProvider": 1}
    with pytest.raises(BadSettings, match="instances need a CPU each"):
        load_engine(model, instances=cpus + 1)
    with pytest.raises(BadSettings, match="not on 'gpu0'"):
        load_engine(model, instances="2@gpu0")


def test_a_bundle_takes_the_same_settings(tmp_path: Path) -> None:
    path = tmp_path / "a.ortune"
    made = study(tmp_path)
    pack(replace(made), path)
    x = np.array([[-5, 0, 1, 2]], np.float32)
    for instances in counts():
        with load_engine(path, instances=instances, max_batch=4, max_delay_us=100) as engine:
            found = engine.batch([{"x": x + n} for n in range(9)])
            for n, one in enumerate(found):
                np.testing.assert_array_equal(one["y"], engine(x=x + n)["y"])


def test_several_models_are_called_by_name(model: Path) -> None:
    with load_engine(model) as engine:
        assert right(sample(3), engine[""].batch([sample(3)])[0])
        assert right(sample(3), asyncio.run(engine[""].submit(**sample(3))))
