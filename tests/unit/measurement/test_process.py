"""What an environment offers is asked of a worker that runs in it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from ortune_toys.backends.crash import Crash
from ortune_toys.backends.hang import Hang
from ortune_toys.backends.hog import Hog

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.backends.runtimes.onnxruntime import checks, device_session, session
from ortune.backends.runtimes.onnxruntime import session as ort
from ortune.backends.torch import Torch
from ortune.cli.main import BAD, main
from ortune.core.backend import Backend
from ortune.core.errors import (
    BackendMissing,
    BadData,
    BadSettings,
    CutShort,
    Interruption,
    OutOfTime,
)
from ortune.core.hardware import memory
from ortune.core.hardware.cpus import effective_cpus, instruction_sets, usable_cpus
from ortune.core.observer import Probe
from ortune.core.progress import time_limit
from ortune.core.session import DeviceTimed, Session
from ortune.data import stream
from ortune.graph.parts.probed import Watch
from ortune.measurement import process
from ortune.measurement.allowance import Allowance
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.measurement.process import Worker, WorkerFailed, query_capabilities, require_backend
from ortune.measurement.worker import tasks
from ortune.measurement.worker.workbench import Workbench
from ortune.measurement.workloads.latency import Latency
from ortune.measurement.workloads.throughput import Throughput
from ortune.metrics.snr import Snr
from ortune.quantizers.observers.min_max import MinMax


def test_this_interpreter_answers_what_is_read_here() -> None:
    found = query_capabilities(Cpu())
    assert found.missing is None
    assert found.effective_cpus == effective_cpus()
    assert found.usable_cpus == usable_cpus()
    assert set(found.instruction_sets) == instruction_sets()
    assert found.versions == package_versions() and found.machine == describe_machine()
    assert "CPUExecutionProvider" in found.providers
    assert found.devices["CPUExecutionProvider"] == ("CPU",)


@pytest.mark.skipif(
    sys.platform != "linux" or "ORTUNE_REAL_WORKERS" in os.environ, reason="no forks of tests"
)
def test_tests_fork_workers_also_behind_a_question_for_cuda_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suite whose workers are interpreters of their own takes far longer, and does not say."""
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    with Worker(WorkerJob({}, Cpu(), {}, tmp_path)) as worker:
        assert psutil.Process(worker.pid).ppid() != os.getpid()


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = query_capabilities(Cpu())
    monkeypatch.setattr(Worker, "__init__", lambda *args, **kwargs: pytest.fail("asked again"))
    assert query_capabilities(Cpu()) is first


def test_the_callers_own_installation_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "explain_missing_runtime", lambda: pytest.fail("asked here"))
    monkeypatch.setattr(checks, "list_libraries", lambda *args: pytest.fail("searched here"))
    assert require_backend(Cpu(spin=False)).missing is None


def test_an_unknown_setting_is_refused_in_two_lines() -> None:
    with pytest.raises(BadSettings, match="no session key") as caught:
        query_capabilities(Cpu(config=("session.intra_op=1",)))
    assert len(str(caught.value).splitlines()) == 2 and "such as" in caught.value.fix


def test_a_backend_that_is_not_there_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    torch = pytest.importorskip("ortune.backends.torch").Torch
    with pytest.raises(BackendMissing, match="backend 'torch' cannot run here") as caught:
        require_backend(torch(source="pkg:module", compile=True))
    assert caught.value.fix


def test_an_unknown_environment_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="no environment 'mars' on this machine") as caught:
        Worker(WorkerJob({}, Cpu(), {}, tmp_path / "job", environment="mars"))
    assert len(str(caught.value).splitlines()) == 2
    assert not (tmp_path / "job").exists()


MODEL = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[N,4] x) => (float[N,4] y) { two = Constant<value = float {2.0}>() y = Mul(x, two) }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "toy.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    stream.write_stream(
        tmp_path / "feeds.stream", ({"x": np.full((1, 4), i, np.float32)} for i in range(5))
    )
    return path


def job(model: Path, backend: Backend | None = None) -> WorkerJob:
    feeds = {MAIN: model.parent / "feeds.stream"}
    return WorkerJob({MAIN: model}, backend or Cpu(), feeds, model.parent / "work")


def test_a_worker_loads_runs_times_scores_and_observes(model: Path) -> None:
    with Worker(job(model)) as worker:
        assert worker.ask("load")["placement"] == {"CPUExecutionProvider": 1}
        assert worker.ask("first")["first_ns"] > 0
        timed = worker.ask("burst", at=0, runs=7, each=3, drop=1)
        assert len(timed["latency_ns"]) == len(timed["waited"]) == 7
        scored = worker.ask("score", indices=[3, 1], metrics=[Snr()], save=str(model.parent / "o"))
        assert len(scored["records"][0]) == 2
        assert stream.Stream(model.parent / "o")[0]["y"].tolist() == [[6.0] * 4]
        seen = worker.ask(
            "observe",
            model=str(model),
            groups=[[0, 4], [1]],
            watches=[Watch("y", "y")],
            probes=[Probe("y", MinMax())],
            keep=str(model.parent / "moments"),
        )
        assert seen["answers"] == [[{"low": 0.0, "high": 8.0}], [{"low": 2.0, "high": 2.0}]]
        assert worker.ask("describe")["shapes"] == {"y": ["float32", [1, 4]]}


def test_the_reproduce_command_repeats_the_commands(model: Path) -> None:
    with Worker(job(model)) as worker:
        worker.ask("load")
        worker.ask("burst", at=0, runs=2)
        command = worker.reproduce
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        (Crash(), "killed by SIGSEGV"),
        (Crash(divides=True), "killed by SIGFPE"),
        (Hang(), "no answer to 'first' after 1 s"),
        (Hog(), "ended by the memory limit of 1 GiB: it wanted 1."),
    ],
)
def test_crash_hang_and_memory_are_values(model: Path, backend: Backend, said: str) -> None:
    with Worker(job(model, backend), memory_limit=1 << 30) as worker:
        worker.ask("load")
        with pytest.raises(WorkerFailed) as caught:
            worker.ask("first", timeout_s=1 if isinstance(backend, Hang) else 60)
    assert said in caught.value.failure.reason
    assert "ortune.measurement.worker" in caught.value.failure.reproduce


def test_an_error_in_a_task_leaves_the_worker_alive(model: Path) -> None:
    with Worker(job(model)) as worker:
        worker.ask("load")
        with pytest.raises(WorkerFailed, match="function"):
            worker.ask("evaluate", function="no_such_module:function")
        assert worker.ask("first")["first_ns"] > 0


def test_a_file_that_is_no_model_is_a_value(model: Path) -> None:
    model.write_bytes(b"not a model")
    with Worker(job(model)) as worker, pytest.raises(WorkerFailed, match="does not load"):
        worker.ask("load")


def test_a_round_of_several_models_holds_their_calls_in_proportion(model: Path) -> None:
    few, many = model.parent / "few.stream", model.parent / "many.stream"
    for path, count in ((few, 2), (many, 6)):
        stream.write_stream(path, ({"x": np.zeros((1, 4), np.float32)} for _ in range(count)))
    both = {"one": model, "two": model}
    work = WorkerJob(both, Cpu(), {"one": few, "two": many}, model.parent / "work")
    with ExitStack() as stack:
        bench = Workbench(work, stack)
        bench.open_sessions()
        rounds = [bench.round_at(position) for position in range(len(bench.cycle))]
    assert len(rounds) == 2
    assert all(len(calls) == 1 + 3 for calls in rounds)


def test_what_a_backend_says_to_do_reaches_the_reader(model: Path) -> None:
    pytest.importorskip("torch")
    with Worker(job(model, Torch())) as worker, pytest.raises(WorkerFailed) as caught:
        worker.ask("load")
    assert "source=" in caught.value.failure.fix


def test_integers_beyond_a_table_name_the_range_that_fits(model: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1,4] x) => (float[1,4,2] y) <float[5,2] t = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}> {
      wide = Cast<to = 7>(x) far = Add(wide, wide) y = Gather(t, far) }"""
    onnx.save(onnx.parser.parse_model(text), model)
    with Worker(job(model)) as worker, pytest.raises(WorkerFailed) as caught:
        worker.ask("load")
        worker.ask("score", indices=[4], metrics=[])
    assert "--range INPUT:0..4" in caught.value.failure.fix


def test_a_worker_is_not_waited_for_beyond_what_may_be_built_in(model: Path) -> None:
    began = time.monotonic()
    with (
        Worker(job(model, Hang(at="load"))) as worker,
        time_limit.at_most(0.3),
        pytest.raises(OutOfTime),
    ):
        worker.ask("load")
    assert not worker.alive and time.monotonic() - began < 60


@pytest.mark.parametrize("at", ["load", "first", "burst"])
def test_a_hang_ends_at_the_deadline_of_what_it_hangs_in(model: Path, at: str) -> None:
    deadlines = dict.fromkeys(("load", "first", "burst"), 60.0) | {at: 0.5}
    with Worker(job(model, Hang(at=at)), deadlines=deadlines) as worker:
        for do, arguments in (("load", {}), ("first", {}), ("burst", {"at": 0, "runs": 2})):
            if do == at:
                with pytest.raises(WorkerFailed, match=f"no answer to '{at}' after 0.5 s") as late:
                    worker.ask(do, **arguments)
                starved = (None, Interruption.BUSY) if os.getloadavg()[0] > 2 else (None,)
                assert late.value.interruption in starved  # an interpreter starts within it too
                break
            worker.ask(do, **arguments)
    assert not worker.alive


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists() or not hasattr(os, "sched_setaffinity"),
    reason="the kernel does not tell how long threads wait",
)
def test_a_deadline_missed_for_want_of_a_cpu_is_no_verdict(model: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    spin = [sys.executable, "-c", "while True: pass"]
    neighbours = []
    try:
        with Worker(job(model, Hang(computes=True)), deadlines={"first": 3.0}) as worker:
            worker.ask("load")
            neighbours = [subprocess.Popen(spin) for _ in range(4)]
            for process in neighbours:
                os.sched_setaffinity(process.pid, {cpu})
            for thread in Path(f"/proc/{worker.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {cpu})
            with pytest.raises(WorkerFailed, match="no answer to 'first' after 3 s") as late:
                worker.ask("first")
    finally:
        for process in neighbours:
            process.kill()
            process.wait()
    assert late.value.interruption is Interruption.BUSY
    with pytest.raises(CutShort, match="other processes took the CPU") as told:
        late.value.demand_verdict()
    assert "close other programs, or give more --time" in told.value.fix


LEAVES = """
import subprocess, sys
held = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print('{"left": %d}' % held.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="this system has no process groups")
def test_what_a_worker_leaves_behind_is_not_waited_for(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may fork; the fork holds the worker's pipes open when that is gone."""
    (model.parent / "leaves.py").write_text(LEAVES)
    monkeypatch.setenv("PYTHONPATH", str(model.parent), prepend=os.pathsep)
    with Worker(job(model), program=["leaves"]) as worker:
        left = psutil.Process(worker.ask("load")["left"])
        assert left.is_running()
        began = time.monotonic()
    assert time.monotonic() - began < 60, "that one sleeps for ten minutes"
    with suppress(psutil.NoSuchProcess):
        left.wait(timeout=30)
    assert not left.is_running()


# Limits that hold wherever a worker is started, from whatever it was asked.


@pytest.fixture
def job_limits(tmp_path: Path) -> WorkerJob:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "toy.onnx")
    feeds = tmp_path / "feeds.stream"
    stream.write_stream(feeds, [{"x": np.zeros((1, 4), np.float32)}])
    return WorkerJob({MAIN: tmp_path / "toy.onnx"}, Cpu(), {MAIN: feeds}, tmp_path / "work")


@pytest.mark.parametrize(
    "part",
    [
        {"backend": Cpu(threads=100_000)},
        {"backend": Cpu(parallel=True, inter_threads=100_000)},
        {"backend": Openvino(streams=100_000)},
        {"workload": Throughput(sessions=100_000)},
    ],
)
def test_no_worker_starts_with_more_threads_than_twice_the_cpus(job_limits, part) -> None:
    with pytest.raises(BadSettings, match="is too large: this process may use") as refused:
        Worker(replace(job_limits, **part))
    assert refused.value.fix == f"give {2 * effective_cpus()} or less"
    assert not job_limits.out.exists()


def test_no_worker_starts_with_a_batch_beyond_memory(job_limits) -> None:
    with pytest.raises(BadData, match="a run of 1,000,000,000 samples would take") as refused:
        Worker(replace(job_limits, workload=Latency(batch=10**9)))
    assert "--batch" in refused.value.fix
    assert not job_limits.out.exists()


def test_a_property_that_counts_threads() -> None:
    with pytest.raises(BadSettings, match="is too large"):
        Openvino(config=("COMPILATION_NUM_THREADS=100000",))


def test_an_affinity_of_many_cpus_is_refused_before_they_are_listed() -> None:
    with pytest.raises(BadSettings, match="cannot be read"):
        Cpu(affinity="1-99999999999")


def test_a_worker_takes_the_limit_that_is_in_force(job_limits) -> None:
    with memory.limit_memory(10 * 2**30), Worker(job_limits) as worker:
        assert worker.limit == 10 * 2**30
    with memory.limit_memory(10 * 2**30), Worker(job_limits, memory_limit=2**30) as worker:
        assert worker.limit == 2**30


def test_what_an_answering_worker_holds_is_seen_between_two_looks(job_limits, monkeypatch) -> None:
    rare = Allowance(tick_s=3600)
    monkeypatch.setattr(process, "process_allowance", lambda: rare)
    with (
        Worker(job_limits, memory_limit=20 * 2**20) as worker,
        pytest.raises(WorkerFailed, match="ended by the memory limit of 20 MiB: it wanted"),
    ):
        worker.ask("load")


VERBS = {
    "bench": ["--time", "1"],
    "tune": ["--time", "5s"],
    "profile": [],
    "cost": ["--timeline", "--starts", "1"],
    "optimize": ["--time", "5s", "-o", "run"],
    "verify": ["toy.onnx"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_worker_is_ended_says_so(job_limits, verb, monkeypatch, capsys) -> None:
    monkeypatch.chdir(job_limits.out.parent)
    before = set(job_limits.out.parent.iterdir())
    code = main([verb, "toy.onnx", *VERBS[verb], "--memory-limit", "20M"])
    said = capsys.readouterr().err
    assert code == BAD, said
    assert "ended by the memory limit of 20 MiB: it wanted" in said
    assert set(job_limits.out.parent.iterdir()) == before


def test_convert_says_so_where_numbers_are_not_compared(job_limits, monkeypatch, capsys) -> None:
    monkeypatch.chdir(job_limits.out.parent)
    main(["convert", "toy.onnx", "out.onnx", "--opt-level", "basic", "--memory-limit", "20M"])
    assert "ended by the memory limit of 20 MiB: it wanted" in capsys.readouterr().err


@pytest.mark.parametrize("on", ["cpu(threads=100000)", "openvino(streams=100000)"])
@pytest.mark.parametrize(
    "verb", ["bench", "tune", "profile", "cost --timeline", "optimize", "inspect"]
)
def test_backends_on_the_command_line(job_limits, verb, on, monkeypatch, capsys) -> None:
    monkeypatch.chdir(job_limits.out.parent)
    assert main([*verb.split(), "toy.onnx", "--on", on]) == BAD
    said = capsys.readouterr().err
    assert "100000 is too large: this process may use" in said
    assert f"give {2 * effective_cpus()} or less" in said


# Computing apart from copying: on buffers that are bound, here in the CPU's own memory.


MODEL_TIMING = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[N, 64] x) => (float[N, 64] y) { y = Relu(x) }
"""


@contextmanager
def bench(folder: Path, *, bound: bool) -> Iterator[Workbench]:
    """A worker's state over two samples; its session has buffers, or none."""
    model, feeds = folder / "m.onnx", folder / "feeds"
    onnx.save(onnx.parser.parse_model(MODEL_TIMING), model)
    rows = [{"x": np.full((rows, 64), -1, np.float32)} for rows in (1, 3)]
    stream.write_stream(feeds, iter(rows))
    with ExitStack() as stack:
        found = Workbench(WorkerJob({MAIN: model}, Cpu(), {MAIN: feeds}, folder), stack)
        made = ort.make_session_options(1, "basic", verbose=False)
        opening = device_session.open_device_session(
            model, made, [("CPUExecutionProvider", {})], device="cpu", io_binding=bound
        )
        session: Session = stack.enter_context(opening)
        assert isinstance(session, DeviceTimed) == bound
        found.sessions[MAIN] = session
        yield found


def test_every_round_is_staged_and_computed(tmp_path: Path) -> None:
    with bench(tmp_path, bound=True) as one:
        found = tasks.device(one, seconds=5)
    assert len(found["compute_ns"]) == 2 and min(found["compute_ns"]) > 0
    assert found["gpus"] == [], "a CPU is no GPU"


def test_what_lies_in_the_cpus_memory_is_not_timed_apart(tmp_path: Path) -> None:
    with bench(tmp_path, bound=False) as one:
        assert tasks.device(one) == {"compute_ns": [], "gpus": []}
