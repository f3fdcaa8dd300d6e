"""Policies replayed on a small table made by hand, and how a table is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from benchmarks.search import recording
from benchmarks.search.bursts import KEPT_ENTRIES, Side, Turn
from benchmarks.search.costs import RECORDED_BURST_S, Pass, Spent, passes
from benchmarks.search.exhaustive import Exhaustive, ranked
from benchmarks.search.record import confirm, current, frozen, try_all
from benchmarks.search.recording import Kept, Recording
from benchmarks.search.replay import compare, geometric, summary
from benchmarks.search.replayed import Attempts, replay, simulating, surroundings
from benchmarks.search.simulated import Clock, Machine, SimulatedWorker
from benchmarks.search.spaces import digest, pretended, space_of
from benchmarks.search.table import (
    About,
    Cut,
    Row,
    Table,
    cuts_of,
    read,
    spelled,
    true_ratio,
    write,
)
from benchmarks.search.workers import settled
from benchmarks.tables.search import replayed
from tests.unit.search import test_adaptive
from tests.unit.search.experiment.scripted import LOSSY, Script, scripted
from tests.unit.search.test_adaptive import trial

from ortune.backends.cpu import Cpu
from ortune.core.capabilities import Capabilities
from ortune.core.errors import OrtuneError
from ortune.core.event import ignore_event
from ortune.core.facts import Facts
from ortune.core.step import AS_IS
from ortune.core.trial import Burst, Pair, Plan, Proposal, Score, Status, Trial, Verdict
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing import pairs
from ortune.measurement.timing.pairs import Effort
from ortune.measurement.workloads.latency import Latency
from ortune.search.adaptive import Adaptive
from ortune.search.experiment import evaluate
from ortune.search.policy import LeftOut, View
from ortune.search.recipe.space import SearchTarget, Space

FACTS = Facts({"Conv": 20, "Relu": 20, "Gemm": 1}, 41, 1, 1, {}, 17, 8, (), ())
BASE = Cpu(threads=1)
FLAGS = "avx2 avx512_vnni"
CAPABLE = Capabilities(effective_cpus=1, instruction_sets=tuple(FLAGS.split()))
MACHINE = {"cpu": "toy", "instruction sets": FLAGS, "effective cpus": "1"}
ABOUT = About(
    "toy", "", "cosine>=0.99", Latency(), BASE, FACTS, MACHINE, {}, 2.0, 3.0, FLAGS,
    1, ((BASE, CAPABLE),), (("threads",),),
)  # fmt: skip
MS = 1_000_000
SCORES = (Score("cosine", 1.0, 1.0, 1.0, 1.0, 32, Verdict.LIKELY),)


def turn(ratio: float) -> Turn:
    one = Side(1000, (10_000, 10_000, 10_010), alike=True)
    two = replace(one, entries=tuple(round(e * ratio) for e in one.entries))
    return Turn((one, two, two, one))


def row(plan: Plan, ratio: float, *, stage: str = "search", fails: bool = False) -> Row:
    cuts = tuple(
        Cut(spelled(plan.recipe.steps[:at]), 2.0, ("m min-max",), {"m min-max": 5.0})
        for at in cuts_of(plan.recipe.steps)
    )
    scores = (replace(SCORES[0], verdict=Verdict.FAILS),) if fails else SCORES
    made = Row(plan.spelling, plan, stage, Status.FAILS if fails else Status.OK, cuts=cuts)
    return replace(
        made, start_s=0.4, load_s=0.2, first_s=0.1, warm_s=0.5, block_s=0.5, search_s=0.3,
        final_s=0.6,
        pairs=(tuple(turn(ratio) for _ in range(8)),), scores=scores, final=scores,
    )  # fmt: skip


def space() -> Space:
    with pretended(Table(ABOUT, ())):
        return space_of(Table(ABOUT, ()))


def ratio_of(plan: Plan) -> float:
    """The faster the more is done to it; the last bet is the best."""
    plans = ranked(space())
    return 0.9 - 0.4 * plans.index(plan) / len(plans) if plan in plans else 0.95


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    with pretended(Table(ABOUT, ())):
        listed = space()
        plans = ranked(listed)
        around = [
            p for plan in plans for some in listed.list_neighbours(plan).values() for p in some
        ]
        every = dict.fromkeys([*plans, *around])
        rows = [row(Plan(AS_IS, BASE), 1.0, stage="baseline")]
        rows += [row(plan, ratio_of(plan)) for plan in every]
        yield Table(replace(ABOUT, space=digest(listed)), tuple(rows))


def test_with_time_the_best_is_found_and_without_it_is_not(table: Table) -> None:
    late = replay(table, Adaptive(), 1000)
    assert late.regret == pytest.approx(1.0, abs=0.01) and late.lacking == 0
    assert late.finished == "done" and late.wall < 1000
    assert late.first_s is not None and 0 < late.first_s < 60
    early = replay(table, Adaptive(), 5)
    assert early.regret > 1.05 and early.finished == "time"
    assert early.tried < late.tried
    assert replay(table, Adaptive(), 5) == early, "the clock is scripted: the same twice"


def test_set_up_counts_where_it_is_a_small_part_of_the_time(table: Table) -> None:
    slow = replace(table, about=replace(table.about, prepared_s=20.0))
    short, long = (replay(slow, Adaptive(), seconds) for seconds in (10, 200))
    assert short.wall - short.over > 10 + 20 and long.wall - long.over == pytest.approx(200)


def test_everything_is_found_by_trying_everything(table: Table) -> None:
    found = replay(table, Exhaustive(), 10_000)
    assert found.regret == pytest.approx(1.0)
    assert found.ratio == pytest.approx(true_ratio(table.best))


def test_a_changed_space_is_refused_unless_that_is_asked_for(table: Table) -> None:
    old = replace(table, about=replace(table.about, space="other"))
    with pytest.raises(OrtuneError, match="has changed since its table was measured"):
        replay(old, Adaptive(), 30)
    gone = old.rows[1].plan.recipe
    less = replace(old, rows=tuple(r for r in old.rows if r.plan.recipe != gone))
    assert replay(less, Adaptive(), 1000, changed=True).lacking > 0


def test_what_was_built_and_calibrated_is_paid_once() -> None:
    apart = {"m min-max": 5.0, "m percentile": 7.0, "n min-max": 1.0}
    passes = {asked: Pass(s, frozenset([asked])) for asked, s in apart.items()}
    spent = Spent()
    assert spent.cut(Cut("simplify", 2.0), passes) == 2.0
    assert spent.cut(Cut("simplify", 2.0), passes) == 0.0
    both = Cut("a", 1.0, ("m min-max", "m percentile"))
    assert spent.cut(both, passes) == 1.0 + 7.0, "one pass answers both"
    assert spent.cut(Cut("b", 1.0, ("m min-max",)), passes) == 1.0
    assert spent.cut(Cut("c", 1.0, ("m min-max", "n min-max")), passes) == 1.0 + 1.0


def test_a_pass_answers_what_others_will_ask_whoever_comes_first() -> None:
    asked = {"m min-max": 5.0, "m percentile": 5.0}
    first = Cut("a", 1.0, tuple(asked), asked)
    second = Cut("b", 1.0, ("m percentile",))
    plan = Plan(AS_IS, BASE)
    known = passes(Table(ABOUT, (replace(row(plan, 1.0), cuts=(first, second)),)))
    for one, two in ((first, second), (second, first)):
        spent = Spent()
        assert (spent.cut(one, known), spent.cut(two, known)) == (6.0, 1.0)


def test_what_fails_costs_its_time_and_a_hang_no_more_than_the_limit(table: Table) -> None:
    whole = replay(table, Exhaustive(), 1000).wall

    def longer(seconds: float, died: str, why: str = "it crashed") -> float:
        rows = list(table.rows)
        gone = replace(rows[-1], died=died, died_s=seconds, pairs=(), scores=(), final=())
        rows[-1] = replace(gone, status=Status.FAILED, why=why)
        found = replay(replace(table, rows=tuple(rows)), Exhaustive(), 1000)
        assert found.regret == pytest.approx(1.0), "the others go on"
        return found.wall - whole

    assert longer(15.0, "timing") - longer(10.0, "timing") == pytest.approx(5.0)
    hung = longer(20.0, "load", "no answer to 'load' after 20 s")
    assert hung - longer(10.0, "load") == pytest.approx(60 - 10), "as long as it may"


class TestMachine:
    """What the search's own clock asks of a table."""

    def pair(self, one: Row, effort: Effort) -> tuple[Pair, float]:
        original = row(Plan(AS_IS, BASE), 1.0, stage="baseline")
        machine = Machine(Table(ABOUT, (original, one)), Clock())
        base, candidate = (SimulatedWorker(machine, r) for r in (original, one))
        with simulating(machine):
            return pairs.time_pair(
                cast("Any", base), cast("Any", candidate), effort
            ), machine.clock.now

    def test_an_effort_takes_as_many_blocks_as_it_would_have(self) -> None:
        slow, even = (row(Plan(AS_IS, Cpu()), ratio) for ratio in (2.0, 1.005))

        def taken(one: Row, effort: Effort) -> int:
            return len(self.pair(one, effort)[0].blocks)

        assert taken(slow, Effort(max_blocks=1, decide=False)) == 1
        assert taken(slow, Effort(seconds=4)) == 3, "it is hopeless"
        assert taken(even, Effort(seconds=2.2, decide=False, burst=RECORDED_BURST_S)) == 5
        assert taken(even, Effort(seconds=100, decide=False, max_blocks=20)) == 20, "repeated"

    def test_the_bursts_are_the_recorded_ones_in_their_order(self) -> None:
        sides = [Side(MS, (at,) * 4, alike=True) for at in (10, 5, 6, 11, 12, 7, 8, 13)]
        one = row(Plan(AS_IS, Cpu()), 0.5)
        (a, b, c, d), (e, f, g, h) = sides[:4], sides[4:]
        one = replace(one, pairs=((Turn((a, b, c, d)), Turn((e, f, g, h))),))
        found, _ = self.pair(one, Effort(max_blocks=2, decide=False))
        read = [
            (set(block.baseline.latency_ns), set(block.candidate.latency_ns))
            for block in found.blocks
        ]
        wanted = [({10, 11}, {5, 6}), ({12, 13}, {7, 8})]
        assert read == [tuple({MS * at for at in some} for some in two) for two in wanted]

    def test_a_block_costs_what_it_did_and_shorter_bursts_less(self) -> None:
        one = row(Plan(AS_IS, Cpu()), 1.0)
        few, many = (
            self.pair(one, Effort(max_blocks=n, decide=False, burst=RECORDED_BURST_S))[1]
            for n in (1, 5)
        )
        assert many - few == pytest.approx(4 * one.block_s)
        longer = self.pair(one, Effort(max_blocks=1, decide=False, burst=0.1))[1]
        assert longer - few == pytest.approx(4 * 0.04)

    def test_a_request_has_its_own_deadline(self) -> None:
        slow = replace(row(Plan(AS_IS, Cpu()), 1.0), first_s=9.0)
        machine = Machine(Table(ABOUT, (slow,)), Clock())
        worker = SimulatedWorker(machine, slow, deadlines={"first": 2.0})
        worker.ask("load")
        began = machine.clock.now
        with pytest.raises(WorkerFailed, match="no answer"):
            worker.ask("first")
        assert machine.clock.now - began == 2.0 and not worker.alive

    def test_processes_that_come_up_together_cost_one_start(self) -> None:
        machine = Machine(Table(ABOUT, (one := row(Plan(AS_IS, BASE), 1.0),)), Clock())
        for worker in [SimulatedWorker(machine, one), SimulatedWorker(machine, one)]:
            worker.ask("load")
        assert machine.clock.now == pytest.approx(one.start_s + 2 * one.load_s)

    def test_a_trial_that_was_screened_is_charged_again_but_not_its_build(
        self, table: Table, tmp_path: Path
    ) -> None:
        plan = next(r.plan for r in table.rows if r.plan.recipe.steps)
        machine = Machine(table, Clock())
        context = surroundings(table, tmp_path, 60)
        costs = []
        with ExitStack() as stack, simulating(machine):
            attempts = Attempts(context, 4.0, ignore_event, stack)
            attempts.measure_baseline()
            for effort in ("screen", "screen", "search"):
                began = machine.clock.now
                trial = attempts.try_plan(Proposal(plan, "search", effort=cast("Any", effort)))
                costs.append(machine.clock.now - began)
                assert trial.scores and trial.ratio is not None
        screened, known, searched = costs
        assert known == 0 and trial.effort == "search"
        assert screened > searched > 0, "the build and its ranges are there"


def test_what_was_abandoned_wrongly_is_told(table: Table) -> None:
    fine = replay(table, Exhaustive(), 1000)
    assert fine.abandoned == 0, "all of it is wanted"
    rows = list(table.rows)
    at = next(k for k, one in enumerate(rows) if k > 3 and one.plan.recipe.steps)
    rows[at] = replace(row(rows[at].plan, 5.0), cuts=rows[at].cuts)
    slow = replay(replace(table, rows=tuple(rows)), Adaptive(), 1000)
    assert slow.abandoned > 0 and slow.wrongly == ()
    good = [turn(0.3) for _ in range(9)]
    rows[at] = replace(rows[at], pairs=((turn(5.0), *good),))
    late = replay(replace(table, rows=tuple(rows)), Adaptive(), 1000)
    assert str(rows[at].plan) in late.wrongly


def test_what_was_not_measured_is_stood_for_by_the_nearest_and_slowest(table: Table) -> None:
    fast = Plan(AS_IS, Cpu(threads=1, level="basic"))
    slow = Plan(AS_IS, Cpu(threads=1, prepack=False))
    rows = (table.rows[0], row(fast, 0.5), row(slow, 0.8))
    few = Table(table.about, rows)
    both = Plan(AS_IS, Cpu(threads=1, level="basic", prepack=False))
    assert few.find(both) is None
    near = few.nearest(both)
    assert near is not None and near.plan == slow
    assert few.standing_for(fast) == rows[1]


def test_the_best_keeps_the_budget_and_is_the_original_where_nothing_is_faster() -> None:
    original = row(Plan(AS_IS, BASE), 1.0, stage="baseline")
    wrong = row(Plan(AS_IS, Cpu(threads=2)), 0.2, fails=True)
    good = row(Plan(AS_IS, Cpu(threads=3)), 0.6)
    died = replace(row(Plan(AS_IS, Cpu(threads=4)), 0.1), died="search", scores=(), final=())
    assert Table(ABOUT, (original, wrong, good, died)).best is good
    slower = row(Plan(AS_IS, Cpu(threads=3)), 1.2)
    assert Table(ABOUT, (original, wrong, slower)).best is original
    assert true_ratio(original) == 1.0 and true_ratio(good) == pytest.approx(0.6, abs=0.001)


def test_regret_is_told_by_model_and_as_a_geometric_mean(table: Table) -> None:
    assert geometric([0.5, 2.0]) == pytest.approx(1.0) and math.isnan(geometric([]))
    found = compare([table], [5, 1000])
    one = found["fitted to"]["all tables"]["seconds"]
    assert list(one) == ["5", "1000"] and one["5"]["regret"] > one["1000"]["regret"] >= 1
    assert one["5"]["models"]["toy"]["regret"] == pytest.approx(one["5"]["worst"], abs=1e-4)
    assert found["tables"]["toy"]["plans"] == len(table.rows)
    assert math.isnan(summary({})["regret"])
    page = replayed(found)
    assert "| toy |" in page and "5 s, fitted to all tables" in page


def test_a_budget_of_an_evaluate_function_is_replayed(table: Table, tmp_path: Path) -> None:
    first = table.rows[0]
    function = "tests.real.jobs.silero:evaluate"
    score = replace(first.scores[0], metric=f"score(path={function})")
    judged = replace(
        table,
        about=replace(table.about, budget=f"{function}>=base-0.01"),
        rows=(replace(first, scores=(score,)), *table.rows[1:]),
    )
    budget = surroundings(judged, tmp_path, 5).job.budget
    assert budget is not None and budget.metric.name() == "score"
    assert (budget.limit, budget.relative) == (-0.01, True)


def test_a_table_is_read_as_it_was_written(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "toy.json.gz"
    write(path, table)
    assert read(path) == table
    first = path.read_bytes()
    write(path, table)
    assert path.read_bytes() == first
    with pytest.raises(OrtuneError, match="no table other"):
        read(tmp_path / "other.json.gz")


def test_a_thinned_side_keeps_its_median_and_drops_what_was_disturbed() -> None:
    taken = np.random.default_rng(0).lognormal(0, 0.1, 501) * MS
    burst = Burst(tuple(int(t) for t in taken), (0.0,) * 501, 2, alike=True)
    side = Side.of(burst, [True] * 501)
    assert len(side.entries) == KEPT_ENTRIES
    assert np.median(side.latency_ns) == pytest.approx(np.median(taken), rel=0.01)
    loud = Burst((MS,) * 10 + (9 * MS,) * 3, (0.0,) * 10 + (0.5,) * 3)
    calm = Side.of(loud, [True] * 10 + [False] * 3)
    assert max(calm.entries) * calm.unit_ns == pytest.approx(MS, rel=0.01)


def test_rows_of_two_spaces_do_not_mix(tmp_path: Path) -> None:
    first = frozen(tmp_path, space())
    assert frozen(tmp_path, space()) == first
    other = replace(space(), targets=(SearchTarget(Cpu(threads=2), CAPABLE),))
    with pytest.raises(OrtuneError, match="rows of two spaces do not mix"):
        frozen(tmp_path, other)


class TestRecording:
    """On scripted workers: nothing is run, and no lock is held."""

    @pytest.fixture
    def script(self) -> Script:
        return Script()

    @pytest.fixture
    def begin(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Script
    ) -> Iterator[Callable[[], Recording]]:
        context = scripted(tmp_path, monkeypatch, script)
        monkeypatch.setattr(recording, "to_itself", nullcontext)
        monkeypatch.setattr(recording, "build_all", vars(evaluate)["build_all"])
        with ExitStack() as stack:

            def begun() -> Recording:
                return Recording(context, 0.01, ignore_event, stack, Kept(tmp_path / "rows"))

            yield begun

    def test_all_that_a_plan_cost_and_gave_is_kept(self, begin: Callable[[], Recording]) -> None:
        first = begin()
        first.original()
        assert not try_all(first, space(), 2)
        base, one, _ = current(first)
        assert base.stage == "baseline" and true_ratio(base) == 1.0
        assert one.truth == pytest.approx(0.5) and one.passes and not one.died
        assert one.block_s > 0 and one.start_s > 0 and one.search_s > 0 and one.final_s > 0
        assert one.scores[0].samples == 100 and one.final[0].samples == 200
        assert [cut.steps for cut in one.cuts] == [
            spelled(one.plan.recipe.steps[:at]) for at in cuts_of(one.plan.recipe.steps)
        ]

    def test_it_goes_on_where_it_was_stopped(
        self, begin: Callable[[], Recording], script: Script, tmp_path: Path
    ) -> None:
        first = begin()
        first.original()
        try_all(first, space(), 3)
        starts = len(script.asked("starts", "candidate"))
        lost = current(first)[-1]
        (tmp_path / "rows" / f"{lost.key}.json").unlink()
        second = begin()
        second.original()
        try_all(second, space(), 1)
        rows = current(second)
        assert len(script.asked("starts", "candidate")) == starts + 1
        assert {r.plan.spelling for r in rows} == {r.plan.spelling for r in current(first)}

    @pytest.mark.parametrize("do", ["load", "burst", "score"])
    def test_what_fails_costs_what_it_took(
        self, begin: Callable[[], Recording], script: Script, do: str
    ) -> None:
        attempts = begin()
        attempts.original()
        script.fails = ("candidate", do)
        try_all(attempts, space(), 1)
        died = current(attempts)[1]
        assert died.died == {"load": "load", "burst": "timing", "score": "search"}[do]
        assert died.died_s > 0 and not died.passes and "died" in died.why
        assert (died.truth is None) == (do != "score"), "what was timed is kept"

    def test_the_fastest_are_timed_in_fresh_pairs_too(
        self, begin: Callable[[], Recording]
    ) -> None:
        attempts = begin()
        attempts.original()
        try_all(attempts, space(), 1)
        confirm(attempts)
        assert len(current(attempts)[1].pairs) == 3
        assert [len(one.blocks) > 0 for one in current(attempts)[1].timed()] == [True] * 3

    def test_of_settings_the_fastest_alone_are_scored_on_all_samples(
        self, begin: Callable[[], Recording], script: Script
    ) -> None:
        attempts = begin()
        attempts.original()
        script.diary.clear()
        original = current(attempts)[0]
        attempts.try_plan(Proposal(LOSSY, "runtime", neighbour_of=original.key))
        assert [len(some) for some in script.asked("score", "candidate")] == [100]
        row = current(attempts)[1]
        assert row.scores and not row.final and row.passes
        attempts.again(row)
        assert current(attempts)[1].final[0].samples == 200
        script.diary.clear()
        script.ratio = 1.02
        slow = replace(LOSSY, backend=Cpu(threads=1, level="basic"))
        attempts.try_plan(Proposal(slow, "runtime", neighbour_of=row.key))
        assert not script.asked("score", "candidate")
        assert current(attempts)[2].scores == row.scores, "far behind, so those of its plan"

    def test_nothing_is_scored_twice_and_what_is_slower_not_at_all(
        self, begin: Callable[[], Recording], script: Script
    ) -> None:
        attempts = begin()
        attempts.original()
        script.diary.clear()
        try_all(attempts, space(), 1)
        assert [len(some) for some in script.asked("score", "candidate")] == [100, 100]
        script.ratio = 1.5
        try_all(attempts, space(), 1)
        slow = current(attempts)[-1]
        assert not slow.scores and not slow.passes and slow.status is Status.SCREENED
        assert len(script.asked("score", "candidate")) == 2


def test_what_is_far_behind_gets_fewer_blocks() -> None:
    def needed(ratio: float, best: float) -> int:
        every = [turn(ratio).block() for _ in range(20)]
        effort = Effort(seconds=6.0, decide=False)
        return next(n for n in range(1, 20) if settled(every[:n], float(n), effort, best))

    assert needed(2.1, 1.0) == 1 and needed(1.6, 1.0) == 2 and needed(1.4, 1.0) == 4
    assert needed(0.5, 0.4) == 4 and needed(0.5, 0.48) == 7 and needed(1.0, math.inf) == 7


# The exhaustive policy on records alone: everything once, whatever comes of it.


CPU = SearchTarget(Cpu(), Capabilities(effective_cpus=2), frozenset({"threads"}))
SPACE = Space(FACTS, (CPU,), Latency(), Cpu())


def view(trials: list[Trial], left: float) -> View:
    return test_adaptive.view(trials, left, facts=FACTS, space=SPACE)


def result(proposal: Proposal, ratio: float, verdict: Verdict = Verdict.PROVED) -> Trial:
    return trial(proposal, ratio, 2.0 if verdict is Verdict.FAILS else 0.0)


def played(comes: Callable[[Proposal], Trial], policy: Exhaustive | None = None) -> list[Proposal]:
    """Return all that is proposed, each with what comes of the one before."""
    trials: list[Trial] = []
    found: list[Proposal] = []
    while (proposal := (policy or Exhaustive()).next(view(trials, left=1e6))) is not None:
        found.append(proposal)
        trials.append(comes(proposal))
    return found


def fails_in_int8(proposal: Proposal) -> Trial:
    fails = "int8-static" in proposal.plan.recipe.name and proposal.stage == "search"
    return result(proposal, 0.5, Verdict.FAILS if fails else Verdict.PROVED)


def test_everything_is_tried_once_at_full_effort() -> None:
    found = played(fails_in_int8)
    spelled = [proposal.plan.spelling for proposal in found]
    assert len(spelled) == len(set(spelled))
    assert {proposal.effort for proposal in found} == {"full"}
    plans = ranked(SPACE)
    assert [proposal.plan for proposal in found[: len(plans)]] == plans


def test_whatever_fails_is_rescued_even_when_saved_before() -> None:
    found = played(fails_in_int8)
    failed = [p.plan for p in found if fails_in_int8(p).status is Status.FAILS]
    wanted = {rescue.spelling for plan in failed for rescue in SPACE.list_rescues(plan)}
    tried = {p.plan.spelling for p in found}
    assert wanted and wanted <= tried
    assert {p.stage for p in found} == {"search", "rescue", "runtime"}


def test_settings_are_tried_around_the_fastest_alone() -> None:
    ratios = {plan.spelling: 0.5 + 0.01 * at for at, plan in enumerate(ranked(SPACE))}
    other = {"runtime": 0.3}
    found = played(
        lambda p: result(p, ratios.get(p.plan.spelling, other.get(p.stage, 0.9))),
        Exhaustive(fastest=2),
    )
    around = list(dict.fromkeys(p.neighbour_of for p in found if p.stage == "runtime"))
    assert around == [plan.spelling for plan in ranked(SPACE)[:2]]
    tried = {p.plan.spelling for p in found}
    for plan in ranked(SPACE)[:2]:
        for plans in SPACE.list_neighbours(plan).values():
            assert {one.spelling for one in plans} <= tried


def test_what_keeps_the_budget_is_tried_with_more_in_integers() -> None:
    found = {p.plan.spelling for p in played(lambda p: result(p, 0.5))}
    wanted = {more.spelling for one in ranked(SPACE) for more in SPACE.list_extensions(one)}
    assert wanted and wanted <= found


def test_nothing_is_left_out_when_all_is_tried() -> None:
    trials: list[Trial] = []
    while (proposal := Exhaustive().next(view(trials, left=1e6))) is not None:
        trials.append(result(proposal, 1.2))
    assert Exhaustive().explain_untried(view(trials, left=1e6)) == LeftOut()
