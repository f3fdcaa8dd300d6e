"""After a search the leading plans are timed at other batches, on scripted workers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit import studies
from tests.unit.search.experiment.scripted import BASE_NS, Script, Scripted, scripted

from ortune.backends.cpu import Cpu
from ortune.core.acceptance import Goal
from ortune.core.errors import BadSettings
from ortune.core.event import Event, Note
from ortune.core.facts import Facts, TensorSpec
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe
from ortune.core.study import Header, Study
from ortune.core.trial import Interval, Plan, Status, Trial, Verdict
from ortune.reporting.sections.batches import describe_best_plans
from ortune.search import by_batch
from ortune.search.batch_rows import at, rows
from ortune.search.by_batch import LEADERS, Sweep, select_leading_plans, validate_batches
from ortune.search.experiment import measure
from ortune.search.experiment.ledger import Ledger, write_header
from ortune.search.experiment.measure import Files
from ortune.search.request import Optimize

FLOAT = Plan(Recipe("clean"), Cpu(threads=1))
INT8 = Plan(
    Recipe("int8", (parse_plugin(Quantizer, "int8-dynamic"),)), Cpu(threads=1, arena=False)
)


def found(plan: Plan, value: float, part: str = "search", **more: Any) -> Trial:
    made = studies.trial(str(plan), plan, value)
    ratio = Interval(value, value * 0.99, value * 1.01)
    return replace(made, **{"part": part, "ratio": ratio, **more})


FLOAT_FINAL = found(FLOAT, 0.6, "final")
SLOWER = found(INT8, 1.2, status=Status.SLOWER, scores=())


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Study]:
    """Sweep a study in which the float model won at batch 1 and int8 was slower, not scored."""
    script = Script()

    def run(*batches: int, seconds: float = 1e9, **ratios: float) -> Study:
        def start(context: Any, models: Any, backend: Any, label: str) -> Scripted:
            batch = context.job.workload.batch
            side = "baseline" if label == "baseline" else "candidate"
            worker = Scripted(script, side, backend)
            name = {FLOAT.backend: "float", INT8.backend: "int8"}.get(backend, "")
            ratio = ratios.get(f"{name}{batch}", 0.5) if side == "candidate" else 1.0
            worker.ns = round(BASE_NS * batch * ratio)
            script.fails = ("candidate", "load") if ratio < 0 else ("", "")
            started.append((batch, name))
            return worker

        context = scripted(tmp_path, monkeypatch, script)
        monkeypatch.setattr(by_batch, "build_all", lambda *_: Files({}, (), 12, True, ""))
        monkeypatch.setattr(measure, "start_worker", start)
        header = replace(studies.study(tmp_path / "made").header, job=context.job)
        write_header(tmp_path, header)
        first = replace(studies.baseline(), scores=FLOAT_FINAL.scores)
        made = Study(str(tmp_path), header, (first, SLOWER, FLOAT_FINAL))
        passed = iter(range(10**6))
        told.clear()
        started.clear()
        swept = Sweep(context, made, lambda: seconds - next(passed), told.append, 0.5)
        swept.run(batches)
        notes.clear()
        notes.extend(swept.notes)
        timed = {b: tuple(Ledger(tmp_path / "batches" / str(b)).trials) for b in batches if b != 1}
        return replace(made, batches=timed)

    return run


told: list[Event] = []
notes: list[str] = []
started: list[tuple[int, str]] = []


def test_a_plan_that_was_slower_and_never_scored_may_win_at_another_batch(
    sweep: Callable[..., Study],
) -> None:
    study = sweep(1, 4, 16, float4=0.6, int84=0.4, float16=0.7, int816=0.3)
    assert list(study.batches) == [4, 16], "the search's own batch is not timed again"
    for batch in (4, 16):
        here = at(study, batch)
        assert here.baseline.key == study.baseline.key and here.job.workload.batch == batch
        assert here.best.plan == INT8 and here.best.part == "final"
        assert here.best.score is not None and here.best.score.verdict is Verdict.LIKELY
        assert len(here.best.measurement.pairs) == 5  # type: ignore[union-attr]
    table = rows(study)
    assert [(one.batch, one.trial.plan, one.state) for one in table] == [
        (1, FLOAT, "confirmed"),
        (4, INT8, "confirmed"),
        (16, INT8, "confirmed"),
    ]
    assert describe_best_plans(study, table) == "optimized graph up to batch 1, int8 from batch 4."
    assert notes == []


def test_the_winner_of_the_search_is_confirmed_too_where_the_leader_is_close(
    sweep: Callable[..., Study],
) -> None:
    def finals(study: Study) -> list[Plan]:
        return [t.plan for t in study.batches[4] if t.part == "final"]

    assert finals(sweep(4, float4=0.505, int84=0.5)) == [INT8, FLOAT]
    assert finals(sweep(4, float4=0.505, int84=0.5)) == [INT8, FLOAT]


def test_far_apart_it_is_not(sweep: Callable[..., Study]) -> None:
    study = sweep(4, float4=0.9, int84=0.3)
    assert [t.plan for t in study.batches[4] if t.part == "final"] == [INT8]


def test_what_was_timed_is_not_timed_again(sweep: Callable[..., Study]) -> None:
    first = sweep(4, float4=0.6, int84=0.4)
    again = sweep(4, float4=0.1, int84=0.1)
    assert started == [] and again.batches == first.batches


def test_where_no_plan_is_faster_the_original_is_best(sweep: Callable[..., Study]) -> None:
    study = sweep(4, float4=1.5, int84=1.5)
    assert [t.part for t in study.batches[4]] == ["search"] * 3
    assert [(one.batch, one.state) for one in rows(study)] == [(1, "confirmed"), (4, "original")]
    assert rows(study)[1].trial.key == study.baseline.key


def test_without_time_nothing_is_timed_or_confirmed_and_that_is_noted(
    sweep: Callable[..., Study],
) -> None:
    study = sweep(4, 16, seconds=0)
    assert study.batches == {4: (), 16: ()} and started == []
    assert notes == [f"out of time, not timed at batch {n}: 2 plans" for n in (4, 16)]
    assert [one.batch for one in rows(study)] == [1]
    study = sweep(4, seconds=2, float4=0.6, int84=0.4)
    assert [t.part for t in study.batches[4]] == ["search"] * 3
    assert notes == ["out of time, not re-measured: the fastest plans at batch 4"]
    assert rows(study)[1].state == "unconfirmed"
    assert "measured once only at batch 4" in describe_best_plans(study, rows(study))


def test_a_plan_that_dies_is_a_failed_trial_and_the_others_go_on(
    sweep: Callable[..., Study],
) -> None:
    study = sweep(4, float4=0.6, int84=-1)
    by_plan = {t.plan: t for t in study.batches[4] if t.part == "search"}
    assert by_plan[INT8].status is Status.FAILED and by_plan[INT8].why == "the candidate died"
    assert at(study, 4).best.plan == FLOAT
    assert any(isinstance(e, Note) and "the candidate died" in e.text for e in told)


def test_leaders_are_the_winner_and_the_fastest_of_other_recipes_and_backends() -> None:
    many = [
        found(replace(FLOAT, recipe=Recipe(f"r{n}", parse_steps(n))), 0.7 + n / 100)
        for n in range(5)
    ]
    slow_variant = found(replace(INT8, backend=Cpu(threads=2)), 1.1)
    broken = found(Plan(Recipe("b", parse_steps(9)), Cpu()), 0.1, status=Status.FAILS)
    untimed = found(Plan(Recipe("u", parse_steps(8)), Cpu()), 0.1, ratio=None)
    header = replace(studies_header(), job=studies.job(names=()))
    trials = (studies.baseline(), SLOWER, slow_variant, broken, untimed, *many, FLOAT_FINAL)
    study = Study("run", header, trials)
    assert select_leading_plans(study) == [FLOAT_FINAL, *many[: LEADERS - 1]]
    few = replace(study, trials=(studies.baseline(), SLOWER, slow_variant, broken, FLOAT_FINAL))
    assert select_leading_plans(few) == [FLOAT_FINAL, slow_variant]
    bound = replace(header, job=replace(header.job, wanted=Goal(max_size=1)))
    assert select_leading_plans(replace(few, header=bound)) == []


def parse_steps(n: int) -> tuple[Any, ...]:
    return (parse_plugin(Quantizer, f"int8-dynamic(min_side={n + 20})"),)


def studies_header() -> Header:
    return Header(studies.job(names=()), studies.FACTS)


FIXED = replace(studies.FACTS, inputs=(TensorSpec("x", "float32", (2, 4)),))


def refuse(facts: Facts, **given: Any) -> None:
    request = Optimize("m.onnx", **given)
    validate_batches(request.batches, request.max_latency, request.read_experiment(), facts)


@pytest.mark.parametrize(
    ("facts", "given", "says", "fix"),
    [
        (FIXED, {"batches": "1,8"}, "the batch of input 'x' is fixed", "leave --batches out"),
        (studies.FACTS, {"batches": "4", "evaluate": "m:f"}, "makes its own calls", "--data"),
        (
            studies.FACTS,
            {"batches": "4", "max_latency": "2ms", "workload": "throughput"},
            "--max-latency limits single runs, but workload throughput measures",
            "--workload latency",
        ),
    ],
)
def test_batches_that_cannot_be_are_refused(
    facts: Facts, given: dict[str, Any], says: str, fix: str
) -> None:
    with pytest.raises(BadSettings, match=says) as error:
        refuse(facts, **given)
    assert fix in error.value.fix
    refuse(studies.FACTS, batches="1,8")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batches": "0,4"}, "batches: 0 is too small"),
        ({"batches": "four"}, "'four' is not a number"),
        ({"batches": "1,4", "fixed_shapes": True}, "--fixed-shapes makes a model of one batch"),
        ({"max_latency": "20ms"}, "--max-latency chooses among batches"),
        ({"max_latency": "fast", "batches": "4"}, "cannot read the duration 'fast'"),
        ({"max_latency": "0ms", "batches": "4"}, "cannot read the duration '0ms'"),
    ],
)
def test_wrong_values_have_a_fix(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSettings, match=says) as error:
        Optimize("m.onnx", **given)
    assert error.value.fix


@pytest.mark.parametrize(("text", "seconds"), [("20ms", 0.02), (".5s", 0.5), ("1.5", 1.5)])
def test_a_latency_is_read_in_milliseconds_or_seconds(text: str, seconds: float) -> None:
    assert Optimize("m.onnx", batches="4", max_latency=text).max_latency == pytest.approx(seconds)
