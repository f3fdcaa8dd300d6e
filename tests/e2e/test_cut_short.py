"""What from outside cuts a search short is no verdict: a second run ends as a whole one does."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.e2e.test_optimize import command
from tests.models import write_classifier
from tests.picking import Pick, searching_by

import ortune as ot
from ortune.cli.main import DONE, INTERRUPTED
from ortune.cli.optimize import exit_code
from ortune.core.errors import Interruption, OrtuneError
from ortune.core.trial import Proposal, Status, Trial
from ortune.graph.io import file
from ortune.measurement.process import Worker
from ortune.reporting.html import report
from ortune.reporting.sections.verdict import describe_answer
from ortune.search.experiment import golden
from ortune.search.experiment.ledger import Ledger, read_header
from ortune.search.policy import LeftOut, View

BUDGET = "top1>=base-0.02"
FULL = str(Interruption.DISK)
NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass(frozen=True)
class First:
    """Tries the first plan that calibrates, behind the exact steps there are."""

    def next(self, view: View) -> Proposal | None:
        for plan in view.space.all_plans:
            steps = plan.recipe.steps
            if len(steps) > 1 and any(step.name() == "int8-static" for step in steps):
                return None if view.has_trial(plan) else Proposal(plan, "search", "first")
        raise AssertionError("no plan calibrates")

    def explain_untried(self, view: View) -> LeftOut:
        return LeftOut()


@dataclass
class Cut:
    """Ends a worker once, from outside, when it is asked for something.

    Attributes:
        label: Of the worker's folder.
        do: What it is asked for.
        times: How often; what asks again by itself is ended again.
        act: Ends it, or changes what it is asked.
    """

    label: str
    do: str
    act: Callable[[Worker, dict[str, Any]], None]
    times: int = 1
    ask: Callable[..., dict[str, Any]] = Worker.ask
    done: list[str] = field(default_factory=list)

    def __call__(self, worker: Worker, do: str, **more: Any) -> dict[str, Any]:
        if (
            len(self.done) < self.times
            and do == self.do
            and f"-{self.label}/job.json" in worker.reproduce
        ):
            self.done.append(do)
            self.act(worker, more)
        return self.ask(worker, do, **more)


def kill(worker: Worker, more: dict[str, Any]) -> None:
    """Do as the kernel does where memory is gone."""
    os.kill(worker.pid, signal.SIGKILL)


def fill_disk(worker: Worker, more: dict[str, Any]) -> None:
    """Have it write to a device that is full."""
    more["save"] = "/dev/full"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_classifier(tmp_path_factory.mktemp("task"), samples=160)


def search(task: tuple[Path, Path], out: Path, **more: Any) -> ot.Study:
    options: dict[str, Any] = {"on": "scripted", "baseline": "scripted", "time": "300s"}
    options |= {"budget": BUDGET, "regions": False} | more
    with pytest.MonkeyPatch.context() as patch:
        searching_by(patch, First() if options["on"] == "scripted" else Pick())
        return ot.optimize(task[0], data=task[1], out=out, **options)


def tell(study: ot.Study) -> list[tuple[object, ...]]:
    """Return what does not depend on a clock of the world."""
    rows = [(t.key, t.part, t.status, t.ratio, t.scores, t.size) for t in study.trials]
    return sorted(rows, key=lambda row: str(row[:2]))


@pytest.fixture(scope="module")
def whole(task: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> ot.Study:
    study = search(task, tmp_path_factory.mktemp("whole") / "run")
    assert study.best.plan.recipe.lossy, "else nothing is shown here"
    return study


def run_cut(task: tuple[Path, Path], out: Path) -> list[Trial]:
    """Search while something is about to happen; return the trials that it cut short."""
    try:
        search(task, out)
    except OrtuneError as error:
        assert "run" in error.fix
    trials = Ledger(out).trials if out.exists() else []
    return [trial for trial in trials if trial.interruption is not None]


def require_whole(task: tuple[Path, Path], out: Path, whole: ot.Study) -> ot.Study:
    """Run the same command again: it ends where an uninterrupted run ended."""
    again = search(task, out)
    assert tell(again) == tell(whole)
    assert (again.best.key, again.finished) == (whole.best.key, whole.finished)
    assert not any(trial.interruption for trial in again.trials)
    return again


@pytest.mark.parametrize(
    ("label", "do", "cut"),
    [
        ("setup", "score", ""),
        ("observe", "observe", "search"),
        ("search", "burst", "search"),
        ("final", "score", "final"),
        ("golden", "load", ""),
        *(
            pytest.param(*row, marks=pytest.mark.long)
            for row in (
                ("setup", "load", ""),
                ("compare", "score", "search"),
                ("search", "score", "search"),
                ("final", "load", "final"),
                ("baseline", "burst", ""),
            )
        ),
    ],
)
def test_a_worker_that_is_killed_from_outside(
    task: tuple[Path, Path],
    tmp_path: Path,
    whole: ot.Study,
    monkeypatch: pytest.MonkeyPatch,
    label: str,
    do: str,
    cut: str,
) -> None:
    ending = Cut(label, do, kill, times=2 if do == "observe" else 1)
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "ask", lambda *args, **more: ending(*args, **more))
        trials = run_cut(task, tmp_path / "run")
    assert ending.done
    assert [trial.part for trial in trials] == [cut] * bool(cut)
    for trial in trials:
        assert trial.status is Status.FAILED
        assert trial.interruption is Interruption.KILLED
        assert "killed by SIGKILL, from outside" in trial.why
    if cut:
        notes = ot.read_study(tmp_path / "run").notes
        assert any("1 plan cut short (1 killed from outside)" in text for text in notes)
    require_whole(task, tmp_path / "run", whole)


def fail_once(real: Callable[..., Any], wanted: Callable[..., bool]) -> Callable[..., Any]:
    """Return a function that says once that the disk is full."""
    done: list[bool] = []

    def function(*args: Any, **more: Any) -> Any:
        if not done and wanted(*args):
            done.append(True)
            raise NO_SPACE
        return real(*args, **more)

    return function


def test_a_disk_that_is_full_while_the_original_answers(
    task: tuple[Path, Path], tmp_path: Path, whole: ot.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = Cut("setup", "score", fill_disk)
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "ask", lambda *args, **more: ending(*args, **more))
        with pytest.raises(OrtuneError, match="No space left on device"):
            search(task, tmp_path / "run")
    assert ending.done and not (tmp_path / "run").exists()
    require_whole(task, tmp_path / "run", whole)


def test_a_disk_that_is_full_while_a_plan_is_built(
    task: tuple[Path, Path], tmp_path: Path, whole: ot.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(file, "save", fail_once(file.save, lambda *_: True))
        (trial,) = run_cut(task, tmp_path / "run")
    assert trial.interruption is Interruption.DISK and "No space left" in trial.why
    require_whole(task, tmp_path / "run", whole)


def test_a_disk_that_stays_full_is_no_finding(
    task: tuple[Path, Path], tmp_path: Path, whole: ot.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*args: object, **more: object) -> None:
        raise NO_SPACE

    with monkeypatch.context() as patch:
        patch.setattr(file, "save", save)
        study = search(task, tmp_path / "run")
    assert describe_answer(study).endswith("1 of 1 plan could not be tried to the end: " + FULL)
    assert exit_code(study, None, False) == INTERRUPTED
    assert exit_code(require_whole(task, tmp_path / "run", whole), None, False) == DONE


def test_a_disk_that_is_full_while_golden_samples_are_written(
    task: tuple[Path, Path], tmp_path: Path, whole: ot.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(golden, "ensure_outputs", fail_once(golden.ensure_outputs, lambda *_: True))
        study = search(task, tmp_path / "run")
    assert study.best.key == whole.best.key, "the answer is there"
    assert exit_code(study, None, False) == INTERRUPTED
    require_whole(task, tmp_path / "run", whole)


@pytest.mark.long
def test_a_small_disk(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1,1024] x) => (float[1,1024] y) { a = Identity(x) b = MatMul(a, w) y = Relu(b) }"""
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m t "$0" && exec "$@"', disk]
    if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    words = ["optimize", tmp_path / "m.onnx", "--time", "10s", "--on", "cpu", "-o", disk / "run"]
    done = subprocess.run(
        [*mounted, sys.executable, "-m", "ortune.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == INTERRUPTED, done.stderr
    assert f" could not be tried to the end: {FULL}" in done.stdout


@pytest.mark.parametrize("at", [2, *(pytest.param(at, marks=pytest.mark.long) for at in (1, 4))])
def test_a_disk_that_is_full_while_a_trial_is_written(
    task: tuple[Path, Path],
    tmp_path: Path,
    whole: ot.Study,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
) -> None:
    ledger, seen = tmp_path / "run" / "ledger.jsonl", list[int]()

    def sync(number: int) -> None:
        if os.path.realpath(f"/proc/self/fd/{number}") == str(ledger.resolve()):
            seen.append(number)
            if len(seen) == at:
                raise NO_SPACE

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        with pytest.raises(OrtuneError, match=r"cannot write .*ledger\.jsonl"):
            search(task, tmp_path / "run")
    assert not ledger.exists() or ledger.read_bytes().count(b"\n") == at - 1
    require_whole(task, tmp_path / "run", whole)


def test_a_disk_that_is_full_while_the_report_is_written(
    whole: ot.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_once(os.fsync, lambda *_: True))
        with pytest.raises(OrtuneError, match="cannot write"):
            report(whole, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
    assert report(whole, tmp_path / "report.html").stat().st_size > 1000


def test_a_build_that_the_time_ended(
    task: tuple[Path, Path], tmp_path: Path, whole: ot.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(View, "build_s", property(lambda view: 1e-3))
        (trial,) = run_cut(task, tmp_path / "run")
    assert trial.interruption is Interruption.TIME and "ran out of time" in trial.why
    require_whole(task, tmp_path / "run", whole)


@pytest.mark.parametrize(
    ("backend", "more"), [("crash", {}), ("hog", {"memory_limit": 350 << 20})]
)
def test_what_is_the_fault_of_a_plan_stays_a_verdict(
    task: tuple[Path, Path], tmp_path: Path, backend: str, more: dict[str, Any]
) -> None:
    out = tmp_path / "run"
    study = search(task, out, on=backend, **more)
    assert study.trials[1].status is Status.FAILED and study.trials[1].interruption is None
    lines = (out / "ledger.jsonl").read_bytes()
    search(task, out, on=backend, **more)
    assert (out / "ledger.jsonl").read_bytes() == lines


def test_a_run_with_more_time_grows_to_what_a_fresh_one_has(
    task: tuple[Path, Path], tmp_path: Path, whole: ot.Study
) -> None:
    out = tmp_path / "run"
    small = search(task, out, time=1e-3)  # as few samples as the shortest time allows
    lines = (out / "ledger.jsonl").read_bytes()
    search(task, out, time=1e-3)
    assert (out / "ledger.jsonl").read_bytes() == lines, "the same time changes nothing"
    before = read_header(out)
    again = search(task, out)
    lines = (out / "ledger.jsonl").read_bytes()
    search(task, out, time=1e-3)
    assert (out / "ledger.jsonl").read_bytes() == lines, "less time takes nothing away"
    after, fresh = read_header(out), read_header(Path(whole.root))
    assert before is not None and after is not None and fresh is not None
    assert {name: len(part) for name, part in before.parts.items()} != {
        name: len(part) for name, part in fresh.parts.items()
    }
    assert after.parts == fresh.parts
    assert all(set(part) <= set(after.parts[name]) for name, part in before.parts.items())
    assert small.best.score is not None and again.best.score is not None
    assert small.best.score.samples < again.best.score.samples
    assert [row[:2] for row in tell(again)] == [row[:2] for row in tell(whole)]
    samples = {t.key: t.score and t.score.samples for t in whole.trials if t.part == "search"}
    for trial in again.trials:
        if trial.part == "search":
            assert (trial.score and trial.score.samples) == samples[trial.key]


def ended_by_hang_up(task: tuple[Path, Path], out: Path, sign: Callable[[], bool]) -> int:
    """Start a search, end its terminal as soon as there is a sign of how far it is; return how."""
    process = subprocess.Popen(
        command(task, out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 100
    while not sign() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    assert process.poll() is None, "it was over before"
    os.killpg(process.pid, signal.SIGHUP)
    return process.wait(timeout=60)


@pytest.mark.long
def test_a_lost_terminal_in_every_phase(task: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    reference = command(task, tmp_path / "whole")
    subprocess.run(reference, capture_output=True, check=True, timeout=300)

    def lines(needle: str) -> int:
        path = out / "ledger.jsonl"
        return path.read_text().count(needle) if path.exists() else 0

    signs: list[Callable[[], bool]] = [
        lambda: (out / "workers").is_dir() and any((out / "workers").glob("*-setup")),
        lambda: (out / "artefacts").is_dir(),
        lambda: lines('"part":"search"') >= 2,
        lambda: any((out / "workers").glob("*-search")) and lines('"part":"search"') >= 4,
        lambda: any((out / "workers").glob("*-final")),
        lambda: (out / "ending.json").exists(),
    ]
    *earlier, at_the_end = signs
    for sign in earlier:
        assert ended_by_hang_up(task, out, sign) == -signal.SIGHUP
    # It may be over before the signal is there.
    assert ended_by_hang_up(task, out, at_the_end) in (-signal.SIGHUP, DONE)
    subprocess.run(command(task, out), capture_output=True, check=True, timeout=300)
    studies = [ot.read_study(folder) for folder in (out, tmp_path / "whole")]
    facts = [{(t.key, t.part, t.status) for t in study.trials} for study in studies]
    assert facts[0] == facts[1]
    assert studies[0].best.key == studies[1].best.key
    assert (out / "report.html").is_file()
