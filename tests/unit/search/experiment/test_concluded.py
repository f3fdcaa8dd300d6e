"""What a run learnt decides what its trials are called."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.studies import CLEAN, FACTS, baseline, job, trial

from ortune.backends.cpu import Cpu
from ortune.core import wording
from ortune.core.acceptance import (
    FASTEST,
    Goal,
    Outcome,
    classify_outcome,
    looks_eligible,
    select_winner,
)
from ortune.core.progress.board import describe_trial
from ortune.core.trial import Block, Burst, Measurement, Pair, Plan, Status, Trial
from ortune.measurement.job import WorkerJob
from ortune.measurement.timing import stats
from ortune.measurement.timing.turns import Deadlines
from ortune.search.experiment import measure
from ortune.search.experiment.context import Context


def pair(log: float) -> Pair:
    """A pair whose blocks all say the same."""
    one, two = (Burst((ns,) * 4, (0.0,) * 4) for ns in (10**6, round(10**6 * math.exp(log))))
    return Pair((Block(one, two),) * 6)


def measured(key: str, part: str, *logs: float) -> Trial:
    taken = Measurement(tuple(map(pair, logs)), 1, 1, 1)
    return replace(trial(key, Plan(CLEAN, Cpu()), 1.0), part=part, measurement=taken)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(tmp_path, job(names=()), FACTS, {}, {}, {}, {}, "", timeout_s=1.0)


def test_a_run_learns_from_its_equal_pair_and_every_other_finalist() -> None:
    first = replace(baseline(), stage="baseline", measurement=measured("x", "", 0.1).measurement)
    trials = [
        first,
        measured("a", "search", 0.5, 0.9),
        measured("a", "final", -0.1, 0.1),
        measured("b", "final", 0.2, 0.3, 0.4),
    ]
    every, but = measure.pool_variance(trials), measure.pool_variance(trials, but="a")
    assert (every.df, but.df) == (1 + 1 + 2, 1 + 2)
    assert every.squares == pytest.approx(0.01 + 0.02 + 0.02, rel=1e-4)
    assert but.squares == pytest.approx(0.01 + 0.02, rel=1e-4)


def test_what_the_others_learnt_takes_a_claim_back_and_says_so(context: Context) -> None:
    rng = np.random.default_rng(0)
    final = measured("a", "final", *(-0.02 + rng.normal(0, 0.003, 5)))
    alone = measure.judge_trial(context, final, stats.NOTHING)
    assert (alone.status, classify_outcome(alone)) == (Status.OK, Outcome.FASTER)
    loud = measure.judge_trial(context, alone, stats.PooledVariance(8 * 0.04**2, 8))
    assert (loud.status, classify_outcome(loud)) == (Status.OK, Outcome.LEVEL)
    assert loud.why == "no faster (within noise)"
    assert loud.predicted != alone.predicted and loud.measurement == alone.measurement
    assert measure.judge_trial(context, loud, stats.NOTHING) == alone, "it follows from the pairs"
    slow = measured("a", "final", *(0.02 + rng.normal(0, 0.003, 5)))
    assert measure.judge_trial(context, slow, stats.NOTHING).status is Status.SLOWER


def test_what_a_search_sorts_out_is_slower_only_beyond_the_noise(context: Context) -> None:
    near = measure.judge_trial(context, measured("a", "search", 0.05), stats.NOTHING)
    assert near.ratio is not None and near.ratio.low < 1 < near.ratio.high
    assert (near.status, near.why) == (Status.LEVEL, "no faster (within noise)")
    far = measure.judge_trial(context, measured("a", "search", 0.5), stats.NOTHING)
    assert (far.status, classify_outcome(far)) == (Status.SLOWER, Outcome.SLOWER)


def test_what_was_not_measured_stays_as_it_is(context: Context) -> None:
    died = replace(trial("a", Plan(CLEAN, Cpu()), 1.0), measurement=None, status=Status.FAILED)
    assert measure.judge_trial(context, died, stats.NOTHING) is died


def test_a_worker_gets_a_fresh_folder_and_the_limits_of_its_context(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[WorkerJob, dict[str, Any]]] = []

    def start(job: WorkerJob, **limits: Any) -> str:
        started.append((job, limits))
        return "a worker"

    monkeypatch.setattr(measure, "Worker", start)
    deadlines = Deadlines({"load": 9.0})
    context = replace(context, timeout_s=7.0, memory_limit=5, deadlines=deadlines)
    for _ in range(2):
        found: Any = measure.start_worker(context, {}, Cpu(threads=2), "final")
        assert found == "a worker"
    (one, limits), (two, _) = started
    limits.pop("sink")
    assert limits == {"timeout_s": 7.0, "memory_limit": 5, "deadlines": {"load": 9.0}}
    assert one.backend == Cpu(threads=2)
    assert one.out != two.out
    assert one.out.parent == two.out.parent == (context.root / "workers").resolve()


STOPPED = "stopped after 1 block: 1.40 times the best so far"


@pytest.mark.parametrize(
    ("ratio", "pairs", "status"),
    [
        (1.4, 1, Status.SLOWER),
        (1.3, 1, Status.SCREENED),
        (1.3, 5, Status.SLOWER),
        (0.9, 5, Status.SCREENED),
    ],
)
def test_what_was_stopped_is_slower_beyond_the_noise_or_by_a_lone_block_far_behind(
    context: Context, ratio: float, pairs: int, status: Status
) -> None:
    one = Pair(pair(math.log(ratio)).blocks[:1])
    taken = Measurement((one,) * pairs, 1, 1, 1)
    made = replace(measured("a", "search"), measurement=taken, stopped=STOPPED, scores=())
    found = measure.judge_trial(context, made, stats.NOTHING)
    assert (found.status, found.why) == (status, STOPPED)


def test_what_has_scores_or_was_not_stopped_is_concluded_by_its_interval(context: Context) -> None:
    log = math.log(0.5)
    made = measured("a", "search", log)
    stopped = measure.judge_trial(context, replace(made, stopped=STOPPED), stats.NOTHING)
    assert (stopped.status, stopped.why) == (Status.OK, "2.00x as fast, accuracy proved")
    bare = measure.judge_trial(context, replace(made, scores=()), stats.NOTHING)
    assert bare.status is Status.SCREENED
    assert bare.why == "0.50 times the original's latency, not scored"


def waiting(part: str, blocks: int = 6) -> Trial:
    """A plan a quarter as slow, beside a CPU that never rests: the original's runs all waited."""
    base = Burst((9_000_000,) * 20, (0.667,) * 20, 1, alike=True, neighbours=1.0)
    plan = Burst((750_000,) * 20, (0.0,) * 20, 1, alike=True, neighbours=1.0)
    taken = Measurement((Pair((Block(base, plan),) * blocks),) * 5, 1, 1, 1)
    return replace(trial("a", Plan(CLEAN, Cpu()), 1.0), part=part, measurement=taken, size=1)


@pytest.mark.parametrize("part", ["search", "final"])
def test_what_waited_on_one_side_is_not_claimed_and_says_so(context: Context, part: str) -> None:
    judged = measure.judge_trial(context, waiting(part), stats.NOTHING)
    assert judged.is_disturbed and classify_outcome(judged) is Outcome.DISTURBED
    assert (judged.status, judged.why) == (Status.OK, str(Outcome.DISTURBED))
    assert judged.ratio is not None and judged.ratio.value == pytest.approx(0.25, rel=0.01)
    assert (judged.ratio.low, judged.ratio.high) == (0.0, math.inf)
    assert wording.explain_outcome(judged) == str(Outcome.DISTURBED)
    assert wording.describe_verdict(judged) == "proved"


@pytest.mark.parametrize("goal", [FASTEST, Goal("size")])
def test_a_finalist_that_waited_is_not_handed_out(context: Context, goal: Goal) -> None:
    """Nobody knows that it is faster; nor that it is not slower, where its size is wanted."""
    judged = measure.judge_trial(context, waiting("final"), stats.NOTHING)
    original = replace(baseline(), size=1000)
    assert select_winner([judged], original, strict=False, goal=goal) is None
    looks = looks_eligible(replace(judged, part="search"), original, strict=False, goal=goal)
    assert looks is (goal != FASTEST), "it is named where it is smaller, not as faster"


@pytest.mark.parametrize("blocks", [1, 4])
def test_no_figure_is_shown_of_runs_that_waited(context: Context, blocks: int) -> None:
    judged = measure.judge_trial(context, waiting("search", blocks=blocks), stats.NOTHING)
    assert judged.is_disturbed and classify_outcome(judged) is Outcome.DISTURBED
    assert judged.ratio is not None and judged.ratio.value < 1, "a search sorts by it"
    assert judged.shown_ratio is None
    assert describe_trial(judged).strip().startswith("-")
