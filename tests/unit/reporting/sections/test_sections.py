"""Every section says what the study says, first things first."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.section import Block, Heading, Scatter, Section, Table, Text
from ortune.core.step import Edit, Quantizer, Recipe
from ortune.core.study import Contribution, Ending, Header, Study
from ortune.core.trial import Block as Turn
from ortune.core.trial import (
    Burst,
    Interval,
    Measurement,
    Pair,
    Plan,
    Score,
    Status,
    UntriedPlan,
    Verdict,
)
from ortune.core.wording import format_megabytes, format_milliseconds, format_score_value
from ortune.reporting.blocks import gather_parts

SECTIONS = (
    "answers",
    "batches",
    "budgets",
    "comparison",
    "front",
    "history",
    "machine",
    "machines",
    "next-steps",
    "noise",
    "notes",
    "plans",
    "ranking",
    "reproduce",
    "runs",
    "search",
    "steps",
    "summary",
    "untried",
    "verdict",
)


@pytest.fixture
def study() -> Study:
    source = Path("toy.onnx")
    winner = studies.trial("aa11" * 4, Plan(studies.CLEAN, Cpu(threads=1)), 0.5)
    finalist = replace(winner, part="final", ratio=Interval(0.52, 0.51, 0.535))
    job = replace(studies.job(names=()), model=str(source))
    command = "ortune optimize toy.onnx -o run"
    header = Header(job, studies.FACTS, command, parts={"search": tuple(range(32))})
    trials = (studies.baseline(), winner, *studies.losers(""), finalist)
    return Study("run", header, trials, Ending(finished="done"))


def blocks(name: str, study: Study) -> list[Block]:
    return list(catalog.load_plugin(Section, name)().blocks(study))


def first_line(study: Study) -> str:
    block = blocks("verdict", study)[0]
    assert isinstance(block, Text)
    return block.text


def table(name: str, study: Study) -> Table:
    return next(block for block in blocks(name, study) if isinstance(block, Table))


def with_final(study: Study, **changes: object) -> Study:
    return replace(study, trials=(*study.trials[:-1], replace(study.trials[-1], **changes)))


def scored(verdict: Verdict, needed: int | None) -> tuple[Score, ...]:
    return (Score("cosine", 0.9995, 1.0, 0.99, 1.0, 32, verdict, needed),)


def test_all_are_found_in_order(study: Study) -> None:
    assert tuple(catalog.list_plugins(Section)) == SECTIONS
    names = [part.name for part in gather_parts(study)]
    assert names[:4] == ["summary", "front", "next-steps", "plans"] and names[-1] == "reproduce"
    shown = [part.name for part in gather_parts(study, terminal=True)]
    assert shown == ["verdict", "comparison", "ranking"]


def test_the_first_line_is_the_answer(study: Study) -> None:
    assert first_line(study) == (
        "1.92x as fast as the original (99 % interval 1.87-1.96) by optimized graph · 1 thread; "
        "cosine 1 -> 0.9995 (32 samples), proved within the accuracy budget"
    )
    assert blocks("verdict", study)[0] == Text(first_line(study), "good")


def meanings(study: Study) -> list[str]:
    texts = [block.text for block in blocks("verdict", study) if isinstance(block, Text)]
    return [text for text in texts if text.startswith(("Accuracy proved", "Accuracy likely"))]


def test_what_proved_means_is_one_sentence_of_the_report(study: Study) -> None:
    claim = "at least 95 % of inputs keep cosine 0.999"
    score = replace(study.best.scores[0], claim=claim, error=0.05 / 3, proved_on=80, basis="80 in")
    proved = with_final(study, scores=(score,))
    assert meanings(proved) == [f"Accuracy proved: with 98.3 % confidence {claim} (80 in)."]
    kept = with_final(study, ratio=Interval(0.99, 0.97, 1.01))
    assert not meanings(kept), "nothing is claimed of the original"


def test_a_likely_winner_says_what_would_prove_it(study: Study) -> None:
    likely = with_final(study, scores=scored(Verdict.LIKELY, 1232))
    assert first_line(likely).endswith("likely within the accuracy budget, not proved")
    (meaning,) = meanings(likely)
    assert meaning.startswith("Accuracy likely, not proved: cosine is within the budget on 32 ")
    assert meaning.endswith("; proving it needs about 1,232 independent samples in all.")
    unknown = with_final(study, scores=scored(Verdict.LIKELY, None))
    assert meanings(unknown)[0].endswith("; no number of samples like these would prove it.")
    assert blocks("verdict", unknown)[0] == Text(first_line(unknown), "warn")


def test_the_front_gives_the_winner_the_verdict_of_the_first_line(study: Study) -> None:
    search = replace(study.trials[1], scores=scored(Verdict.LIKELY, 59))
    shown = replace(study, trials=(study.trials[0], search, *study.trials[2:]))
    verdicts = {row[0]: row[-1] for row in table("front", shown).rows}
    assert first_line(shown).endswith("proved within the accuracy budget")
    assert verdicts[study.label(study.best.plan)] == "proved"
    assert verdicts.get("original", "") == ""


def test_what_was_told_meanwhile_stands_on_the_page_alone(study: Study) -> None:
    ending, outlook = (
        Ending(finished="time", notes=("clean: nothing to change",)),
        "32 samples are held out",
    )
    told = replace(study, ending=ending, header=replace(study.header, outlook=outlook))
    title = Heading("Notes", folded=True)
    assert blocks("notes", told) == [title, Text(outlook), Text(*ending.notes)]
    assert blocks("notes", study) == []
    shown = [one for part in gather_parts(told, terminal=True) for one in part.blocks]
    assert not any(outlook in str(one) or ending.notes[0] in str(one) for one in shown)


@pytest.mark.parametrize(
    "changes",
    [
        {"ratio": Interval(0.99, 0.97, 1.01)},
        {"status": Status.FAILS, "scores": scored(Verdict.FAILS, None)},
        {"status": Status.FAILED, "ratio": None, "scores": (), "measurement": None},
    ],
)
def test_the_original_stays(study: Study, changes: dict[str, object]) -> None:
    kept = with_final(study, **changes)
    assert first_line(kept) == (
        "the original stays: no plan within the accuracy budget was faster by more than the noise"
    )
    assert table("comparison", kept).columns == ("", "original")
    ranked = table("ranking", kept)
    assert ranked.rows[0][0] == "original" and ranked.marks[0] == "win"


def test_nothing_tried(study: Study) -> None:
    alone = replace(study, trials=study.trials[:1])
    assert first_line(alone) == "the original stays: no plan was tried"
    assert not blocks("front", alone)


def test_time_that_was_too_short_is_no_verdict(study: Study) -> None:
    failed = replace(study.trials[1], ratio=None, status=Status.FAILED)
    short = studies.changed(study, trials=(study.trials[0], failed), finished="time")
    assert first_line(short) == "the original stays: no plan was measured in the time (--time)"


def test_an_interrupted_search_claims_less(study: Study) -> None:
    cut = studies.changed(study, trials=study.trials[:2], finished="interrupted")
    assert cut.best is cut.baseline, "what was measured once is not handed out"
    assert first_line(cut) == "the original stays: no faster plan was re-measured yet"
    said = [block.text for block in blocks("verdict", cut) if isinstance(block, Text)]
    assert "The search was interrupted; the same command continues it." in said[1]
    once = "Not re-measured: optimized graph · 1 thread, 2.00x [1.92, 2.04], measured once "
    pack = f"ortune pack {shlex.quote(cut.root)} -o model.ortune"
    assert f"{once}({pack} --plan {cut.trials[1].key[:8]} --unconfirmed)." in said
    assert not any("No data was given" in text for text in said)
    parts = dict(cut.header.parts) | {"calibration": ()}
    layered = replace(cut.header.facts, ops={"MatMul": 1})
    guessed = replace(cut, header=replace(cut.header, parts=parts, facts=layered))
    said = [block.text for block in blocks("verdict", guessed) if isinstance(block, Text)]
    assert "Made-up samples: " in said[-2] and "--data SAMPLES" in said[-1]
    ranked = table("ranking", cut).rows
    assert ranked[1][-1] == "not re-measured"


def test_original_and_winner_side_by_side(study: Study) -> None:
    found = {row[0]: row[1:] for row in table("comparison", study).rows}
    assert found["latency, ms"] == ("1.000", "0.5200")
    assert found["score"] == ("cosine 1", "cosine 0.9995")
    assert found["size, MB"] == ("5.4", "1.4")
    assert found["backend"] == ("cpu", "cpu(threads=1)")


def test_milliseconds_are_of_the_blocks_behind_the_ratio_beside_them(study: Study) -> None:
    best = study.trials[-1]
    assert best.measurement is not None
    slow = Burst((2_000_000, 2_020_000, 1_980_000), (0.0,) * 3)
    taken = Measurement((Pair((Turn(slow, slow),)),), 1, 1, 1)
    found = table("comparison", with_final(study, measurement=taken))
    assert found.rows[0] == ("latency, ms", "2.000", "1.040"), "not the search's 1 ms"
    shown = [
        name
        for one in gather_parts(study)
        for b in one.blocks
        if isinstance(b, Table)
        for name in b.columns
        if "ms" in name.split()
    ]
    assert shown == [], "no milliseconds stand beside a ratio of other blocks"


def test_scores_stand_beside_scores_on_the_same_samples(study: Study) -> None:
    final = (Score("cosine", 0.96, 0.97, 0.95, 0.97, 800, Verdict.PROVED),)
    parts = {"search": tuple(range(32)), "final": tuple(range(800))}
    made = studies.changed(with_final(study, scores=final), parts=parts)
    found = {row[0]: row[1:] for row in table("comparison", made).rows}
    assert found["score"] == ("cosine 0.97", "cosine 0.96")
    stages = (Contribution("baseline", made.baseline.key), Contribution("graph", made.best.key))
    rows = table("history", studies.changed(made, history=stages)).rows
    assert [row[3] for row in rows] == ["1", "1 -> 0.9995"]
    plot = next(block for block in blocks("front", made) if isinstance(block, Scatter))
    (win,) = [point.y for point in plot.points if point.tone == "win"]
    assert win == pytest.approx(0.96 - 0.97), "as the decision: paired, on all its samples"
    said = [block.text for block in blocks("ranking", made) if isinstance(block, Text)]
    assert "of finalists all 800 samples" in said[0]
    assert "0.97 -> 0.96" in {row[3] for row in table("ranking", made).rows}


def test_ranking_names_every_plan_once_and_why_it_lost(study: Study) -> None:
    found = table("ranking", study)
    assert [row[0] for row in found.rows] == [
        "optimized graph · 1 thread",
        "original",
        "fp16",
        "int8 static",
        "int8 dynamic",
    ]
    assert found.rows[0][1:3] == ("1.92x", "1.87-1.96")
    assert found.rows[0][-1].startswith("the winner")
    assert found.rows[2][-1] == "cosine 0.91 misses the budget of 0.999"
    assert found.rows[4][-1] == "the worker died with signal 11 (SIGSEGV)"
    assert found.marks == ("win", "", "lose", "lose", "lose")
    codes = [b for b in blocks("ranking", study) if isinstance(b, Text) and b.tone == "code"]
    assert codes == [Text("python -m ortune.measurement.worker run/workers/4/job.json", "code")]


def test_a_finalist_that_failed_is_among_the_finalists(study: Study) -> None:
    other = replace(study.trials[2], part="final", status=Status.FAILED, error="out of memory")
    found = table("ranking", replace(study, trials=(*study.trials, other)))
    assert found.rows[1][0] == "int8 static" and found.rows[1][-1].startswith("finalist")


def test_front(study: Study) -> None:
    plot = next(block for block in blocks("front", study) if isinstance(block, Scatter))
    assert {point.tone for point in plot.points} == {"original", "win", "lose"}
    assert [plot.points[index].label for index in plot.front] == [
        "fp16",
        "optimized graph · 1 thread",
        "original",
    ]
    assert len(table("front", study).rows) == 3


def test_a_score_that_is_not_a_number_is_not_plotted(study: Study) -> None:
    broken = replace(
        study.trials[2],
        key="ee55" * 4,
        scores=(
            Score("cosine", float("nan"), 1.0, float("nan"), float("nan"), 32, Verdict.FAILS),
        ),
    )
    made = replace(study, trials=(*study.trials, broken))
    plot = next(block for block in blocks("front", made) if isinstance(block, Scatter))
    assert all(point.y == point.y for point in plot.points)
    assert any(row[3] == "-" for row in table("ranking", made).rows)


def test_history_needs_a_change(study: Study) -> None:
    first, winner = study.trials[0].key, study.best.key
    made = studies.changed(
        study, history=(Contribution("baseline", first), Contribution("runtime", winner))
    )
    assert [row[:2] for row in table("history", made).rows] == [
        ("original", "-"),
        ("1 thread", "1.92x [1.87, 1.96]"),
    ]
    assert not blocks(
        "history", studies.changed(study, history=(Contribution("baseline", first),))
    )


def test_steps_say_what_was_done_and_undone(study: Study) -> None:
    note = Edit("int8-static", 0, kept=False, note="12 dB")
    made = with_final(study, edits=(Edit("simplify", 1200, seconds=0.5), note))
    tables = [block for block in blocks("steps", made) if isinstance(block, Table)]
    assert tables[0].rows[0] == ("simplify", "1,200", "0.5", "")
    assert tables[0].rows[1][-1] == "rolled back: 12 dB"
    assert ("fuse-gelu", "int8-dynamic", "outputs differ by 12 dB") in tables[1].rows


def test_reproduce_quotes_the_folder(study: Study) -> None:
    texts = [
        b.text for b in blocks("reproduce", replace(study, root="my run")) if isinstance(b, Text)
    ]
    assert "ortune pack 'my run' -o model.ortune" in texts
    assert study.command in texts


def test_numbers() -> None:
    times = {51_234: "0.05123", 1_919_999: "1.920", 12_304_000: "12.30", 5.4e9: "5400", 0: "-"}
    assert {ns: format_milliseconds(ns) for ns in times} == times and format_milliseconds(
        None
    ) == "-"
    sizes = {None: "-", 812: "0.0008", 5_400_000: "5.4", 438_123_456: "438"}
    assert {size: format_megabytes(size) for size in sizes} == sizes
    assert (
        format_score_value(0.99996),
        format_score_value(float("nan")),
        format_score_value(None),
    ) == ("0.99996", "-", "-")


def test_plans_that_were_left_out_are_listed_with_the_reason(study: Study) -> None:
    assert blocks("untried", study) == []
    left = tuple(UntriedPlan(f"int8 @ cpu(threads={n})", "time was up") for n in range(3))
    cut = replace(study, ending=replace(study.ending, untried=7, left_out=left))
    assert table("untried", cut).rows == tuple((one.plan, "-", "-", "-", one.why) for one in left)
    assert blocks("untried", cut)[-1] == Text("And 4 plans more.")
    whole = replace(study, ending=replace(study.ending, untried=3, left_out=left))
    assert len(blocks("untried", whole)) == 2


def test_a_lone_block_is_unconfirmed_too(study: Study) -> None:
    lone = replace(study.trials[1], effort="screen", ratio=Interval(0.25, 0.0, math.inf))
    cut = studies.changed(study, trials=(study.baseline, lone), finished="interrupted")
    assert cut.unconfirmed == (lone,)
    assert first_line(cut) == "the original stays: no faster plan was re-measured yet"
    said = [block.text for block in blocks("verdict", cut) if isinstance(block, Text)]
    (once,) = (text for text in said if text.startswith("Not re-measured:"))
    assert "optimized graph · 1 thread, about 4.00x, measured once (ortune pack" in once


def test_what_was_expected_of_an_untried_plan_has_columns(study: Study) -> None:
    speed = Interval(4.0, 1.9, 8.3)
    expected = UntriedPlan("int8 @ cpu", "no time left", "int8", speed, 0.42, 18.0)
    cut = replace(study, ending=replace(study.ending, untried=1, left_out=(expected,)))
    assert table("untried", cut).rows == (
        ("int8", "4x (1.9-8.3)", "42 %", "18 s", "no time left"),
    )


def test_changes_that_were_not_separated_are_named_together(study: Study) -> None:
    step = parse_plugin(Quantizer, "int8-static")
    plan = Plan(Recipe(str(step), (step,)), Cpu(threads=1))
    made = with_final(study, plan=plan)
    stages = (
        Contribution("baseline", made.baseline.key),
        Contribution("runtime", made.trials[-1].key),
    )
    rows = table("history", studies.changed(made, history=stages)).rows
    assert rows[1][0] == "int8 static + 1 thread (not separated: out of time)"
    halfway = replace(study.trials[2], plan=replace(plan, backend=Cpu()), error="died")
    failed = studies.changed(made, history=stages, trials=(*made.trials, halfway))
    rows = table("history", failed).rows
    assert rows[1][0] == "int8 static + 1 thread (not separated: one of them fails alone)"


def test_a_plan_in_full_stands_where_it_can_be_copied(study: Study) -> None:
    spelled = {row[0]: row[1] for row in blocks_table("reproduce", study)}
    assert spelled[study.label(study.best.plan)] == str(study.best.plan)


def blocks_table(name: str, study: Study) -> tuple[tuple[str, ...], ...]:
    """Rows of the first table of a section."""
    return next(block.rows for block in blocks(name, study) if isinstance(block, Table))


def test_one_figure_says_how_many_samples_would_prove_it(study: Study) -> None:
    """The outlook's is of answers that do not change; the winner's of what it lost."""
    outlook = "200 samples: 80 are held out; 598 samples would let it be proved"
    made = replace(study, header=replace(study.header, outlook=outlook))
    said = [block.text for block in blocks("notes", made) if isinstance(block, Text)]
    assert outlook in said, "where the winner's verdict needs no more"
    likely = replace(made.best.score, verdict=Verdict.LIKELY, needed=1200)  # type: ignore[type-var]
    made = with_final(made, scores=(likely,))
    made = replace(made, header=replace(made.header, outlook=outlook))
    assert made.best.score is not None and made.best.score.needed == 1200
    shown = (*blocks("verdict", made), *blocks("notes", made))
    said = [block.text for block in shown if isinstance(block, Text)]
    assert [text for text in said if "prove" in text and "598" in text] == []
    assert sum("1,200" in text for text in said) == 1
