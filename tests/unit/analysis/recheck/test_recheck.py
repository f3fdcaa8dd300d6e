"""A bundle is replayed where it is now; what changed is said, with the reason."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.unit import environments, studies
from tests.unit.bundle import several

import ortune as ot
from ortune.analysis.recheck.recheck import (
    RecheckResult,
    RecheckRow,
    ReplayTiming,
    ReplayVerdict,
    judge_times,
    list_verdict_changes,
)
from ortune.bundle.pack import pack
from ortune.cli.main import main
from ortune.core.errors import BadModel, OrtuneError
from ortune.core.study import Study
from ortune.core.trial import Interval
from ortune.measurement import environment as lookup
from ortune.measurement.environments.installed import add_environment
from ortune.measurement.timing import stats
from ortune.reporting.markdown import render_markdown_parts
from ortune.reporting.python.recheck import build_recheck_parts

WIDE, NARROW = Interval(1.0, 0.01, 100.0), Interval(0.02, 0.01, 0.03)
WRONG = studies.TUNED.replace("{1,2,3,4}", "{9,9,9,9}")


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single pair of processes: nothing here is about the width of its interval."""
    monkeypatch.setattr(stats, "PAIRS", 1)


def predicted(study: Study, where: Interval | None) -> Study:
    """Return a study whose winner was predicted to fall there when it is measured again."""
    trials = tuple(
        replace(one, predicted=where) if one.part == "final" else one for one in study.trials
    )
    return replace(study, trials=trials)


def bundle(folder: Path, where: Interval | None = WIDE, **known: str) -> Path:
    made = predicted(studies.study(folder, **known), where)  # type: ignore[arg-type]
    return pack(made, folder / "toy.ortune")


def wrong(folder: Path) -> Path:
    """Return a bundle whose packed answers are another model's."""
    made = studies.study(folder)
    other = studies.write_model(folder / "other" / "toy.onnx", WRONG)
    studies.write_golden(made, made.best, other)
    return pack(made, folder / "toy.ortune")


def test_one_that_is_as_packed(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    for _ in range(8):  # what waited for a CPU has no verdict, and is to be run again
        found = ot.recheck(path, time=0.3)
        if found.replays[0].verdict is not ReplayVerdict.UNTIMED:
            break
    (only,) = found.replays
    assert found.good and only.verdict is ReplayVerdict.SAME and found.changes == ()
    assert only.answers_db == math.inf and only.differs == ""
    assert only.ratio is not None and only.ratio.low < 10 and only.beside is None
    assert only.runtime == f"onnxruntime {version('onnxruntime')}"
    assert found.predicted == WIDE and found.packed == Interval(0.52, 0.51, 0.535)
    assert found.summary()["good"] and found.records()[0]["verdict"] == "as packed"


def test_one_that_is_slower_than_was_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # By a single pair nothing is beyond the noise: one degree of freedom makes 64 errors of it.
    monkeypatch.setattr(stats, "PAIRS", 3)
    path, comment = bundle(tmp_path, NARROW), tmp_path / "comment.md"
    words = ["recheck", str(path), "--time", "2s", "--markdown", str(comment), "--json"]
    assert main(words) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["good"] is False
    assert "slower with onnxruntime" in told["reason"]
    assert "predicted was [0.010, 0.030]" in told["replays"][0]["why"]
    text = comment.read_text()
    assert text.startswith("**toy.ortune: slower with")
    assert "| runtime | answers dB | ratio" in text


def test_one_whose_answers_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recheck", str(wrong(tmp_path)), "--no-timed"]) == 1
    said = capsys.readouterr().out
    assert "answers changed with onnxruntime" in said and "at least 40 dB needed" in said
    assert "not timed: not asked for" in said


def test_what_was_never_confirmed_is_not_judged_by_its_time(tmp_path: Path) -> None:
    found = ot.recheck(bundle(tmp_path, None), time=0.2)
    assert found.good and found.replays[0].verdict is ReplayVerdict.UNTIMED
    assert found.replays[0].ratio is not None


def test_another_runtime_is_tried_in_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = environments.linked(monkeypatch)
    path = bundle(tmp_path)
    found = ot.recheck(path, runtime="1.30.0,1.31.1", timed=False)
    assert [one.environment for one in found.replays] == ["ort-1.30.0", "ort-1.31.1"]
    assert len(asked) == 2 and all(one.answers_db == math.inf for one in found.replays)
    wrongly = ot.recheck(wrong(tmp_path / "b"), runtime="1.30.0,1.31.1", timed=False)
    assert "the oldest release tried" in wrongly.reason
    assert wrongly.changes and wrongly.replays[0].differs == ""
    add_environment("onnxruntime==1.30.0", "mine")
    assert main(["recheck", str(path), "--environment", "mine", "--time", "0.2s"]) == 0
    said = capsys.readouterr().out
    assert "as packed" in said and "beside here" in said


def test_an_environment_that_is_not_here_is_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(bundle(tmp_path))
    for words, what in (
        (["--environment", "gone"], "no environment 'gone' on this machine"),
        (["--environment", "../bin"], "no environment '../bin'"),
        (["--environment", "gone", "--runtime", "1.24..1.31"], "both say where to run"),
        (["--runtime", "9..10"], "no release of onnxruntime in the table"),
        (["--plan", "ffff"], "holds no plan 'ffff'"),
    ):
        assert main(["recheck", path, *words]) == 2
        said = capsys.readouterr().err
        assert what in said and len(said.splitlines()) == 2


def test_a_plan_is_named_by_its_key(tmp_path: Path) -> None:
    assert ot.recheck(bundle(tmp_path), plan="aa11", timed=False).key == "aa11" * 4


def test_a_bundle_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadModel):
        ot.recheck(path)
    with pytest.raises(OrtuneError):
        ot.recheck(studies.write_model(tmp_path / "m.onnx", studies.MODEL))


def test_a_plan_that_does_not_run_is_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments.linked(monkeypatch)
    add_environment("onnxruntime==1.24.4", "bare")
    for link in (lookup.environment_folder("bare")).rglob("linked.pth"):
        link.unlink()
    found = ot.recheck(bundle(tmp_path), environment="bare", timed=False)
    (only,) = found.replays
    assert only.verdict is ReplayVerdict.FAILED and not found.good and "numpy" in only.why
    assert found.changes == ("bare: does not run",)


PACKED = Interval(0.5, 0.45, 0.55)


@pytest.mark.parametrize(
    ("decibels", "timed", "where", "verdict"),
    [
        (math.inf, ReplayTiming(Interval(0.5, 0.48, 0.52)), PACKED, ReplayVerdict.SAME),
        (60.0, ReplayTiming(Interval(0.3, 0.28, 0.32)), PACKED, ReplayVerdict.SAME),
        (60.0, ReplayTiming(Interval(0.6, 0.56, 0.64)), PACKED, ReplayVerdict.SLOWER),
        (60.0, ReplayTiming(Interval(0.6, 0.54, 0.66)), PACKED, ReplayVerdict.UNCLEAR),
        (60.0, ReplayTiming(Interval(0.5, 0.48, 0.52)), None, ReplayVerdict.UNTIMED),
        (60.0, ReplayTiming(), PACKED, ReplayVerdict.UNTIMED),
        (39.0, ReplayTiming(), None, ReplayVerdict.CHANGED),
        (math.nan, ReplayTiming(), None, ReplayVerdict.CHANGED),
        (
            -math.inf,
            ReplayTiming(Interval(0.5, 0.48, 0.52)),
            Interval(0.5, 0.4, 0.6),
            ReplayVerdict.CHANGED,
        ),
        (60.0, ReplayTiming(None, Interval(1.2, 1.1, 1.3)), None, ReplayVerdict.SLOWER),
        (60.0, ReplayTiming(None, Interval(1.04, 1.03, 1.05)), None, ReplayVerdict.UNTIMED),
        (60.0, ReplayTiming(None, Interval(1.2, 0.9, 1.6)), None, ReplayVerdict.UNTIMED),
    ],
)
def test_how_it_is_judged(
    decibels: float, timed: ReplayTiming, where: Interval | None, verdict: ReplayVerdict
) -> None:
    found, why = judge_times(decibels, timed, where)
    assert found is verdict
    assert bool(why) == (verdict not in (ReplayVerdict.SAME, ReplayVerdict.UNTIMED))


def replays(*verdicts: ReplayVerdict) -> list[RecheckRow]:
    return [RecheckRow(f"ort-{k}", f"onnxruntime {k}", one) for k, one in enumerate(verdicts)]


def test_the_first_release_that_changed_is_named_and_the_one_that_came_back() -> None:
    same, changed, slower = ReplayVerdict.SAME, ReplayVerdict.CHANGED, ReplayVerdict.SLOWER
    assert list_verdict_changes(replays(same, ReplayVerdict.UNCLEAR, ReplayVerdict.UNTIMED)) == ()
    assert list_verdict_changes(replays(same, changed, changed)) == (
        "onnxruntime 1: answers changed",
    )
    assert list_verdict_changes(replays(changed, slower, same)) == (
        "onnxruntime 0: answers changed",
        "onnxruntime 1: slower",
        "onnxruntime 2: as packed",
    )


def test_the_table_names_all_runtimes() -> None:
    rows = tuple(replays(ReplayVerdict.SAME, ReplayVerdict.CHANGED))
    rows = (replace(rows[0], answers_db=math.inf, beside=Interval(1.0, 0.9, 1.1)), rows[1])
    found = RecheckResult(
        *("b.ortune", "clean @ cpu", "k" * 16, "cpu", None, None, 40.0, rows),
        list_verdict_changes(rows),
        False,
        "b.ortune: answers changed",
    )
    text = render_markdown_parts(build_recheck_parts(found))
    assert "beside here" in text and "| onnxruntime 0 | equal |" in text
    assert "changed with onnxruntime 1: answers changed" in text


def test_one_of_several_plans_is_replayed_by_its_own_answers(tmp_path: Path) -> None:
    made = several.study(tmp_path)
    path = pack(made, tmp_path / "toy.ortune", trial=several.CPU, with_=[several.OTHER])
    for key, backend in ((several.OTHER, "cpu(level=basic)"), (several.CPU, "cpu(threads=1)")):
        found = ot.recheck(path, plan=key[:4], timed=False)
        assert found.good and found.key == key and found.backend == backend
    with pytest.raises(OrtuneError):
        ot.recheck(path, require_signature=tmp_path / "public.pem")
