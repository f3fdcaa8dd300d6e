"""Where a new measurement will fall is stated in the report and travels in the bundle."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.noise import again
from tests.unit import studies

from ortune.bundle.pack import pack
from ortune.bundle.read import collect_evidence, read_bundle
from ortune.core.acceptance import Outcome
from ortune.core.budget import Budget
from ortune.core.errors import Interruption
from ortune.core.plugins import codec
from ortune.core.section import Text
from ortune.core.study import Study
from ortune.core.trial import Block as Turn
from ortune.core.trial import Burst, Interval, Pair, ScoreChange, Trial, Verdict
from ortune.measurement.timing import stats
from ortune.reporting.sections.noise import NoiseSection
from ortune.reporting.sections.notes import NotesSection
from ortune.reporting.sections.verdict import VerdictSection

FULL = "the disk was full"
FORESEEN = Interval(0.52, 0.491, 0.552)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    made = studies.study(tmp_path)
    final = replace(made.trials[-1], predicted=FORESEEN)
    return replace(made, trials=(*made.trials[:-1], final))


def texts(study: Study) -> list[str]:
    return [one.text for one in VerdictSection().blocks(study) if isinstance(one, Text)]


def test_the_verdict_says_where_a_new_measurement_falls(study: Study) -> None:
    said = "Latency 0.5200 ms vs 1.000 ms; repeat measurements: 1.81-2.04x (95 %)."
    assert said in texts(study)
    assert study.predict_speedup(study.best) == Interval(1 / 0.52, 1 / 0.552, 1 / 0.491)


def colour(study: Study) -> str:
    """The tone of the first line."""
    return next(one.tone for one in VerdictSection().blocks(study) if isinstance(one, Text))


def test_the_colour_is_that_of_the_whole_claim(study: Study) -> None:
    best = study.trials[-1]
    assert colour(study) == "good"
    likely = replace(best, scores=(replace(best.scores[0], verdict=Verdict.LIKELY),))
    doubtful = replace(best, predicted=Interval(0.98, 0.95, 1.01))
    for changed in (likely, doubtful):
        assert colour(replace(study, trials=(*study.trials[:-1], changed))) == "warn"
    said = texts(replace(study, trials=(*study.trials[:-1], doubtful)))
    assert "Repeat measurements may show no speed-up." in said
    alone = replace(study, trials=study.trials[:1])
    assert colour(alone) == "plain"
    assert colour(studies.changed(alone, too_noisy=True, advice=("pin it",))) == "warn"


def test_what_could_not_be_tried_is_not_called_slower(study: Study) -> None:
    original, winner, slower, *_ = study.trials
    full = replace(slower, key="full", ratio=None, interruption=Interruption.DISK)
    ended = [replace(full, key=f"cut{i}") for i in range(5)]
    ended.append(replace(full, interruption=Interruption.KILLED))

    def judge(*trials: Trial) -> Study:
        return replace(study, trials=(original, *trials))

    causes = f"{FULL}, killed from outside"
    everything = judge(*ended)
    assert texts(everything)[0] == (
        "the original stays: no other plan could be tried to the end; "
        f"6 of 6 plans could not be tried to the end: {causes}"
    )
    assert everything.counts[Outcome.CUT_SHORT] == 6 and not everything.counts[Outcome.FAILED]
    assert any("6 cut short from outside" in text for text in texts(everything))
    some = texts(judge(slower, *ended))[0]
    assert some.startswith("the original stays: no other plan within the accuracy budget was f")
    assert some.endswith(f"; 6 of 7 plans could not be tried to the end: {causes}")
    won = judge(winner, ended[0], study.best)
    assert texts(won)[0].startswith("1.92x as fast") and colour(won) == "warn"
    assert texts(won)[0].endswith(f"; 1 of 2 plans could not be tried to the end: {FULL}")
    assert colour(everything) == "warn"


def test_a_claim_of_disturbed_runs_is_not_green(study: Study) -> None:
    best = study.trials[-1]
    assert best.measurement is not None

    def waited(*shares: float) -> Study:
        burst = Burst((1_000_000,) * len(shares), shares)
        taken = replace(best.measurement, pairs=(Pair((Turn(burst, burst),)),))
        return replace(study, trials=(*study.trials[:-1], replace(best, measurement=taken)))

    assert colour(waited(0.0, 0.01, 0.5, -1.0)) == "good", "unknown ones do not count"
    busy = waited(0.0, 0.03, 0.5)
    assert colour(busy) == "warn"
    assert any(
        text.startswith("CPU was busy: 67 % of timed runs had to wait") for text in texts(busy)
    )


def test_a_run_of_before_says_nothing_of_it(tmp_path: Path) -> None:
    old = studies.study(tmp_path)
    assert not any("repeat measurements" in text for text in texts(old))
    assert old.predict_speedup(old.best) is None


def test_a_bundle_carries_it(study: Study, tmp_path: Path) -> None:
    bundle = read_bundle(pack(study, tmp_path / "toy.ortune"))
    assert bundle.evidence.trials[-1].predicted == FORESEEN
    assert again.stated(bundle.evidence)[1] == FORESEEN


def test_an_older_bundle_predicts_from_its_raw_samples(tmp_path: Path) -> None:
    made = studies.study(tmp_path)
    taken = collect_evidence(made, [made.best])
    data = codec.encode(taken)
    for trial in data["trials"]:
        del trial["predicted"]
    old = codec.decode(type(taken), data)
    measured = old.trials[-1].measurement
    assert measured is not None
    assert again.stated(old)[1] == stats.predict_ratio(measured.pairs)


def test_a_trial_keeps_it_through_json() -> None:
    trial = replace(studies.baseline(), predicted=FORESEEN)
    assert codec.decode(Trial, codec.encode(trial)).predicted == FORESEEN


def test_a_machine_too_noisy_for_a_verdict_says_so_and_what_to_change(study: Study) -> None:
    advice = ("5.0 % of the CPU time was stolen: use another machine", "the governor: set it")
    level = replace(study.trials[-1], ratio=Interval(0.8, 0.6, 1.07))
    claimed = studies.changed(study, advice=advice, too_noisy=True)
    assert texts(claimed)[2] == f"Measured on a noisy machine: {advice[0]}.", "a claim stands"
    assert colour(claimed) == "warn"
    noisy = replace(claimed, trials=(*study.trials[:-1], level))
    assert texts(noisy)[1] == f"The machine was too noisy for a verdict: {advice[0]}."
    warned = [b for b in NoiseSection().blocks(noisy) if isinstance(b, Text)]
    assert [one.tone for one in warned] == ["warn", "warn"]
    assert not any("too noisy" in text for text in texts(studies.changed(study, advice=advice)))


def undecided(study: Study, **more: object) -> Study:
    """A study whose only finalist may be outside its budget of a point."""
    score = replace(
        study.best.scores[0],
        metric="top1",
        value=0.895,
        base=0.9,
        samples=200,
        verdict=Verdict.UNDECIDED,
        needed=1530,
        chance=0.4,
        change=ScoreChange(-0.005, -0.014, 0.002),
        **more,
    )
    budget = Budget.parse("top1>=base-0.01")
    header = replace(study.header, job=replace(study.header.job, budget=budget), outlook="612 do")
    final = replace(study.trials[-1], scores=(score,))
    return replace(study, header=header, trials=(*study.trials[:-1], final))


def test_what_is_faster_and_undecided_is_named_first_with_its_change_and_what_decides(
    study: Study,
) -> None:
    made = undecided(study)
    assert made.best == made.baseline and made.undecided == (made.trials[-1],)
    first, second, *_ = texts(made)
    assert first == (
        "the original stays: too few samples show that a faster plan is within the accuracy budget"
    )
    assert second == (
        "Faster, but not handed out: optimized graph · 1 thread, 1.92x [1.87, 1.96]: top-1 -0.5 "
        "points [-1.4, +0.2] on 200 samples, the budget asks for at least -1 points (90 % "
        "interval); that does not decide it. About 415 samples like these in all would make it "
        "likely; proving it needs about 1,530 independent samples in all."
    )
    notes = [one.text for one in NotesSection().blocks(made) if isinstance(one, Text)]
    assert "612 do" not in notes, "another count"
    assert not any("not handed out" in text for text in texts(study))


def test_an_undecided_finalist_comes_before_plans_that_were_measured_once(study: Study) -> None:
    made = undecided(study)
    rough = replace(
        made.trials[1], key="f" * 16, effort="screen", ratio=Interval(0.25, 0.0, math.inf)
    )
    trials = (*made.trials[:-1], rough, made.trials[-1])
    cut = studies.changed(made, trials=trials, finished="time")
    assert cut.unconfirmed and cut.undecided
    assert "too few samples" in texts(cut)[0]


def test_of_a_share_the_interval_is_of_what_is_inside(study: Study) -> None:
    made = undecided(study, share=0.95)
    made = replace(made, header=study.header)
    score = replace(
        made.trials[-1].scores[0], metric="cosine", change=ScoreChange(0.98, 0.94, 0.995)
    )
    final = replace(made.trials[-1], scores=(score,))
    assert (
        ": 98 % [94, 99.5] of 200 samples keep cosine 0.999, at least 95 % have to (90 % interval)"
    ) in texts(replace(made, trials=(*made.trials[:-1], final)))[1]
