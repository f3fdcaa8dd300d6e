"""The engine under many callers: every answer is its own, and closing is quiet."""

import asyncio
import gc
import platform
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.endless import FOR_EVER, write_loop
from tests.unit import studies
from tests.unit.bundle.engine.scripted import DOUBLING, Doubling, in_threads, row
from tests.unit.packaged import forge
from tests.unit.studies import MODEL, study, write_golden, write_model

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.backends.runtimes.openvino.native import open_native_session
from ortune.bundle.content import read_arithmetic
from ortune.bundle.engine.call import Call
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.golden import list_cpu_differences
from ortune.bundle.engine.instances import Instances, Serving
from ortune.bundle.engine.load import load_engine
from ortune.bundle.engine.manifest import Arithmetic
from ortune.bundle.pack import pack
from ortune.core.errors import BadData, OrtuneError
from ortune.core.hardware import cpus
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec
from ortune.core.step import Recipe
from ortune.core.termination import RunTerminated, Termination
from ortune.core.trial import Plan
from ortune.measurement.machine import machine

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

    def test_a_batch_of_the_size_that_all_get(self) -> None:
        sessions = [Doubling(), Doubling()]
        how = Serving(max_batch=4)
        with closing(Call(Instances("m", sessions), DOUBLING, how, fills=True)) as call:
            call.warm_up(x=row(1)["x"])
        assert [max(map(len, one.seen)) for one in sessions] == [4, 4]
        plain = Doubling()
        with closing(Call(Instances("m", [plain]), DOUBLING, how)) as call:
            call.warm_up(x=row(1)["x"])
        assert max(map(len, plain.seen)) == 2, "two, to see whether they may be joined"

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
            with pytest.raises(BadData, match="input 's' is not an array") as no:
                engine.warm_up()
            assert "a sample of yours" in no.value.fix


def test_instances_share_the_cpus(model: Path) -> None:
    cpus = effective_cpus()
    if cpus < 2:
        pytest.skip("one CPU")
    with load_engine(model, instances="2") as engine:
        assert str(engine.backend) == f"cpu(threads={cpus // 2})"
        assert engine.placement() == {"CPUExecutionProvider": 1}


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


# A run that nobody waits for any more is told to end, and the session computes for others.


X = np.ones(4, np.float32)
ENDLESS, ONCE = np.array(FOR_EVER), np.array(1)
SOON_S = 20.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    loaded = load_engine(write_loop(tmp_path / "loop.onnx"), on="cpu(threads=1)")
    yield loaded
    loaded.terminate()
    loaded.close()


def test_a_deadline_ends_the_run_and_the_next_request_is_answered(engine: Engine) -> None:
    async def ask() -> np.ndarray:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.submit(x=X, n=ENDLESS), 0.3)
        return (await asyncio.wait_for(engine.submit(x=X, n=ONCE), SOON_S))["y"]

    np.testing.assert_allclose(asyncio.run(ask()), np.sin(X), rtol=1e-6)
    assert (engine.statistics.cancelled, engine.statistics.failed) == (1, 0)


def test_what_goes_on_when_an_engine_ends_is_told_to_end_too(engine: Engine) -> None:
    async def ask() -> None:
        asking = asyncio.ensure_future(engine.submit(x=X, n=ENDLESS))
        behind = asyncio.ensure_future(engine.submit(x=X, n=ENDLESS))
        await asyncio.sleep(0.3)
        engine.terminate()
        for request in (asking, behind):
            with pytest.raises(RunTerminated):
                await asyncio.wait_for(request, SOON_S)

    asyncio.run(ask())
    engine.close()  # joins the thread that computed


def test_a_scope_ends_the_run_of_its_own_thread(engine: Engine) -> None:
    termination = Termination()
    threading.Timer(0.3, termination.request).start()
    began = time.monotonic()
    with termination.scope(), pytest.raises(RunTerminated):
        engine(x=X, n=ENDLESS)
    with termination.scope(), pytest.raises(RunTerminated):
        engine(x=X, n=ENDLESS)  # it begins after the end was asked for
    assert time.monotonic() - began < SOON_S
    np.testing.assert_allclose(engine(x=X, n=ONCE)["y"], np.sin(X), rtol=1e-6)


def test_openvino_ends_between_two_layers(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    layers = 400
    lines = [f"v{place + 1} = MatMul(v{place}, w)" for place in range(layers)]
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[512,512] v0, float[512,512] w) '
        f"=> (float[512,512] v{layers}) {{ " + "\n".join(lines) + "}"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "long.onnx")
    feeds = {name: np.zeros((512, 512), np.float32) for name in ("v0", "w")}
    options = {"INFERENCE_NUM_THREADS": "1"}
    with open_native_session(tmp_path / "long.onnx", options) as session:
        session.run(feeds)
        began = time.monotonic()
        with Termination().scope():
            whole = session.run(feeds)
        took = time.monotonic() - began
        termination = Termination()
        threading.Timer(took / 10, termination.request).start()
        began = time.monotonic()
        with termination.scope(), pytest.raises(RunTerminated):
            session.run(feeds)
        assert time.monotonic() - began < took * 0.8
        with termination.scope(), pytest.raises(RunTerminated):
            session.run(feeds)  # the end was asked for before
        np.testing.assert_array_equal(session.run(feeds)[f"v{layers}"], whole[f"v{layers}"])


# A bundle says so where the CPU differs in what its plan rests on, and only there.


INT8 = Arithmetic(5, 3, (), ("avx2", "avx512f", "avx512_vnni"), "Linux x86_64")


def _forget() -> None:
    """Drop what was read of the CPU: another test reads this machine's own."""
    cpus.instruction_sets.cache_clear()
    cpus.cpu_model.cache_clear()


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Write a CPU's flags where Linux would."""

    def fake(flags: str, key: str = "flags") -> dict[str, str]:
        path = tmp_path / "cpuinfo"
        path.write_text(f"processor\t: 0\nmodel name\t: Made up\n{key}\t\t: fpu {flags}\n")
        monkeypatch.setattr(cpus, "CPUINFO", path)
        _forget()
        return machine.describe_machine() | {"system": "Linux x86_64"}

    yield fake
    _forget()


@pytest.mark.parametrize(
    ("verified", "flags", "words"),
    [
        (INT8, "avx2 avx512f avx512_vnni", None),
        (INT8, "avx2 avx_vnni", None),
        (INT8, "avx2 amx_int8", None),
        (INT8, "avx2", "3 of 5 integer layers can saturate"),
        (INT8, "avx2 avx512f", "3 of 5 integer layers can saturate"),
        (replace(INT8, risky=0), "avx2", "slower here: this CPU has no VNNI"),
        (replace(INT8, integers=0, risky=0), "avx2", None),
        (replace(INT8, instructions=("avx2",)), "avx2 avx512_vnni", "for the better"),
        (replace(INT8, instructions=("avx2",)), "avx2", None),
        (replace(INT8, instructions=("avx2",), risky=0), "avx2 avx_vnni", None),
        (replace(INT8, instructions=("unknown",)), "avx2", None),
        (Arithmetic(), "avx2", None),
        (Arithmetic(0, 0, ("bfloat16",), ("avx512_bf16",)), "avx2", "computes in bfloat16"),
        (Arithmetic(0, 0, ("bfloat16",), ("avx512_bf16",)), "amx_bf16", None),
        (Arithmetic(0, 0, ("float16",), ("avx2",)), "avx2", None),
        (Arithmetic(0, 0, ("float16",), ("avx512_fp16",)), "avx2", "computes in float16"),
        (replace(INT8, system="Linux aarch64", instructions=("asimddp",)), "avx2", "aarch64"),
    ],
)
def test_what_is_said(verified: Arithmetic, flags: str, words: str | None, cpu) -> None:  # type: ignore[no-untyped-def]
    said = list(list_cpu_differences(verified, cpu(flags)))
    assert (len(said), words is None or words in said[0]) == (words is not None, True), said


def test_a_cpu_that_tells_nothing_is_not_judged(cpu) -> None:  # type: ignore[no-untyped-def]
    assert not list(list_cpu_differences(INT8, cpu("")))


def test_arm_without_dot_products(cpu) -> None:  # type: ignore[no-untyped-def]
    verified = Arithmetic(5, 0, (), ("asimddp",), "Linux aarch64")
    here = cpu("bf16", "Features") | {"system": "Linux aarch64"}
    assert "no dot product" in next(list_cpu_differences(verified, here))


def test_manifests_without_the_record_are_read() -> None:
    assert codec.decode(Arithmetic, {}) == Arithmetic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not list(list_cpu_differences(Arithmetic(), {"instruction sets": "avx2"}))


QDQ = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1,4] x) => (float[1,2] y)
<float s = {0.1}, uint8 z = {0}, float ws = {0.01}, int8 wz = {0},
 int8[4,2] w = {127, 1, 127, 1, 1, 1, 1, 1}> {
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  v = DequantizeLinear(w, ws, wz)
  y = MatMul(d, v)
}
"""


def test_what_a_bundle_records(tmp_path: Path) -> None:
    path = studies.write_model(tmp_path / "int8.onnx", QDQ)
    plan = Plan(Recipe("int8", ()), Cpu())
    here = {"instruction sets": "avx2 avx_vnni", "system": "Linux x86_64"}
    found = read_arithmetic(plan, [path], here)
    assert found == Arithmetic(1, 1, (), ("avx2", "avx_vnni"), "Linux x86_64")
    small = QDQ.replace("127", "63")
    assert read_arithmetic(plan, [studies.write_model(path, small)], here).risky == 0
    hint = Plan(Recipe("bf16", ()), Openvino(precision="bf16"))
    assert read_arithmetic(hint, [], here).halves == ("bfloat16",)


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason="sums of 8-bit products saturate on x86 alone",
)
def test_a_bundle_warns_on_another_cpu_and_an_old_one_does_not(tmp_path: Path, cpu) -> None:  # type: ignore[no-untyped-def]
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")

    def load_with(arithmetic: Arithmetic | None) -> list[str]:
        def retell(manifest: dict[str, Any]) -> None:
            (plan,) = manifest["plans"]
            plan.pop("arithmetic", None)
            if arithmetic is not None:
                plan["arithmetic"] = codec.encode(arithmetic)

        forge(bundle, {}, retell)
        cpu("avx2")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load_engine(bundle).close()
        return [str(one.message) for one in caught if one.category is RuntimeWarning]

    system = machine.describe_machine()["system"]
    assert "can saturate" in load_with(replace(INT8, system=system))[0]
    assert load_with(None) == []
