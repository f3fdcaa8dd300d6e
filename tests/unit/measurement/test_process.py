"""What an environment offers is asked of a worker that runs in it."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from ortune_toys.backends.crash import Crash
from ortune_toys.backends.hang import Hang
from ortune_toys.backends.hog import Hog

from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.onnxruntime import keys, session
from ortune.backends.torch import Torch
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadSettings, OutOfTime
from ortune.core.hardware.cpus import effective_cpus, instruction_sets, usable_cpus
from ortune.core.observer import Probe
from ortune.core.progress import time_limit
from ortune.data import stream
from ortune.graph.parts.probed import Watch
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.measurement.process import Worker, WorkerFailed, query_capabilities, require_backend
from ortune.measurement.worker.workbench import Workbench
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


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = query_capabilities(Cpu())
    monkeypatch.setattr(Worker, "__init__", lambda *args, **kwargs: pytest.fail("asked again"))
    assert query_capabilities(Cpu()) is first


def test_the_callers_own_installation_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "explain_missing_runtime", lambda: pytest.fail("asked here"))
    monkeypatch.setattr(keys, "list_libraries", lambda *args: pytest.fail("searched here"))
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
        tmp_path / "feeds.stream",
        ({"x": np.full((1, 4), i, np.float32)} for i in range(5)),
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
                with pytest.raises(WorkerFailed, match=f"no answer to '{at}' after 0.5 s"):
                    worker.ask(do, **arguments)
                break
            worker.ask(do, **arguments)
    assert not worker.alive


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
