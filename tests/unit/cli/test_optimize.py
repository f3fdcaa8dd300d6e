"""Exit codes of a search, and the settings file that repeats it."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click
import pytest

from ortune.backends.cpu import Cpu
from ortune.cli import optimize
from ortune.core import settings, wording
from ortune.core.acceptance import FASTEST, Goal
from ortune.core.budget import Budget
from ortune.core.errors import Interruption, OrtuneError
from ortune.core.facts import Facts
from ortune.core.step import AS_IS, Recipe
from ortune.core.study import Ending, Header, Job, Study
from ortune.core.trial import Interval, Plan, Score, Status, Trial, Verdict
from ortune.measurement.workloads.latency import Latency
from ortune.metrics.cosine import Cosine
from ortune.search.optimize import run
from ortune.search.request import Optimize

BUDGET = Budget(Cosine(), 0.999)
JOB = Job("m.onnx", "d", "d", BUDGET, "", Latency(), Cpu(), {}, {})
FACTS = Facts({}, 0, 0, 0, {}, 17, 8, (), ())
BASE = Trial("base", Plan(AS_IS, Cpu()), "search", Status.OK, Interval(1, 1, 1), size=90)
SCORE = Score("cosine", 1.0, 1.0, 1.0, 1.0, 9, Verdict.PROVED)
FAST = Trial(
    "fast", Plan(Recipe("clean"), Cpu()), "final", Status.OK, Interval(0.5, 0.4, 0.6), (SCORE,)
)
SMALL = replace(FAST, size=20)
CUT = Trial("cut", FAST.plan, "search", Status.FAILED, interruption=Interruption.DISK)
LATE = replace(CUT, key="late", interruption=Interruption.TIME)
LIKELY = replace(FAST, part="search", scores=(replace(SCORE, verdict=Verdict.LIKELY),))


def study(*trials: Trial, finished: str = "done", wanted: Goal = FASTEST) -> Study:
    header = Header(replace(JOB, wanted=wanted), FACTS)
    return Study("run", header, (BASE, *trials), Ending(finished=finished))


@pytest.mark.parametrize(
    ("found", "target", "strict", "code"),
    [
        (study(), None, False, 0),
        (study(FAST), None, True, 0),
        (study(FAST), 1.6, False, 0),
        (study(FAST), 1.9, False, 1),
        (study(FAST), 2.5, False, 1),
        (study(), 1.5, False, 1),
        (study(), None, True, 0),
        (study(LIKELY), None, True, 1),
        (study(LIKELY), None, False, 0),
        (study(FAST, finished="interrupted"), 2.5, True, 3),
        (study(SMALL, wanted=Goal(max_size=20)), None, False, 0),
        (study(SMALL, wanted=Goal(max_size=20)), 1.6, False, 0),
        (study(FAST, wanted=Goal(max_size=20)), None, False, 1),
        (study(FAST, wanted=Goal(max_size=100)), 1.6, False, 1),
        (study(wanted=Goal(max_size=20)), None, False, 1),
        (study(wanted=Goal(max_size=20), finished="interrupted"), None, False, 3),
        (study(wanted=Goal("size")), None, False, 0),
        (study(CUT), None, False, 3),
        (study(FAST, CUT), None, False, 3),
        (study(FAST, CUT), 1.6, False, 0),  # the target is reached
        (study(FAST, CUT), 2.5, False, 3),
        (study(CUT, wanted=Goal(max_size=20)), None, False, 3),
        (study(FAST, CUT, replace(FAST, key="cut")), None, False, 0),  # tried again
        (replace(study(FAST), batches={8: (BASE, CUT)}), None, False, 3),
        (study(LATE), None, False, 0),
    ],
)
def test_exit_codes(found: Study, target: float | None, strict: bool, code: int) -> None:
    assert optimize.exit_code(found, target, strict) == code


def test_a_bound_that_nothing_keeps_is_named() -> None:
    found = study(wanted=Goal(max_size=1 << 20))
    found = replace(found, trials=(replace(BASE, size=3 << 20),))
    said = "the original stays, and 3 MiB is above --max-size 1 MiB"
    assert optimize.describe_miss(found, None) == optimize.describe_miss(found, 2.0) == said
    assert optimize.describe_miss(study(FAST), 2.5) == "2.5 times as fast; the best is 2.00x"
    assert optimize.describe_miss(study(), None) == "proved accuracy; the best is 1.00x"
    best = optimize.serialize_study(found, Path("r.html"))["best"]
    assert isinstance(best, dict) and best["over"] == "3 MiB is above --max-size 1 MiB"


def test_the_summary_says_what_could_be_proved_and_what_the_verdict_means() -> None:
    page = Path("run/report.html")
    found = study(FAST)
    said = "60 samples: 18 are held out"
    told = optimize.serialize_study(replace(found, header=Header(JOB, FACTS, outlook=said)), page)
    assert told["outlook"] == said
    assert cast(dict[str, Any], told["best"])["meaning"] == wording.explain_verdict(SCORE) != ""
    stays = optimize.serialize_study(study(), page)
    assert (told["improved"], stays["improved"]) == (True, False)
    assert stays["outlook"] == cast(dict[str, Any], stays["best"])["meaning"] == ""


def test_settings_hold_what_was_given_with_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    asked = Optimize(
        (Path("m.onnx"),),
        data="data",
        calibration="pkg.module:function",
        time="3m",
        target_speedup=2.0,
        shapes=("x:1x3",),
        command="ortune optimize m.onnx",
        verbose=True,
    )
    text = settings.format_settings(asked, but=("verbose", "out", "executor"))
    assert tomllib.loads(text) == {
        "model": [str(tmp_path / "m.onnx")],
        "data": str(tmp_path / "data"),
        "calibration": "pkg.module:function",
        "time": "3m",
        "target_speedup": 2.0,
        "shapes": ["x:1x3"],
        "workload": "latency",
        "batch": 0,
        "on": "auto",
        "prefer": "speed",
    }


def test_what_was_switched_off_stays_off_when_a_run_is_repeated(tmp_path: Path) -> None:
    path = tmp_path / "ortune.toml"
    path.write_text(settings.format_settings(Optimize("m.onnx", strict=True, regions=False)))
    assert {"regions = false", "strict = true"} <= set(path.read_text().splitlines())
    assert parsed(str(path))["regions"] is False
    assert parsed(str(path), "--regions")["regions"] is True
    assert parsed("m.onnx")["regions"] is True
    assert parsed("m.onnx", "--no-regions")["regions"] is False


def test_a_settings_file_from_before_the_record_went_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ortune.toml"
    path.write_text('model = ["m.onnx"]\nwarm_start = false\nstrict = true\n')
    asked = parsed(str(path))
    assert asked["strict"] is True and "warm_start" not in asked


@pytest.mark.parametrize("word", ["--warm-start", "--no-warm-start"])
def test_the_option_of_the_record_is_answered_in_two_lines(word: str) -> None:
    with pytest.raises(OrtuneError, match="was removed") as refused:
        parsed("m.onnx", word)
    assert refused.value.fix.startswith("leave it out")


def test_what_is_wanted_is_read_with_units_and_goes_into_the_settings(tmp_path: Path) -> None:
    asked = Optimize("m.onnx", prefer="size", max_size="100MB", max_memory="0.5G", portable=True)
    assert asked.goal == Goal("size", 100 << 20, 1 << 29, True)
    path = tmp_path / "ortune.toml"
    path.write_text(settings.format_settings(asked))
    again = Optimize(**tomllib.loads(path.read_text()))
    assert again.goal == asked.goal


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prefer": "cost"}, "prefer: 'cost' is not allowed"),
        ({"max_size": "huge"}, "max_size: cannot read the size 'huge'"),
        ({"max_memory": 0}, "max_memory: 0 is too small"),
    ],
)
def test_wrong_wishes_are_refused_with_a_fix(given: dict[str, Any], says: str) -> None:
    with pytest.raises(OrtuneError, match=says) as error:
        Optimize("m.onnx", **given)
    assert error.value.fix


def parsed(*args: str) -> dict[str, object]:
    return optimize.command.make_context("optimize", list(args)).params


def test_a_settings_file_stands_behind_the_options(tmp_path: Path) -> None:
    path = tmp_path / "ortune.toml"
    path.write_text(
        'models = ["a.onnx", "b.onnx"]\ntime = "9m"\nbatch = 4\nshapes = ["x:1x3"]\n'
        "runtime_log = true\n"
    )
    found = parsed(str(path), "--time", "30s")
    assert found["model"] == (Path("a.onnx"), Path("b.onnx"))
    assert found["time"] == 30.0
    assert found["batch"] == 4
    assert found["shapes"] == {"x": (1, 3)}
    assert found["verbose"] is True, "a word of older files"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('models = ["a.onnx"]\nbudgets = "cosine>=0.9"\n', "budgets"),
        ("time = 3m\n", "not TOML"),
        ('time = "3m"\n', None),
    ],
)
def test_a_wrong_settings_file_is_an_error(tmp_path: Path, text: str, said: str | None) -> None:
    (tmp_path / "ortune.toml").write_text(text)
    with pytest.raises(OrtuneError if said else click.MissingParameter, match=said):
        parsed(str(tmp_path / "ortune.toml"))


def test_a_wrong_baseline_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    notes: list[object] = []
    out = tmp_path / "run"
    with pytest.raises(OrtuneError, match="no backend 'nope'"):
        run(Optimize("m.onnx", baseline="nope", on="cpu", out=out, sink=notes.append))
    assert not notes
    assert not out.exists()
