"""A machine on which plans do what a table says: builds, workers and scores by its clock.

The search's own code builds, times and judges; only what it asks of a machine is answered from
the table. A worker is asked as `ortune.measurement.process.Worker` is, burst by burst.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.search.costs import Paid, Spent, passes
from benchmarks.search.table import Cut, Row, Table, cuts_of, spelled
from ortune.core.errors import OrtuneError
from ortune.core.plugins import codec
from ortune.core.step import AS_IS, Recipe
from ortune.core.trial import Plan, Score, Status
from ortune.measurement.job import Failure, WorkerJob
from ortune.measurement.process import WorkerFailed
from ortune.search.experiment.context import Context, ScoredPart
from ortune.search.experiment.measure import Files
from ortune.search.recipe.ahead import WAIT, WAIT_S


@dataclass
class Clock:
    """Time that passes only where a table says so; it stands in for the module ``time`` too."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    monotonic = perf_counter = time = __call__


@dataclass
class Machine:
    """Answers for a table.

    Attributes:
        lacking: Plans that were asked for and that the table has no row of, nor a near one.
        near: Plans for which the row of a near one stood.
        builders: Nodes that build ahead; None where nobody does.
        building_s: Seconds that the search has waited for builds.
    """

    table: Table
    clock: Clock
    lacking: list[str] = field(default_factory=list)
    near: list[str] = field(default_factory=list)
    builders: Builders | None = None
    building_s: float = 0.0

    def __post_init__(self) -> None:
        self._spent, self._passes = Spent(), passes(self.table)
        self._recipes: dict[Path, Recipe] = {}
        self._starts: dict[str, int] = {}
        self._sides: list[SimulatedWorker] = []

    def build_all(self, context: Context, plan: Plan, sink: object) -> Files:
        """Build a plan: what was built before costs nothing.

        Raises:
            OrtuneError: It could not be built.
        """
        steps, row = plan.recipe.steps, self.row(plan)
        began = self.clock.now
        cut = self.table.cuts.get(spelled(steps))
        arrival = self.builders.find_arrival(cut, began) if self.builders and cut else None
        if arrival is not None:
            self.clock.now = arrival
            self._spent.built |= {spelled(steps[:end]) for end in cuts_of(steps)}
        for until in cuts_of(steps):
            cut = self.table.cuts.get(spelled(steps[:until]))
            self.clock.now += self._spent.cut(cut, self._passes) if cut is not None else 0.0
            if cut is not None and cut.error:
                raise OrtuneError(cut.error, fix="a replay builds nothing")
        self.building_s += self.clock.now - began
        changed = bool(steps) and row.status is not Status.UNCHANGED
        name = f"artefacts/{codec.digest(spelled(steps))}" if changed else ""
        path = (context.root / name / "model.onnx").resolve()
        if changed:
            self._recipes[path] = plan.recipe
        edits = tuple(row.edits)
        return Files(dict.fromkeys(context.models, path), edits, row.size or 0, changed, name)

    def worker(
        self,
        job: WorkerJob,
        *,
        timeout_s: float = math.inf,
        deadlines: Mapping[str, float] | None = None,
        **_: object,
    ) -> Any:
        """Start a worker."""
        recipe = self._recipes.get(next(iter(job.models.values())), AS_IS)
        row = self.row(Plan(recipe, job.backend))
        count = self._starts[row.plan.spelling] = self._starts.get(row.plan.spelling, -1) + 1
        return SimulatedWorker(self, row, count, timeout_s, deadlines or {})

    def score(
        self,
        context: Context,
        worker: SimulatedWorker,
        plan: Plan,
        *parts: ScoredPart,
        plans: int | None = None,
        keep_as: str = "",
        **given: Any,
    ) -> tuple[Score, ...]:
        """Score a loaded plan on one part or on all.

        Args:
            plans: Recorded scores are judged already: it changes none.
            keep_as: Scores of samples are not recorded: it keeps none.
            given: What decides how long it may take.

        Raises:
            WorkerFailed: It did not answer.
        """
        row, whole = worker.row, len(parts) > 1
        limit = max(context.scoring_s(part, **given) for part in parts)
        if row.died in ("search", "final")[: 1 + whole]:
            worker.dies(limit)
        first = self.table.rows[0]
        as_much = row.search_s * first.final_s / max(first.search_s, 1e-9)
        worker.takes((row.final_s or as_much) if whole else row.search_s, limit)
        return row.final or row.scores if whole else row.scores

    def row(self, plan: Plan) -> Row:
        """Return a plan's row, a near one's, or one that fails after a usual time."""
        found = self.table.find(plan)
        if found is not None:
            return found
        near = self.table.nearest(plan)
        if near is not None:
            self.near.append(plan.spelling)
            return near
        self.lacking.append(plan.spelling)
        base, why = self.table.rows[0], "the table has no such plan"
        usual = base.load_s + base.first_s + self.table.about.pair_s
        return Row("", plan, "", Status.FAILED, why, died="load", died_s=usual)

    def warms(self, worker: SimulatedWorker) -> bool:
        """Note which sides are warm; say whether this one was not. The candidate comes last."""
        if self._sides[-1:] == [worker]:
            return False
        self._sides = [*self._sides, worker][-2:]
        return True

    @property
    def sides(self) -> tuple[SimulatedWorker, SimulatedWorker]:
        """The pair that is timed: who was warmed last is the candidate."""
        base, candidate = self._sides
        return base, candidate


class Builders:
    """Nodes of a cluster that build ahead, as `ortune.search.recipe.ahead` uses them.

    Args:
        count: CPUs that build.
        task_s: Seconds from an order to its begin, and from the end of a build to its arrival.
        lost: A build in so many is lost with its node, half made, and made again.
    """

    arrived = 0

    def __init__(
        self, table: Table, clock: Clock, count: int, *, task_s: float, lost: int = 0
    ) -> None:
        self._table, self._clock, self._task_s, self._lost = table, clock, task_s, lost
        self._free_from = [0.0] * count
        self._nodes = [Spent() for _ in range(count)]
        self._passes, self._begun = passes(table), 0
        self._arrivals: dict[str, float] = {}
        self._longest_s = 0.0

    def begin(self, recipes: Iterable[Recipe]) -> None:
        """Begin builds in this order while nodes are idle."""
        for recipe in recipes:
            at = min(range(len(self._free_from)), key=self._free_from.__getitem__)
            if self._free_from[at] > self._clock.now:
                return
            name = spelled(recipe.steps)
            if not recipe.steps or name in self._arrivals or name not in self._table.cuts:
                continue
            whole = [
                self._table.cuts.get(spelled(recipe.steps[:end])) for end in cuts_of(recipe.steps)
            ]
            seconds = sum(self._nodes[at].cut(cut, self._passes) for cut in whole if cut)
            self._begun += 1
            seconds *= 1.5 if self._lost and self._begun % self._lost == 0 else 1.0
            self._free_from[at] = self._clock.now + self._task_s + seconds
            self._arrivals[name] = self._free_from[at] + self._task_s

    def find_arrival(self, cut: Cut, now: float) -> float | None:
        """Return when a build is there; None where none is out, or it is not waited for."""
        arrival = self._arrivals.pop(cut.steps, None)
        if arrival is None or cut.error or arrival - now > max(WAIT_S, WAIT * self._longest_s):
            return None
        self.arrived += 1
        self._longest_s = max(self._longest_s, cut.seconds)
        return max(now, arrival)


class SimulatedWorker:
    """A worker that answers from a row.

    Attributes:
        paid: What runs and bursts of it cost beside the original.
        turns: The recorded blocks; every start takes the next pair, the first again after all.
        bursts: Bursts of the original and of its own, so far.
    """

    reproduce = "a replay"
    alive = True

    def __init__(
        self,
        machine: Machine,
        row: Row,
        start: int = 0,
        timeout_s: float = math.inf,
        deadlines: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.machine, self.row = machine, row
        self._timeout_s, self._deadlines = timeout_s, deadlines
        self._there = machine.clock.now + row.start_s
        self.paid = Paid.of(row, machine.table.rows[0])
        pairs = [pair for pair in row.pairs if pair] or [()]
        self.turns = pairs[start % len(pairs)]
        self.bursts = [0, 0]

    def __enter__(self) -> SimulatedWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End: nothing runs."""
        self.alive = False

    def take_turns_with(self, other: object) -> None:
        """Be loaded beside another: what a row records takes no memory."""

    def unload(self) -> None:
        """Give back memory: there is none."""

    def ask(self, do: str, *, timeout_s: float | None = None, **asked: Any) -> Mapping[str, Any]:
        """Answer after the time that it took when the row was recorded.

        Raises:
            WorkerFailed: It failed then, or takes longer than it may.
        """
        row, limit = self.row, timeout_s or self._deadlines.get(do, self._timeout_s)
        if do == "load":
            if row.died == "load":
                self.dies(limit)
            # Other work may have been done while the process came up.
            self.takes(max(0.0, self._there - self.machine.clock.now) + row.load_s, limit)
            return {"load_ns": round(row.load_s * 1e9), "placement": {}}
        if do == "first":
            self.takes(row.first_s, limit)
            return {"first_ns": round(row.first_s * 1e9), "peak_rss": row.peak_rss}
        if do == "record":
            return {"missing": "nothing was profiled", "remedy": "record the table again"}
        if do == "burst" and "drop" in asked:
            return self._timed(limit, **asked)
        return self._warming(asked["runs"], limit) if do == "burst" else {}

    def dies(self, limit: float) -> None:
        """Fail as it did, or where it may no longer run.

        Raises:
            WorkerFailed: Always.
        """
        self.takes(math.inf if self.row.hung else self.row.died_s, limit)
        self._fails(self.row.why)

    def _warming(self, runs: int, limit: float) -> Mapping[str, Any]:
        if self.machine.warms(self):
            self.bursts = [0, 0]
            if self.row.died == "timing":
                self.dies(limit)
        ns = self.paid.run_ns[1]
        self.takes(runs * ns / 1e9, limit)
        alike = all(side.alike for turn in self.turns for side in turn.bursts)
        waited = [0.0] * runs
        return {"latency_ns": [ns] * runs, "waited": waited, "spent_ns": runs * ns, "alike": alike}

    def _timed(
        self, limit: float, runs: int, each: int, at: int = 0, drop: int = 0
    ) -> Mapping[str, Any]:
        """Answer with the next recorded burst of this side, again from the first after the last.

        No rule that stops a trial has been asked about more than was recorded.
        """
        candidate = self.machine.sides[1]
        side = int(self is candidate)
        done, candidate.bursts[side] = candidate.bursts[side], candidate.bursts[side] + 1
        bursts = candidate.turns[done // 2 % len(candidate.turns)].bursts
        taken = bursts[(0, 3)[done % 2] if side == 0 else 1 + done % 2]
        if not done and not side:
            self.machine.clock.now += candidate.paid.warm_s
        self.takes(candidate.paid.burst(side, runs * each), limit)
        return {
            "latency_ns": list(islice(cycle(taken.latency_ns), runs)),
            "waited": [0.0] * runs,
            "alike": taken.alike,
        }

    def takes(self, seconds: float, limit: float) -> None:
        """Let time pass.

        Raises:
            WorkerFailed: It is more than it may be.
        """
        if seconds > limit:
            self.machine.clock.now += limit
            self._fails(f"no answer after {limit:.3g} s")
        self.machine.clock.now += seconds

    def _fails(self, why: str) -> None:
        self.alive = False
        worker: Any = self
        raise WorkerFailed(Failure(why, self.reproduce), worker)
