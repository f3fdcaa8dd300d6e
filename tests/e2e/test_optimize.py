"""Whole searches on a small labelled task."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from ortune_toys.backends.scripted import Scripted
from tests.models import write_classifier
from tests.picking import Glance, InOrder, Pick, searching_by

import ortune as ot
from ortune.analysis.benchmark.bench import race_contestants
from ortune.backends.cpu import Cpu
from ortune.cli.main import main
from ortune.core.event import Event, TrialDone
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec
from ortune.core.trial import Status, Verdict
from ortune.data import stream
from ortune.data.zoo import digit_cnn
from ortune.data.zoo.digit_cnn import DigitCnn
from ortune.measurement.job import MAIN, WorkerJob
from ortune.measurement.process import Worker
from ortune.measurement.timing import stats
from ortune.measurement.workloads.throughput import Throughput
from ortune.search.experiment import measure
from ortune.search.experiment.ledger import Ledger, lock_run


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_classifier(tmp_path_factory.mktemp("task"))


def search(task: tuple[Path, Path], out: Path, **more: object) -> ot.Study:
    model, data = task
    options = {
        "budget": "top1>=base-0.02",
        "on": "scripted",
        "baseline": "scripted",
        "time": "300s",
    }
    return ot.optimize(model, data=data, out=out, **(options | more))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def scripted(task: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> ot.Study:
    return search(task, tmp_path_factory.mktemp("first") / "run")


@pytest.fixture(scope="module")
def in_order(task: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> ot.Study:
    with pytest.MonkeyPatch.context() as patch:
        searching_by(patch, InOrder())
        return search(task, tmp_path_factory.mktemp("order") / "run")


def test_the_smaller_file_wins_on_the_scripted_clock(scripted: ot.Study) -> None:
    best = scripted.best
    assert best.part == "final"
    assert best.plan.recipe.lossy
    assert best.size is not None
    assert scripted.baseline.size is not None
    assert scripted.speedup(best).low > 2.5
    assert best.score is not None
    assert best.score.verdict in (Verdict.PROVED, Verdict.LIKELY)
    assert best.score.value >= best.score.base - 0.02
    assert scripted.finished == "done"


def test_a_broken_quantizer_is_rejected_although_it_is_not_slower(
    task: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching_by(monkeypatch, Pick("broken"))
    (broken,) = search(task, tmp_path / "run").trials[1:]
    assert broken.status is Status.FAILS
    assert "misses the budget" in broken.why


def test_a_plan_five_percent_slower_is_rejected(
    task: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching_by(monkeypatch, Pick(""))
    study = search(task, tmp_path / "run", on="scripted(slow=1.05)")
    (same,) = study.trials[1:]
    assert same.status is Status.LEVEL, "one pair does not show 5 %"
    assert same.ratio is not None and not same.ratio.clear
    assert same.why == "no faster (within noise)"
    assert same.ratio.value == pytest.approx(1.05, abs=0.001)
    assert same.key != study.best.key


def test_a_fast_plan_that_fails_is_rescued(task: tuple[Path, Path], tmp_path: Path) -> None:
    trials = search(task, tmp_path / "run", on="scripted(slow=0.99)").trials
    saved = next(t for t in trials if t.stage == "rescue" and t.status is Status.OK)
    assert any(t.status is Status.FAILS for t in trials[: trials.index(saved)])
    assert "is outside the accuracy budget" in saved.proposed
    assert saved.ratio is not None and saved.ratio.value < 1


def test_a_plan_four_times_as_fast_is_found(scripted: ot.Study) -> None:
    assert scripted.best.ratio is not None
    assert scripted.best.ratio.value < 0.25
    assert all("expected" in t.proposed for t in scripted.trials if t.stage == "search")


def test_finalists_are_judged_by_all_pairs_of_the_run(scripted: ot.Study) -> None:
    lines = Path(scripted.root, "ledger.jsonl").read_text().splitlines()
    again = len(scripted.final) > 1
    assert (len(lines) > len(scripted.trials)) is again, "earlier finalists are concluded again"
    for trial in scripted.final:
        assert trial.measurement is not None
        learnt = measure.pool_variance(scripted.trials, but=trial.key)
        others = [one.measurement for one in scripted.final if one.key != trial.key]
        counts = [len(taken.pairs) - 1 for taken in others if taken is not None]
        assert learnt.df == 1 + sum(counts)
        assert trial.ratio == stats.claim_ratio(trial.measurement.pairs, learnt)
        assert trial.predicted == stats.predict_ratio(trial.measurement.pairs, learnt)


def test_the_history_is_measured(scripted: ot.Study) -> None:
    names = [stage.name for stage in scripted.history]
    assert names[0] == "baseline"
    assert names[-1] in ("quantization", "runtime")
    assert all(scripted.find(stage.key) for stage in scripted.history)


def test_a_scripted_clock_gives_the_same_ledger_and_winner(
    task: tuple[Path, Path], in_order: ot.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching_by(monkeypatch, InOrder())
    again = search(task, tmp_path / "run")
    facts = [
        [(t.key, t.part, t.status, t.ratio, t.scores, t.size, t.why) for t in study.trials]
        for study in (in_order, again)
    ]
    assert facts[0] == facts[1]
    assert again.best.key == in_order.best.key


def test_the_same_command_resumes_and_measures_nothing_twice(
    task: tuple[Path, Path], scripted: ot.Study
) -> None:
    before = Path(scripted.root, "ledger.jsonl").read_bytes()
    events: list[Event] = []
    again = search(task, Path(scripted.root), sink=events.append)
    assert Path(scripted.root, "ledger.jsonl").read_bytes() == before
    assert all(e.cached for e in events if isinstance(e, TrialDone))
    assert again.best.key == scripted.best.key


def test_another_job_in_the_same_folder_is_refused(
    task: tuple[Path, Path], scripted: ot.Study
) -> None:
    with pytest.raises(ot.OrtuneError, match="another job: its budget is"):
        search(task, Path(scripted.root), budget="top1>=base-0.05")


def test_other_data_are_refused_and_leave_the_run_as_it_was(
    task: tuple[Path, Path], scripted: ot.Study, tmp_path: Path
) -> None:
    model, data = task
    arrays = dict(np.load(data / "all.npz"))
    np.savez(tmp_path / "fewer.npz", **{name: values[:50] for name, values in arrays.items()})
    kept = Path(scripted.root, "data", "feeds.stream").read_bytes()
    with pytest.raises(ot.OrtuneError, match="another job: other data"):
        search((model, tmp_path / "fewer.npz"), Path(scripted.root))
    assert Path(scripted.root, "data", "feeds.stream").read_bytes() == kept
    assert not Path(scripted.root, "data.part").exists()


def test_two_searches_do_not_share_a_folder(task: tuple[Path, Path], scripted: ot.Study) -> None:
    with lock_run(Path(scripted.root)), pytest.raises(ot.OrtuneError, match="another search"):
        search(task, Path(scripted.root))


def test_target_speedup_stops_early(task: tuple[Path, Path], tmp_path: Path) -> None:
    study = search(
        task, tmp_path / "run", target_speedup=1.5, budget="top1>=base-0.2", time="120s"
    )
    assert study.finished == "target"
    assert study.speedup(study.best).low >= 1.5


@pytest.fixture(scope="module")
def dying(task: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> ot.Study:
    """Every backend fails in its own way; the search goes on to the next."""
    out = tmp_path_factory.mktemp("dying") / "run"
    return search(task, out, on="crash,hog,hang", time="90s", memory_limit=350 << 20)


@pytest.mark.parametrize(
    ("backend", "said"),
    [("crash", "SIGSEGV"), ("hog", "ended by the memory limit of 350 MiB"), ("hang", "no answer")],
)
def test_a_worker_that_dies_is_a_row(dying: ot.Study, backend: str, said: str) -> None:
    rows = [t for t in dying.trials if t.plan.backend.name() == backend]
    assert rows
    assert all(t.status is Status.FAILED for t in rows)
    assert any(said in t.why for t in rows)
    assert all(t.reproduce for t in rows if said in t.why)
    assert dying.best is dying.baseline


def test_without_data_only_exact_plans_are_tried(task: tuple[Path, Path], tmp_path: Path) -> None:
    study = ot.optimize(
        task[0], on="scripted", baseline="scripted", time="30s", out=tmp_path / "r"
    )
    assert len(study.trials) > 1
    assert not any(t.plan.lossy for t in study.trials)


def test_a_budget_that_the_original_misses_is_refused(
    task: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(ot.OrtuneError, match="the original itself scores"):
        search(task, tmp_path / "run", budget="top1>=0.9999")
    assert not (tmp_path / "run").exists()


def test_the_real_cpu_never_hands_back_a_slower_model(
    task: tuple[Path, Path], tmp_path: Path
) -> None:
    study = search(task, tmp_path / "run", on="cpu(threads=1)", baseline=None, time="20s")
    best = study.best
    assert best.key == study.baseline.key or study.speedup(best).low > 1
    assert best.status is Status.OK


def command(task: tuple[Path, Path], out: Path, time: str = "300s") -> list[str]:
    model, data = task
    return [
        sys.executable, "-m", "tests.picking", "optimize", str(model), "--data", str(data),
        "--budget", "top1>=base-0.02", "--on", "scripted", "--baseline", "scripted",
        "--time", time, "-o", str(out), "--quiet",
    ]  # fmt: skip


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.long)])
def test_kill_9_at_random_moments_loses_and_repeats_nothing(
    task: tuple[Path, Path],
    in_order: ot.Study,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kills: int,
) -> None:
    out = tmp_path / "run"
    rng = random.Random(kills)
    kept: list[str] = []
    for _ in range(kills):
        process = subprocess.Popen(
            command(task, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(rng.uniform(1, 4.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (out / "ledger.jsonl").exists():
            lines = [f"{t.part} {t.key}" for t in Ledger(out).trials]
            assert lines[: len(kept)] == kept, "a trial was lost"
            kept = lines
    searching_by(monkeypatch, InOrder())
    study = search(task, out)
    keys = [f"{t.part} {t.key}" for t in Ledger(out).trials]
    assert keys[: len(kept)] == kept
    assert len(set(keys)) == len(keys), "a trial was made twice"
    assert set(keys) == {f"{t.part} {t.key}" for t in in_order.trials}
    assert study.best.key == in_order.best.key


def test_ctrl_c_keeps_the_best_so_far_and_exits_3(task: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        command(task, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while time.monotonic() < until:
        path = out / "ledger.jsonl"
        if path.exists() and len(path.read_text().splitlines()) >= 3:
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert "Traceback" not in errors
    study = ot.read_study(out)
    assert study.finished == "interrupted"
    assert len(study.trials) >= 3 and (out / "report.html").is_file()


def test_json_of_a_trial_is_plain(scripted: ot.Study) -> None:
    line = Path(scripted.root, "ledger.jsonl").read_text().splitlines()[-1]
    data = json.loads(line)
    assert data["part"] in ("search", "final")
    assert np.isfinite(data["ratio"]["value"])


def test_another_policy_proposes_and_the_search_alone_decides(
    task: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching_by(monkeypatch, Glance(most=3))
    study = search(task, tmp_path / "run")
    glanced = [trial for trial in study.trials if trial.stage == "glance"]
    assert len(glanced) >= 2
    assert all(trial.proposed == "next" for trial in glanced)
    for trial in glanced:
        assert trial.measurement is not None
        assert [len(pair.blocks) for pair in trial.measurement.pairs] == [1]
        assert not trial.scores
        assert trial.status in (Status.SCREENED, Status.SLOWER)
    assert study.best is study.baseline, "no policy makes an unscored plan the winner"
    assert study.finished == "time"
    assert "glanced at a few" in study.notes
    page = ot.report(study, tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("not scored") >= len(glanced)


# Plans that hang, crash or crawl cost a search one trial each, and little of its time.


LIMIT_S = 20
"""It is 10 s on an idle machine."""


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        pytest.param("hang(at=load)", "no answer to 'load'", marks=pytest.mark.long),
        pytest.param("hang", "no answer to 'first'", marks=pytest.mark.long),
        ("hang(at=burst)", "no answer to 'burst'"),
        ("crash(divides=true)", "SIGFPE"),
        ("slowed(by=1000)", "stopped early|no answer to '(first|burst)'|waited for a CPU"),
    ],
)
def test_a_plan_that_goes_wrong_costs_a_few_seconds(
    task: tuple[Path, Path],
    tmp_path: Path,
    backend: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searching_by(monkeypatch, Pick())
    began = time.monotonic()
    study = ot.optimize(
        task[0],
        data=task[1],
        on=backend,
        budget="top1>=base-0.02",
        time="60s",
        out=tmp_path / "run",
    )
    (trial,) = study.trials[1:]
    assert re.search(said, trial.why)
    assert trial.is_disturbed or trial.status is (
        Status.SLOWER if trial.stopped else Status.FAILED
    ), "only runs that waited for a CPU leave it open how slow the plan is"
    assert trial.seconds < LIMIT_S
    assert study.finished == "done" and study.best is study.baseline
    assert time.monotonic() - began < 60 + LIMIT_S


# Searches and benches under a workload that is not the plain latency.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("task"))[0]


def search_workload(model: Path, out: Path, workload: str) -> ot.Study:
    return ot.optimize(
        model, on="scripted", baseline="scripted", workload=workload, time="30s", out=out
    )


def test_a_search_for_throughput_tries_the_splits_and_names_its_workload(
    model: Path, tmp_path: Path
) -> None:
    study = search_workload(model, tmp_path / "run", "throughput(sessions=2)")
    backends = {str(trial.plan.backend) for trial in study.trials}
    assert {"scripted", "scripted(threads=1)"} <= backends or effective_cpus() == 1
    assert str(study.job.workload) == "throughput(sessions=2)"
    base = study.baseline.measurement
    assert base is not None
    entries = base.pairs[0].blocks[0].baseline.latency_ns
    scripted_ns = 1000 * model.stat().st_size
    assert entries[0] == pytest.approx(scripted_ns / 2, rel=1e-3)
    bundle = ot.pack(study, tmp_path / "m.ortune")
    manifest = json.loads(zipfile.ZipFile(bundle).read("manifest.json"))
    assert manifest["workload"] == "throughput(sessions=2)"
    with pytest.raises(ot.OrtuneError, match=r"its workload is throughput\(sessions=2\)"):
        search_workload(model, tmp_path / "run", "latency")


def test_a_bench_reports_what_the_workload_counts(model: Path) -> None:
    # A run takes 1 us a byte, times `slow`: 2 ms and 0.5 ms.
    slow = 2000 / model.stat().st_size
    found = race_contestants(
        [(model, Scripted(slow=slow)), (model, Scripted(slow=slow / 4))],
        workload="arrivals(rate=1000, pattern=constant, seconds=0.02)",
        time=0.1,
        sets=1,
    )
    slower, faster = (row["reported"] for row in found.rows)
    assert not slower["keeps_up"]
    assert slower["load"] == pytest.approx(2, rel=0.01)
    assert slower["achieved_rate"] == pytest.approx(500, rel=0.1)
    assert "cannot keep up" in slower["notes"][0]
    assert faster["keeps_up"]
    assert faster["achieved_rate"] == pytest.approx(1000, rel=0.1)


def test_two_real_sessions_of_one_thread_answer_as_one_does(tmp_path: Path) -> None:
    """Side by side in one process: both splits run, count alike and give the same outputs."""
    DigitCnn().write(tmp_path / "sample")
    rng = np.random.default_rng(0)
    stream.write_stream(
        tmp_path / "f", ({"image": rng.random((1, 1, 28, 28), np.float32)} for _ in range(4))
    )
    told = {}
    for sessions, threads in ((2, 1), (1, 2)):
        out = tmp_path / f"{sessions}x{threads}"
        feeds, workload = {MAIN: tmp_path / "f"}, Throughput(sessions=sessions)
        job = WorkerJob(
            {MAIN: tmp_path / "sample" / "model.onnx"}, Cpu(threads=threads), feeds, out, workload
        )
        with Worker(job) as worker:
            worker.ask("load")
            worker.ask("first")
            timed = worker.ask("burst", at=0, runs=6, each=5, drop=1)
            (details,) = worker.ask("details")["details"]
            saved = str(out / "y")
            worker.ask("score", indices=[0, 1, 2, 3], metrics=[], save=saved)
        assert len(set(timed["latency_ns"])) == 1
        assert details["sessions"] == sessions
        assert len(details["runs_ns"]) == 30
        told[sessions] = np.stack([y["logits"] for y in stream.Stream(Path(saved))])
    assert told[2] == pytest.approx(told[1], abs=1e-4)


# bench and compare together, on the packaged model.


MODEL = Path(digit_cnn.__file__).parent / "digit_cnn.onnx"


def test_a_saved_run_compares_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.json")
    words = ["--levels", "basic,all", "--threads", "1", "-v"]
    assert main(["bench", str(MODEL), *words, "--sets=1", "--time=0.5", "--json", out]) == 0
    said = capsys.readouterr().out
    for heading in ("cpu(threads=1, level=basic)", "p99.9", "memory"):
        assert heading in said
    assert main(["compare", out, out]) == 0
    assert "1.000 [" in capsys.readouterr().out


@pytest.mark.long
def test_a_twin_slower_by_a_tenth_is_flagged_and_the_same_again_is_not(tmp_path: Path) -> None:
    """Needs a machine that is otherwise idle: the times are real."""
    for name, on in (("a", "cpu"), ("b", "cpu"), ("slow", "slowed")):
        spec = f"{on}(threads=1{', by=0.1' if on == 'slowed' else ''})"
        found = json.dumps(codec.encode(ot.bench(MODEL, on=spec, time=5)), default=float)
        (tmp_path / f"{name}.json").write_text(found)
    files = {name: tmp_path / f"{name}.json" for name in ("a", "b", "slow")}
    assert ot.compare([files["a"], files["b"]]).regressions == 0
    assert ot.compare([files["a"], files["slow"]], by=["model"]).regressions == 1
