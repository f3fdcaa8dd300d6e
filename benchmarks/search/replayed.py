"""A search on a table: the real loop, policy, clock rules and judgement on a simulated machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from benchmarks.search.costs import Paid
from benchmarks.search.simulated import Builders, Clock, Machine
from benchmarks.search.spaces import digest, pretended, space_of
from benchmarks.search.table import Row, Table, true_ratio
from ortune.core.budget import Budget
from ortune.core.errors import OrtuneError
from ortune.core.event import Event, TrialDone, Unconfirmed
from ortune.core.study import Header, Job, Study
from ortune.core.trial import Plan, Status, Trial
from ortune.measurement.timing import pairs
from ortune.search import loop
from ortune.search.experiment import evaluate, measure, misread
from ortune.search.experiment.context import Context, ScoredPart
from ortune.search.experiment.ledger import read_study, write_header
from ortune.search.loop import Aim
from ortune.search.policy import Policy

NEAR = 1.02
"""Times the table's best: a plan that fast was abandoned wrongly."""
SET_UP = 0.25
"""Share of the limit from which set-up does not count against it."""
LONGEST_S = 60.0
"""Time limit of a task in a search, at most."""
TIMES = ("time", "perf_counter", "monotonic")
"""What the search's code reads time by."""


@dataclass(frozen=True)
class Result:
    """What came of a replayed search.

    Attributes:
        regret: Latency of what was found over that of the table's best; 1 is perfect.
        wall: Seconds that it took; `over` the limit, negative below. Set-up counts where it is
            less than a quarter of the limit, as in a search.
        first_s: Seconds from the end of set-up until the first plan that may be faster and keeps
            the budget was shown; None where none was.
        abandoned: Trials whose timing was ended part way; `wrongly` those within 2 % of the best.
        lacking: Plans that the table does not have; `near` ones were stood in for.
        near_s: Seconds until a plan within 2 % of the table's best was tried; None where none was.
        building_s: Seconds that the search waited for builds.
    """

    regret: float
    found: str
    ratio: float
    wall: float
    over: float
    tried: int
    first_s: float | None
    abandoned: int
    wrongly: tuple[str, ...]
    lacking: int
    near: int
    finished: str
    near_s: float | None = None
    building_s: float = 0.0


@dataclass
class Seen:
    """What a search says on its way.

    Attributes:
        stopped: Trials whose timing was ended part way.
        first_s: When the first plan was shown as unconfirmed.
        near_s: When a plan was tried that `is_near` the best.
    """

    clock: Clock
    is_near: Callable[[Trial], bool]
    stopped: list[Trial] = field(default_factory=list)
    first_s: float | None = None
    near_s: float | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, TrialDone) and self.near_s is None and self.is_near(event.trial):
            self.near_s = self.clock.now
        if isinstance(event, TrialDone) and event.trial.stopped and not event.cached:
            self.stopped.append(event.trial)
        if isinstance(event, Unconfirmed) and self.first_s is None:
            self.first_s = self.clock.now


class Attempts(evaluate.Attempts):
    """The search's own; a table knows plans by their spelling."""

    def trial_key(self, plan: Plan) -> str:
        return plan.spelling


def replay(
    table: Table,
    policy: Policy,
    seconds: float,
    *,
    changed: bool = False,
    make_builders: Callable[[Table, Clock], Builders] | None = None,
) -> Result:
    """Search a table for some seconds by its clock.

    Args:
        make_builders: Gives nodes that build ahead.
        changed: Go on where the space lists other plans than when the table was measured: those
            that it lacks fail.

    Raises:
        OrtuneError: The space has changed.
    """
    machine = Machine(table, Clock(table.about.prepared_s))
    if make_builders is not None:
        machine.builders = make_builders(table, machine.clock)
    best = true_ratio(table.best)
    seen = Seen(
        machine.clock,
        lambda t: t.status is Status.OK and _true(table, t.plan) <= NEAR * best,
    )
    with TemporaryDirectory(prefix="ortune-") as folder, pretended(table), simulating(machine):
        space = space_of(table)
        if digest(space) != table.about.space and not changed:
            raise OrtuneError(
                f"the space of {table.about.name} has changed since its table was measured",
                fix="measure it anew, or give --changed-space: what the table lacks then fails",
            )
        aim = Aim(seconds, 0.0, clock=machine.clock)
        context = surroundings(table, Path(folder), seconds)
        context = replace(context, ahead=machine.builders)
        loop.run_search(context, lambda note: space, policy, aim, seen)
        study = read_study(Path(folder))
    return _result(table, study, machine, seen, seconds)


def _result(table: Table, study: Study, machine: Machine, seen: Seen, seconds: float) -> Result:
    row, best = table.standing_for(study.best.plan), true_ratio(table.best)
    assert row is not None
    set_up = table.about.prepared_s + study.baseline.seconds
    # What follows a search: the original and the winner answer once more, for the bundle.
    wall = machine.clock.now + sum(
        one.start_s + one.load_s + one.first_s for one in (table.rows[0], row)
    )
    return Result(
        regret=true_ratio(row) / best,
        found=str(study.best.plan),
        ratio=true_ratio(row),
        wall=wall,
        over=wall - seconds - set_up * (set_up > SET_UP * seconds),
        tried=sum(trial.part == "search" for trial in study.trials),
        first_s=seen.first_s and seen.first_s - set_up,
        abandoned=len(seen.stopped),
        wrongly=tuple(str(t.plan) for t in seen.stopped if _true(table, t.plan) <= NEAR * best),
        lacking=len(machine.lacking),
        near=len(machine.near),
        finished=study.finished,
        near_s=seen.near_s and seen.near_s - set_up,
        building_s=machine.building_s,
    )


def _true(table: Table, plan: Plan) -> float:
    row = table.standing_for(plan)
    return true_ratio(row) if row is not None and row.truth is not None else np.inf


@contextmanager
def simulating(machine: Machine) -> Iterator[None]:
    """Have the search's code run on a simulated machine."""
    first = machine.table.rows[0]
    value, file = (
        first.scores[0].value,
        SimpleNamespace(count_file_bytes=lambda _: first.size or 0),
    )
    with ExitStack() as stack:
        for module, name in product((evaluate, measure, pairs, loop), TIMES):
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, machine.clock))
        stack.enter_context(patch.object(loop, "Attempts", Attempts))
        stack.enter_context(patch.object(evaluate, "build_all", machine.build_all))
        stack.enter_context(patch.object(evaluate, "compute_score", lambda *_: value))
        stack.enter_context(patch.object(evaluate, "file", file))
        stack.enter_context(patch.object(measure, "Worker", machine.worker))
        stack.enter_context(patch.object(measure, "score_plan", machine.score))
        # What a plan's file answers in another runtime is in no table.
        stack.enter_context(patch.object(misread, "judge_file", lambda _, trial, *__: trial))
        yield


def spelled_budget(table: Table) -> str:
    """Return the budget; one of an evaluate function reads as that of a metric of samples."""
    text, scores = table.about.budget, table.rows[0].scores
    found = re.fullmatch(r"score\(path=(.+)\)", scores[0].metric) if scores else None
    return text.replace(found[1], f'score(path="{found[1]}")') if found else text


def surroundings(table: Table, root: Path, seconds: float) -> Context:
    """Return what is fixed before a search of a table."""
    about, first = table.about, table.rows[0]
    budget = Budget.parse(spelled_budget(table))
    job = Job(about.name, "m", "d", budget, "", about.workload, about.baseline, {}, {})
    write_header(root, Header(job, about.facts))
    run_ns = about.deadlines.run_ns or Paid.of(first, first).run_ns[0]
    deadlines = replace(about.deadlines, run_ns=run_ns)
    needed = 10 * first.load_s + 40 * first.first_s
    return Context(
        root, job, about.facts, {"": root / "model.onnx"}, {}, {}, parts(table.rows), "",
        timeout_s=min(LONGEST_S, max(20.0, seconds / 3, needed)),
        finalists=loop.FINALISTS, deadlines=deadlines, by_operator=about.by_operator,
        by_region=False,  # a table has whole plans alone
    )  # fmt: skip


def parts(rows: Sequence[Row]) -> dict[str, ScoredPart]:
    """Return the parts of the data: of the samples of the rows only how many they are counts."""
    few = rows[0].scores[0].samples
    many = max([row.final[0].samples for row in rows if row.final], default=few)
    made = {"search": range(few), "final": range(few, many)}
    return {
        name: ScoredPart(name, tuple(some), None, np.ones((len(some), 1)))
        for name, some in made.items()
        if some
    }
