"""What a worker is asked for, what stands beside the budget's score, what a proof rests on."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit import studies

from ortune.backends.cpu import Cpu
from ortune.core.budget import Budget
from ortune.core.errors import BadData
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe
from ortune.core.trial import Plan, Score, Verdict
from ortune.measurement.timing.turns import Deadlines
from ortune.metrics.cosine import Cosine
from ortune.metrics.snr import Snr
from ortune.search.experiment import scores
from ortune.search.experiment.context import Context, ScoredPart
from ortune.search.experiment.scores import collect_records, score_plan

LOSSY = Plan(Recipe("int8", (parse_plugin(Quantizer, "int8-dynamic"),)), Cpu(threads=1))
EXACT = Plan(AS_IS, Cpu(threads=2))
SEARCH, FINAL = (0, 2, 4), (1, 3, 5, 7)


@dataclass
class Answering:
    """A worker that scores outputs with an error of its own, and says what it was asked."""

    noise: float = 0.0
    hidden: float = 0.0
    spared: tuple[int, ...] = ()
    unscored: Callable[[str, list[int]], bool] = lambda metric, indices: False
    records: list[list[float]] = field(default_factory=list)
    groups: list[str | None] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        self.asked.append({"do": do, **more})
        if do == "evaluate":
            return {"records": [self.records], "groups": self.groups}
        return {
            "records": [self.rows(metric, more["indices"]) for metric in more["metrics"]],
            "beside": [
                None
                if self.unscored(str(metric), more["indices"])
                else self.rows(metric, more["indices"])
                for metric in more["beside"]
            ],
        }

    def rows(self, metric: Any, indices: list[int]) -> list[list[float]]:

        def off(by: float) -> NDArray[np.float32]:
            return np.array([1.0, by], np.float32)

        wanted = [{"y": off(0), "hidden": off(0)} for _ in indices]
        given = [
            {"y": off(self.noise), "hidden": off(0 if at in self.spared else self.hidden)}
            for at in indices
        ]
        rows: list[list[float]] = metric.records(wanted, given, None).tolist()
        return rows


def part(name: str, indices: tuple[int, ...], **more: Any) -> ScoredPart:
    return ScoredPart(name, indices, Path(f"{name}.stream"), np.ones((len(indices), 1)), **more)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    parts = {"search": part("search", SEARCH), "final": part("final", FINAL, proof=(0, 2))}
    job = replace(studies.job(names=()), budget=Budget(Cosine(output="y"), 0.999))
    return Context(
        *(tmp_path, job, studies.FACTS, {}, {}, {}, parts, ""),
        timeout_s=1.0,
        deadlines=Deadlines(run_ns=2_000_000_000),
    )


def given(context: Context, worker: Any, plan: Plan = LOSSY) -> tuple[Score, ...]:
    return score_plan(context, worker, plan, *context.evaluation_parts())


def test_each_part_is_scored_against_its_own_outputs_and_labels(context: Context) -> None:
    labels = (np.array([1, 2]), np.int64(3), "a")
    parts = {**context.parts, "search": part("search", SEARCH, labels=labels)}
    worker = Answering()
    given(replace(context, parts=parts), worker)
    one, two = worker.asked
    assert (one["indices"], two["indices"]) == (list(SEARCH), list(FINAL))
    assert (str(one["expected"]), str(two["expected"])) == ("search.stream", "final.stream")
    assert (one["labels"], two["labels"]) == ([[1, 2], 3, "a"], None)
    assert [type(label) for label in one["labels"]] == [list, int, str]
    assert [str(metric) for metric in one["metrics"]] == ["cosine(output=y)"]
    assert [str(metric) for metric in one["beside"]] == ["snr", "agreement"]
    assert (one["timeout_s"], two["timeout_s"]) == (20 * 3 * 2.0, 20 * 4 * 2.0)


def test_figures_beside_the_budgets_are_of_all_samples_and_judge_nothing(context: Context) -> None:
    first, snr, agreement = given(context, Answering(noise=0.1, hidden=0.1))
    assert (first.metric, first.verdict) == ("cosine(output=y)", Verdict.FAILS)
    assert (snr.metric, agreement.metric) == ("snr", "agreement")
    assert snr.value == pytest.approx(20, abs=0.1) and agreement.value == 1.0
    assert {(s.samples, s.verdict, s.needed) for s in (snr, agreement)} == {(7, None, None)}


def test_a_figure_that_one_part_has_not_is_left_out(context: Context) -> None:
    def agreement(metric: str, indices: list[int]) -> bool:
        return metric == "agreement" and indices == list(FINAL)

    found = given(context, Answering(unscored=agreement))
    assert [s.metric for s in found] == ["cosine(output=y)", "snr"]


def test_outputs_that_the_budget_does_not_read_fall_by_their_own_limits(context: Context) -> None:
    watched = tuple(Budget(Cosine(output="hidden"), limit) for limit in (0.999, 0.9))
    context = replace(context, watched=watched)
    *plain, low, high = given(context, Answering(hidden=0.1))
    assert [s.metric for s in plain] == ["cosine(output=y)", "snr", "agreement"]
    assert plain[0].verdict is not Verdict.FAILS
    assert (low.verdict, high.verdict) == (Verdict.FAILS, None)
    assert low.metric == high.metric == "cosine(output=hidden)"
    assert low.value == pytest.approx(0.995, abs=1e-3) and low.samples == 7
    assert "its own limit is 0.999" in low.basis
    (one,) = given(context, Answering(hidden=0.1, spared=(*SEARCH, *FINAL[1:])))[-1:]
    assert one.value == pytest.approx(low.value), "the worst, where 95 % of 7 are all"
    missing = Answering(unscored=lambda metric, indices: "hidden" in metric)
    assert [s.metric for s in given(context, missing)] == [s.metric for s in plain]


@pytest.mark.parametrize("budget", [Budget(Cosine(), 0.999), Budget(Snr(), 30.0)])
@pytest.mark.parametrize(
    ("plan", "noise", "proved"), [(EXACT, 0.0, True), (EXACT, 0.001, False), (LOSSY, 0.0, False)]
)
def test_equal_outputs_prove_exact_steps_and_those_alone(
    context: Context, budget: Budget, plan: Plan, noise: float, proved: bool
) -> None:
    parts = {
        name: replace(part, records=np.array(Answering().rows(budget.metric, [*part.indices])))
        for name, part in context.parts.items()
    }
    context = replace(context, job=replace(context.job, budget=budget), parts=parts)
    found = given(context, Answering(noise=noise, hidden=noise), plan)[0]
    assert found.basis.startswith("exact steps") is proved
    assert (found.verdict is Verdict.PROVED) is proved


@dataclass(frozen=True)
class Padded(Cpu):
    """A backend whose answers are compared on a part of its outputs."""

    @property
    def compared_on(self) -> str:
        return "compared on the filled rows"


def test_the_basis_says_on_what_answers_were_compared(context: Context) -> None:
    plain, padded = (
        given(context, Answering(), replace(LOSSY, backend=backend))[0]
        for backend in (Cpu(), Padded())
    )
    assert padded.basis == f"{plain.basis}; compared on the filled rows"


def test_records_are_a_table_a_metric(context: Context) -> None:
    worker: Any = Answering()
    one, two = collect_records(worker, [Cosine(), Snr()], context.parts["search"], 7.0)
    assert len(one) == len(two) == 3 and one.dtype == np.float64
    assert worker.asked[0]["timeout_s"] == 7.0 and worker.asked[0]["beside"] == ()


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def judge(budget: Budget, rows: Any, base: Any, groups: Any, **more: Any) -> Score:
        calls.append({"rows": rows.tolist(), "base": base, "groups": groups, **more})
        return Score("cosine", 1.0, 1.0, 1.0, 1.0, len(rows), Verdict.LIKELY)

    monkeypatch.setattr(scores, "judge_accuracy", judge)
    return calls


def test_a_proof_rests_on_the_places_that_no_choice_read(
    context: Context, judged: list[Any]
) -> None:
    given(replace(context, finalists=4), Answering())
    (call,) = judged
    assert call["proof"] == [3, 5], "the first and third held-out sample, after three others"
    assert call["error"] == pytest.approx(0.05 / 4)
    assert call["seed"] == context.seed
    assert call["groups"] is None and len(call["base"]) == 7


def test_groups_of_all_parts_go_along(context: Context, judged: list[Any]) -> None:
    parts = {
        "search": part("search", SEARCH, groups=("a", "a", "b")),
        "final": part("final", FINAL, groups=("c", "c", "d", "d")),
    }
    given(replace(context, parts=parts), Answering())
    assert judged[0]["groups"] == ["a", "a", "b", "c", "c", "d", "d"]


class TestEvaluate:
    @pytest.fixture
    def context(self, context: Context) -> Context:
        parts = {"search": part("search", (0, 2)), "final": part("final", (1, 3), proof=(1,))}
        return replace(context, parts=parts, evaluate="score.py:fn")

    def test_a_part_has_its_own_records(self, context: Context, judged: list[Any]) -> None:
        worker: Any = Answering(records=[[0.0], [0.1], [0.2], [0.3]])
        (found,) = score_plan(context, worker, EXACT, context.parts["search"])
        assert judged[0]["rows"] == [[0.0], [0.2]] and found.samples == 2
        assert judged[0]["exact"] and judged[0]["snr_db"] is None, "its outputs were not compared"
        given(context, worker)
        assert judged[1]["rows"] == [[0.0], [0.2], [0.1], [0.3]]
        assert judged[1]["proof"] == [3]
        asked = worker.asked[0]
        assert (asked["do"], asked["function"], asked["timeout_s"]) == (
            *("evaluate", "score.py:fn"),
            10.0,
        )

    def test_another_number_of_records_is_refused(self, context: Context) -> None:
        with pytest.raises(BadData, match="3 records came back, 4 from the original"):
            given(context, Answering(records=[[0.0]] * 3))
        known = replace(context, yielded=("a",) * 5)
        with pytest.raises(BadData, match="4 records came back, 5 from the original"):
            given(known, Answering(records=[[0.0]] * 4, groups=["a"] * 4))

    def test_what_is_yielded_must_be_the_samples_of_the_original(
        self, context: Context, judged: list[Any]
    ) -> None:
        known = replace(context, yielded=("a", "a", "b", None, "c"))
        worker = Answering(records=[[n / 10] for n in range(5)], groups=["a", "a", "b", None, "c"])
        given(known, worker)
        assert judged[0]["rows"] == [[0.0], [0.2], [0.1], [0.3]], "calibration's is not judged"
        worker.groups[1] = "b"
        with pytest.raises(BadData, match="groups that --evaluate yields are not those"):
            given(known, worker)
