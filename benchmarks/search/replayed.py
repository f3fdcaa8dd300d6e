"""A search on a table: the real loop and policy, a scripted clock, costs as they were measured.

What of a recorded trial is taken, and what it costs, stands in `benchmarks.search.costs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from benchmarks.search.costs import Spent, taken_blocks, turn_s
from benchmarks.search.spaces import digest, pretended, space_of
from benchmarks.search.table import Row, Table, cuts_of, spelled, true_ratio
from ortune.core.budget import Budget
from ortune.core.errors import OrtuneError
from ortune.core.event import Note, Sink, silent
from ortune.core.step import AS_IS
from ortune.core.study import Header, Job, Study
from ortune.core.trial import Measurement, Pair, Plan, Proposal, Status, Trial
from ortune.experiment import measure
from ortune.experiment.context import Context
from ortune.experiment.evaluate import effort
from ortune.experiment.ledger import Ledger, read_study, write_header
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, Stop, claiming
from ortune.recipe.space import Space
from ortune.search import loop
from ortune.search.policy import Policy

ORIGINAL = Effort(max_blocks=12, seconds=2, decide=False)
"""What the original's pair with itself gets."""


@dataclass
class Clock:
    """Time that passes only where a table says so."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Replayed:
    """Stands in for the search's `Attempts`: a ledger of its own, costs and results by the table.

    Attributes:
        lacking: Plans that were proposed and that the table has no row of, nor a near one.
        near: Plans for which the row of a near one stood.
    """

    table: Table
    clock: Clock
    lacking: list[str]
    near: list[str]
    context: Context
    pair_seconds: float
    sink: Sink
    stack: ExitStack
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.context.root)
        self.spent = Spent()
        cuts = self.table.cuts.values()
        self._passes = {asked: s for cut in cuts for asked, s in cut.calibrated.items()}

    def key(self, plan: Plan) -> str:
        """Return what counts of a plan, spelled."""
        return plan.spelled

    def note(self, text: str) -> None:
        """Keep it."""
        self.notes.append(text)
        self.sink(Note(text))

    def baseline(self) -> None:
        """Record the original and its pair with itself."""
        plan = Plan(AS_IS, self.context.job.baseline)
        if self.ledger.find(self.key(plan), "search") is None:
            row = self.table.rows[0]
            blocks = row.timed()[0].blocks[: ORIGINAL.max_blocks]
            timed = len(blocks) * turn_s(row, ORIGINAL)
            self.clock.now += 2 * (row.load_s + row.first_s) + row.warm_s + timed
            blank = Trial(self.key(plan), plan, "search", Status.OK, stage="baseline")
            made = _measured(blank, row, [Pair(blocks)])
            judged = measure.concluded(
                self.context, replace(made, scores=row.scores), stats.NOTHING
            )
            self._recorded(replace(judged, status=Status.OK))

    def one(
        self, proposal: Proposal, *, always_score: bool = False, stop: Stop | None = None
    ) -> Trial:
        """Return the plan's trial, known or from the table; its time passes."""
        known = self.ledger.find(self.key(proposal.plan), "search")
        if known is not None:
            return known
        began, row = self.clock.now, self._row(proposal.plan)
        blank = Trial(
            self.key(proposal.plan), proposal.plan, "search", Status.FAILED,
            size=row.size, edits=row.edits, stage=proposal.stage, proposed=proposal.why,
            neighbour_of=proposal.neighbour_of,
        )  # fmt: skip
        always = always_score or proposal.effort == "full"
        scored = "always" if always else "unless slower" if proposal.score else "never"
        spent = effort(proposal, self.pair_seconds)
        trial = self._tried(blank, row, spent if always else replace(spent, stop=stop), scored)
        return self._recorded(replace(trial, seconds=self.clock.now - began))

    def final(self, trial: Trial, index: int, total: int, seconds: float | None = None) -> Trial:
        """Return a finalist's trial: its fresh pairs, and its score on all samples."""
        known = self.ledger.find(trial.key, "final")
        if known is not None:
            return known
        began, row, base = self.clock.now, self._row(trial.plan), self.table.rows[0]
        spent, pairs = claiming(self.pair_seconds), row.timed()
        if seconds is not None:
            spent = replace(spent, seconds=seconds)
        fresh = pairs[1:] or pairs
        taken = []
        for at in range(stats.PAIRS):
            blocks = taken_blocks(row, fresh[at % len(fresh)], spent)
            starts = base.load_s + base.first_s + row.load_s + row.first_s
            self.clock.now += starts + row.warm_s + len(blocks) * turn_s(row, spent)
            taken.append(Pair(tuple(blocks)))
        self.clock.now += row.final_s
        made = replace(trial, part="final", stage="final", neighbour_of="")
        made = replace(_measured(made, row, taken), scores=row.final)
        if row.died == "final":
            made = replace(
                made, status=Status.FAILED, measurement=None, error=row.why, why=row.why
            )
        learnt = measure.learnt(self.ledger.trials, but=trial.key)
        found = measure.concluded(self.context, made, learnt)
        return self._recorded(replace(found, seconds=self.clock.now - began))

    def _tried(self, blank: Trial, row: Row, spent: Effort, scored: str) -> Trial:
        """Let time pass as it did when the row was measured, up to where this effort ends."""
        failed = replace(blank, why=row.why, error=row.why)
        for until in cuts_of(blank.plan.recipe.steps):
            cut = self.table.cuts.get(spelled(blank.plan.recipe.steps[:until]))
            self.clock.now += self.spent.cut(cut, self._passes) if cut is not None else 0.0
            if cut is not None and cut.error:
                return failed
        if row.status is Status.UNCHANGED:
            return replace(blank, status=Status.UNCHANGED, why=row.why)
        if row.died in ("build", "load", "timing"):
            died_s = min(row.died_s, self.context.timeout_s)
            self.clock.now += row.load_s + row.first_s + died_s
            return failed
        blocks = taken_blocks(row, row.timed()[0], spent)
        self.clock.now += row.load_s + row.first_s + row.warm_s
        self.clock.now += len(blocks) * turn_s(row, spent)
        made = _measured(blank, row, [Pair(tuple(blocks))])
        if spent.stop is not None and (why := spent.stop(Pair(tuple(blocks)))):
            stopped = replace(made, stopped=why)
            return measure.concluded(self.context, stopped, stats.NOTHING)
        low = stats.ratio(made.measurement.pairs, stats.SEARCHING).low if made.measurement else 1.0
        if scored == "always" or (scored == "unless slower" and low < measure.HOPELESS):
            if row.died == "search":
                self.clock.now += row.died_s
                return failed
            self.clock.now += row.search_s
            made = replace(made, scores=row.scores)
        return measure.concluded(self.context, made, stats.NOTHING)

    def _row(self, plan: Plan) -> Row:
        """Return a plan's row, a near one's, or one that fails after a usual time."""
        found = self.table.find(plan)
        if found is not None:
            return found
        near = self.table.nearest(plan)
        if near is not None:
            self.near.append(plan.spelled)
            return near
        self.lacking.append(plan.spelled)
        base = self.table.rows[0]
        usual = base.load_s + base.first_s + self.pair_seconds
        why = "the table has no such plan"
        return Row("", plan, "", Status.FAILED, why, died="load", died_s=usual)

    def _recorded(self, trial: Trial) -> Trial:
        self.ledger.append(trial)
        return trial


def _measured(trial: Trial, row: Row, pairs: Sequence[Pair]) -> Trial:
    taken = Measurement(
        tuple(pairs), round(row.load_s * 1e9), round(row.first_s * 1e9), row.peak_rss
    )
    return replace(trial, measurement=taken)


@dataclass(frozen=True)
class Result:
    """What came of a replayed search.

    Attributes:
        regret: Latency of what was found over that of the table's best; 1 is perfect.
        wall: Seconds that it took.
        lacking: Plans that the table does not have; `near` ones were stood in for.
    """

    regret: float
    found: str
    ratio: float
    wall: float
    tried: int
    lacking: int
    near: int
    finished: str


def replay(table: Table, policy: Policy, seconds: float, *, changed: bool = False) -> Result:
    """Search a table for some seconds by its clock.

    Args:
        changed: Go on where the space lists other plans than when the table was measured: those
            that it lacks fail.

    Raises:
        OrtuneError: The space has changed.
    """
    clock, lacking, near = Clock(), list[str](), list[str]()
    with TemporaryDirectory(prefix="ortune-") as folder, pretended(table):
        space = space_of(table)
        if digest(space) != table.about.space and not changed:
            raise OrtuneError(
                f"the space of {table.about.name} has changed since its table was measured",
                fix="measure it anew, or give --changed-space: what the table lacks then fails",
            )
        study = _searched(table, space, policy, seconds, Path(folder), clock, (lacking, near))
        best = study.best.plan
        row = table.standing_for(best)
        assert row is not None
        regret, ratio = true_ratio(row) / true_ratio(table.best), true_ratio(row)
        tried = sum(trial.part == "search" for trial in study.trials)
        return Result(
            regret, str(best), ratio, clock.now, tried, len(lacking), len(near), study.finished
        )


def _searched(
    table: Table,
    space: Space,
    policy: Policy,
    seconds: float,
    root: Path,
    clock: Clock,
    told: tuple[list[str], list[str]],
) -> Study:
    about = table.about
    job = Job(
        about.name,
        "m",
        "d",
        Budget.parse(about.budget),
        "",
        about.workload,
        about.baseline,
        {},
        {},
    )
    write_header(root, Header(job, about.facts))
    context = Context(
        root, job, about.facts, {}, {}, {}, {}, "", base_ns=1,
        timeout_s=max(20.0, seconds / 3), finalists=loop.FINALISTS,
    )  # fmt: skip
    clock.now = about.prepared_s
    aim = loop.Aim(seconds, 0.0, clock=clock)
    attempts = partial(Replayed, table, clock, *told)
    with patch.object(loop, "Attempts", attempts):
        loop.search(context, lambda note: space, policy, aim, silent)
    return read_study(root)
