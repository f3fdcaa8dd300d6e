"""Sessions side by side: how CPUs are shared, where threads run, what closing waits for."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.bundle.engine.scripted import Doubling, row
from tests.unit.studies import MODEL, write_model

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.backends.cuda import Cuda
from ortune.backends.openvino import Openvino
from ortune.bundle.engine import consent, instances
from ortune.bundle.engine.instances import (
    UNSAID,
    Instances,
    Serving,
    bind_thread,
    flushes_denormals,
    on_device,
    read_serving,
)
from ortune.core.backend import Backend, Kind
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.hardware.cpus import usable_cpus
from ortune.core.hardware.instances import read_instances
from ortune.data.zoo import digit_cnn

CNN = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")
binds = pytest.mark.skipif(len(usable_cpus()) < 2, reason="one CPU, or it cannot be bound")


@dataclass(frozen=True)
class OnGpu(Cpu):
    """Settings that name a GPU; nothing is opened on them."""

    device: int = 0

    @property
    def runs_on(self) -> Kind:
        return "gpu"


@dataclass(frozen=True)
class OnNpu(Cpu):
    """Settings for the only NPU; nothing is opened on them."""

    @property
    def runs_on(self) -> Kind:
        return "npu"


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (instances, consent):
        monkeypatch.setattr(module, "effective_cpus", lambda: 8)


class TestAsked:
    @pytest.mark.usefixtures("eight")
    @pytest.mark.parametrize(
        ("given", "count"), [(1, 1), ("1", 1), (3, 3), ("2", 2), (" 2 ", 2), ("1, 3", 4)]
    )
    def test_numbers_and_text(self, given: int | str, count: int) -> None:
        assert read_serving(given) == replace(UNSAID, instances=count)

    @pytest.mark.usefixtures("eight")
    @pytest.mark.parametrize(
        ("given", "devices"),
        [
            ("2@cpu", ("cpu",) * 2),
            ("2@gpu0,2@gpu1", ("gpu0", "gpu0", "gpu1", "gpu1")),
            ("1@gpu, 9@gpu3", ("gpu0", *("gpu3",) * 9)),
            ("1,1@npu", ("", "npu0")),
        ],
    )
    def test_groups_by_device(self, given: str, devices: tuple[str, ...]) -> None:
        assert read_serving(given) == replace(UNSAID, instances=len(devices), devices=devices)
        counted = Counter(devices).items()
        spelled = ",".join(f"{count}@{one}" if one else f"{count}" for one, count in counted)
        assert read_serving(given).groups == read_instances(spelled)

    @pytest.mark.usefixtures("eight")
    def test_a_device_for_groups_that_name_none(self) -> None:
        assert read_serving("1,1@gpu1", "gpu0").devices == ("gpu0", "gpu1")
        packed = Serving(3, 4)
        assert read_serving(0, "gpu1", packed=packed) == replace(packed, devices=("gpu1",) * 3)

    @pytest.mark.parametrize(("device", "index"), [("gpu0", 0), ("gpu", 0), ("gpu12", 12)])
    def test_a_gpu_of_a_backend_that_runs_on_one(self, device: str, index: int) -> None:
        assert on_device(OnGpu(), device) == OnGpu(device=index)
        assert on_device(Bucketed(inner=OnGpu()), device) == Bucketed(inner=OnGpu(device=index))

    @pytest.mark.parametrize(
        ("backend", "device", "what"),
        [
            ("cpu", "gpu0", "runs on the CPU, not on 'gpu0'"),
            ("gpu", "cpu", "runs on the GPU, not on 'cpu'"),
            ("npu", "npu1", "cannot be told which NPU"),
        ],
    )
    def test_a_device_that_a_backend_does_not_run_on(
        self, backend: str, device: str, what: str
    ) -> None:
        made = {"cpu": Cpu(), "gpu": OnGpu(), "npu": OnNpu()}[backend]
        with pytest.raises(BadSettings, match=what):
            on_device(made, device)
        assert on_device(Cpu(threads=2), "cpu") == Cpu(threads=2)

    @pytest.mark.usefixtures("eight")
    def test_batches(self) -> None:
        assert read_serving(max_batch=0).max_batch == 0
        assert read_serving(2, None, max_batch=5, max_delay_us=7) == Serving(2, 5, 7)
        assert read_serving(0, max_batch=8, preferred=[4, 8], max_queue=9) == Serving(
            1, 8, preferred=(4, 8), max_queue=9
        )

    @pytest.mark.parametrize(
        ("backend", "said", "rows", "fills"),
        [
            (Cpu(), 0, 8, False),
            (Cpu(), 5, 5, False),
            (Cuda(), 0, 1, False),
            (Cuda(), 1, 1, False),
            (Cuda(), 5, 5, True),
        ],
    )
    def test_where_sizes_cost_batches_are_alike_or_not_made(
        self, backend: Backend, said: int, rows: int, fills: bool
    ) -> None:
        settled, filled = Serving(max_batch=said).settle_batches(backend, CNN)
        assert (settled.max_batch, filled) == (rows, fills)

    @pytest.mark.usefixtures("eight")
    def test_what_is_said_comes_before_what_a_bundle_says(self) -> None:
        packed = Serving(4, 16, 500, (8, 16), threads=1)
        assert read_serving(packed=packed) == packed
        assert read_serving(2, max_batch=1, packed=packed) == replace(
            packed, instances=2, max_batch=1
        )

    @pytest.mark.usefixtures("eight")
    @pytest.mark.parametrize("given", ["0", -1, "", "x", "2,", "1@", 1.5, True, "2@gpu-0"])
    def test_what_is_no_count(self, given: object) -> None:
        with pytest.raises(BadSettings, match=r"instances=.* cannot be read"):
            read_serving(given)  # type: ignore[arg-type]

    @pytest.mark.usefixtures("eight")
    @pytest.mark.parametrize(
        "asked",
        [
            {"instances": "2@tpu0"},
            {"instances": "1@cpu,1@cpu1"},
            {"device": "cuda"},
            {"device": "gpu-1"},
            {"instances": 2, "device": "GPU"},
        ],
    )
    def test_a_device_of_no_known_kind(self, asked: dict[str, str]) -> None:
        with pytest.raises(BadSettings, match=r"no device is called '") as no:
            read_serving(**asked)  # type: ignore[arg-type]
        assert len(str(no.value).splitlines()) == 2

    @pytest.mark.usefixtures("eight")
    def test_more_than_there_are_cpus(self) -> None:
        with pytest.raises(BadSettings, match="9 instances need a CPU each") as no:
            read_serving(9)
        assert no.value.fix == "give instances=8 or fewer"

    @pytest.mark.parametrize(
        "asked",
        [
            *({"max_batch": value} for value in (-1, 1.5, 1 << 21, "8")),
            *({"max_delay_us": value} for value in (-1, 1e9, 10**8)),
            *({"max_queue": value} for value in (-1, 1 << 21)),
            *({"preferred": [value]} for value in (0, -1, 1 << 21, "4")),
            {"preferred": [9], "max_batch": 8},
        ],
    )
    def test_what_is_no_bound(self, asked: dict[str, int]) -> None:
        with pytest.raises(BadSettings, match=f"{next(iter(asked))}=.* is not possible"):
            read_serving(**asked)


@pytest.mark.usefixtures("eight")
class TestShares:
    @pytest.mark.parametrize(
        ("asked", "count", "shared"),
        [
            (Cpu(), 1, Cpu()),
            (Cpu(), 2, Cpu(threads=4)),
            (Cpu(), 3, Cpu(threads=2)),
            (Cpu(threads=1), 2, Cpu(threads=1)),
            (Cpu(threads=6), 2, Cpu(threads=4)),
            (Cpu(threads=6, affinity="2;3;4;5;6"), 8, Cpu(threads=1)),
            (Openvino(streams=8), 4, Openvino(threads=2, streams=2)),
            (Bucketed(threads=8), 4, Bucketed(threads=2)),
        ],
    )
    def test_all_together_have_a_thread_for_each_cpu(
        self, asked: Backend, count: int, shared: Backend
    ) -> None:
        assert Serving(count).share_threads(asked) == shared

    @pytest.mark.parametrize(
        ("asked", "count", "threads", "shared"),
        [
            (Cpu(), 1, 3, Cpu(threads=3)),
            (Cpu(threads=4), 2, 2, Cpu(threads=2)),
            (Cpu(threads=2), 4, 6, Cpu(threads=2)),
            (Cpu(threads=3, affinity="2;3"), 1, 3, Cpu(threads=3, affinity="2;3")),
            (Cpu(threads=3, affinity="2;3"), 1, 2, Cpu(threads=2)),
            (
                Bucketed(threads=3, inner=Cpu(affinity="2;3")),
                1,
                4,
                Bucketed(threads=4, inner=Cpu()),
            ),
        ],
    )
    def test_threads_that_were_chosen(
        self, asked: Backend, count: int, threads: int, shared: Backend
    ) -> None:
        assert Serving(count, threads=threads).share_threads(asked) == shared

    def test_threads_of_parallel_operators_too(self) -> None:
        asked = Cpu(threads=4, parallel=True, inter_threads=8)
        assert Serving(4).share_threads(asked) == replace(asked, threads=2, inter_threads=2)


@dataclass(frozen=True)
class Noting(Cpu):
    """Notes which CPUs the threads that open and run it may use."""

    @contextmanager
    def open(self, path: Path, *, verbose: bool = False) -> Iterator[Doubling]:
        session = Doubling()
        opened.append((self, usable_cpus()))
        run = session.run
        session.run = lambda feeds: ran.append(usable_cpus()) or run(feeds)  # type: ignore[method-assign]
        yield session


@dataclass(frozen=True)
class Reserving(Openvino):
    """Notes its properties."""

    @contextmanager
    def open(self, path: Path, *, verbose: bool = False) -> Iterator[Doubling]:
        opened.append((self, usable_cpus()))
        yield Doubling()

    @classmethod
    def name(cls) -> str:
        return "openvino"


opened: list[tuple[Backend, tuple[int, ...]]] = []
ran: list[tuple[int, ...]] = []


@pytest.fixture
def noted() -> None:
    opened.clear()
    ran.clear()


@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize("wrapped", [False, True])
def test_openvino_reserves_cpus_for_each(wrapped: bool) -> None:
    before = usable_cpus()
    for count in (1, 2):
        asked: Backend = Reserving(threads=1, config=("TBB_PARTITIONER=AUTO",))
        with ExitStack() as stack:
            Serving(count).open_instances(
                stack, Bucketed(inner=asked) if wrapped else asked, Path("m"), "m"
            )
    assert [cpus for _, cpus in opened] == [before] * 3
    reserved = ("TBB_PARTITIONER=AUTO", "ENABLE_CPU_RESERVATION=YES")
    assert [one.config for one, _ in opened] == [reserved[:1], reserved, reserved]  # type: ignore[attr-defined]


@binds
@pytest.mark.usefixtures("noted")
class TestCpus:
    def test_sessions_open_and_run_on_cpus_of_their_own(self) -> None:
        before = usable_cpus()
        with ExitStack() as stack:
            made = Serving(2).open_instances(stack, Noting(threads=1), Path("m"), "m")
            for place in (0, 1):
                made.run(row(1), place)
        one, two = (set(cpus) for _, cpus in opened)
        assert one and two and not one & two and one | two == set(before)
        assert [set(cpus) for cpus in ran] == [one, two]
        assert usable_cpus() == before, "the caller has its CPUs back"

    def test_one_instance_and_other_runtimes_are_left_alone(self) -> None:
        before = usable_cpus()
        with ExitStack() as stack:
            Serving(1).open_instances(stack, Noting(), Path("m"), "m").run(row(1))
        assert [cpus for _, cpus in opened] == ran == [before]

    def test_bound_threads_move_with_their_instance(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(instances, "usable_cpus", lambda: (0, 1, 2, 3))
        monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
        wrapped = Bucketed(inner=Noting(affinity="2"), threads=2)
        for backend in (Noting(threads=2, affinity="2"), wrapped):
            opened.clear()
            with ExitStack() as stack:
                Serving(2).open_instances(stack, backend, Path("m"), "m")
            assert [one.affinity for one, _ in opened] == ["2", "4"]  # type: ignore[attr-defined]

    def test_a_thread_that_fails_has_its_cpus_back(self) -> None:
        before = usable_cpus()
        with pytest.raises(ValueError, match="mine"), bind_thread(before[:1]):
            assert usable_cpus() == before[:1]
            raise ValueError("mine")
        assert usable_cpus() == before

    def test_cpus_that_are_gone_bind_nothing(self) -> None:
        before = usable_cpus()
        with bind_thread([4095]):
            assert usable_cpus() == before

    def test_the_threads_of_onnxruntime_stay_there(self, tmp_path: Path) -> None:
        path = write_model(tmp_path / "m.onnx", MODEL)
        tasks = Path("/proc/self/task")
        if not tasks.is_dir():
            pytest.skip("no /proc")
        with ExitStack() as stack:
            for cpu in usable_cpus()[:2]:
                before = {one.name for one in tasks.iterdir()}
                with bind_thread([cpu]):
                    stack.enter_context(Cpu(threads=3).open(path))
                new = {one.name for one in tasks.iterdir()} - before
                assert len(new) == 2
                assert all(os.sched_getaffinity(int(task)) == {cpu} for task in new)


class TestCalls:
    def test_a_call_goes_where_the_fewest_are(self) -> None:
        one, two = Doubling(), Doubling()
        made = Instances("m", [one, two])
        for session in (one, two):
            session.go.clear()
        threads = []
        for session in (one, two, one):
            session.entered.clear()
            threads.append(threading.Thread(target=made.run, args=(row(1),)))
            threads[-1].start()
            assert session.entered.wait(20)
        for session in (one, two):
            session.go.set()
        for thread in threads:
            thread.join(20)
        assert (len(one.seen), len(two.seen)) == (2, 1)

    def test_closing_waits_for_those_that_run_and_refuses_others(self) -> None:
        session = Doubling()
        made = Instances("m", [session])
        found: list[dict[str, np.ndarray]] = []
        session.go.clear()
        runs = threading.Thread(target=lambda: found.append(made.run(row(1))))
        runs.start()
        assert session.entered.wait(20)
        closing = threading.Thread(target=made.wait_idle)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        with pytest.raises(OrtuneError, match="the engine of m is closed") as no:
            made.run(row(1))
        assert len(str(no.value).splitlines()) == 2
        session.go.set()
        closing.join(20)
        runs.join(20)
        assert found[0]["y"][0, 0] == 2
        made.close()
        assert made.find_first_session() is None

    def test_released_under_a_call_it_still_ends(self) -> None:
        session = Doubling()
        made = Instances("m", [session])
        found: list[dict[str, np.ndarray]] = []
        session.go.clear()
        runs = threading.Thread(target=lambda: found.append(made.run(row(1))))
        runs.start()
        assert session.entered.wait(20)
        made.close()
        session.go.set()
        runs.join(20)
        assert found[0]["y"][0, 0] == 2

    def test_what_the_runtime_refuses_is_said_and_forgotten(self) -> None:
        made = Instances("m", [Doubling()])
        with pytest.raises(BadData, match=r"m: the runtime refused x \(1, 4\): a negative"):
            made.run(row(-9))
        made.wait_idle()


def test_denormals_are_flushed_by_threads_of_some_backends() -> None:
    assert flushes_denormals(Cpu(flush_denormals=True))
    assert flushes_denormals(Bucketed(inner=Cpu(flush_denormals=True)))
    assert not flushes_denormals(Cpu()) and not flushes_denormals(Bucketed())
