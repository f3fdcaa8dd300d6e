"""One plan after another as far as it can count, each with what it cost, kept as found."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.search.bursts import Turn
from benchmarks.search.calibrations import calibrations
from benchmarks.search.costs import RECORDED_BURST_S
from benchmarks.search.table import Cut, Row, cuts_of, spelled
from benchmarks.search.workers import Once, behind, timed
from benchmarks.speed.neighbour import to_itself
from ortune.core.atomic_write import write_text
from ortune.core.errors import OrtuneError
from ortune.core.event import Sink
from ortune.core.plugins import codec
from ortune.core.step import AS_IS, Edit, Recipe, Step
from ortune.core.trial import Pair, Plan, Proposal, Status, Trial
from ortune.measurement.process import Worker, WorkerFailed
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import Effort, Stop, fresh_pairs
from ortune.measurement.timing.turns import StartupTimes, wait_until_ready
from ortune.search.experiment import measure
from ortune.search.experiment.context import Context
from ortune.search.experiment.evaluate import Attempts
from ortune.search.experiment.measure import Files, build_all
from ortune.search.experiment.scores import score_plan
from ortune.search.recipe.built import steps_key

SCORED = 1.3
"""Times the original's latency: what is slower is not scored, however short it was timed."""


class Kept:
    """Rows, a file each: there whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.rows = {
            path.stem: codec.decode(Row, json.loads(path.read_text("utf-8")))
            for path in folder.glob("*.json")
        }

    def put(self, row: Row) -> None:
        """Keep a row in place of a former one."""
        write_text(self._folder / f"{row.key}.json", json.dumps(codec.encode(row)))
        self.rows[row.key] = row

    @property
    def built(self) -> set[str]:
        """Steps whose build a row has timed."""
        return {cut.steps for row in self.rows.values() for cut in row.cuts}


@dataclass
class Attempt:
    """What is known of a plan while it is tried."""

    died: str = "build"
    began: float = field(default_factory=time.perf_counter)
    known: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Since the present phase began."""
        return time.perf_counter() - self.began

    def starts(self, worker: Worker) -> StartupTimes:
        """Load and run once."""
        with self.phase("load"):
            started = wait_until_ready(worker)
        load_s, first_s = started.load_ns / 1e9, started.first_ns / 1e9
        start_s = max(0.0, self.known["load_s"] - load_s - first_s)
        self.known |= {"start_s": start_s, "load_s": load_s, "first_s": first_s}
        self.known["peak_rss"] = started.peak_rss
        return started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; what fails in it says where."""
        self.died, self.began = name, time.perf_counter()
        yield
        self.known[f"{name}_s"] = self.seconds


class Recording(Attempts):
    """The search's attempts, in which every phase is timed and whatever may win is scored."""

    def __init__(
        self, context: Context, pair_seconds: float, sink: Sink, stack: ExitStack, kept: Kept
    ) -> None:
        super().__init__(context, pair_seconds, sink, stack)
        self.kept = kept

    def original(self) -> None:
        """Record the original, as every search begins, and what scoring takes.

        Whoever asks for it has the machine to itself.
        """
        plan, context = Plan(AS_IS, self.context.job.baseline), self.context
        if self.trial_key(plan) in self.kept.rows:
            return
        effort, tried = replace(self._effort(), max_blocks=12), Attempt()
        self.measure_baseline()
        trial, live = self.ledger.trials[0], self._ensure_baseline()
        with measure.start_worker(context, context.models, plan.backend, "again") as worker:
            tried.starts(worker)
            pair, took = timed(live, worker, effort, math.inf)
            self._scored(plan, worker, trial, tried, pair, whole=True)
        known = tried.known | took | {"scores": trial.scores, "final": trial.scores}
        turns = tuple(Turn.of(block) for block in pair.blocks)
        row = Row(trial.key, trial.plan, "baseline", trial.status, size=trial.size)
        del known["trial"]
        self.kept.put(replace(row, pairs=(turns,), **known))

    def try_plan(
        self,
        proposal: Proposal,
        *,
        always_score: bool = False,
        stop: Stop | None = None,
        build_s: float = math.inf,
    ) -> Trial:
        """Return the trial of a plan, with a row of what it cost; nothing else runs meanwhile."""
        self._began = time.perf_counter()
        key = self.trial_key(proposal.plan)
        known = self.ledger.find(key, "search")
        if known is not None and key in self.kept.rows:
            return known
        with to_itself():
            row, trial = self._measured(key, proposal)
        self.kept.put(row)
        return self._record_trial(trial, proposal)

    def again(self, row: Row) -> None:
        """Time a row's plan in one more fresh pair, and score it on all samples.

        One pair of processes proves little.
        """
        with to_itself():
            self.end_baseline()
            files = build_all(self.context, row.plan, self.sink)
            context, backend = self.context, row.plan.backend
            models, base = context.models, context.job.baseline
            fresh = fresh_pairs(
                lambda: measure.start_worker(context, models, base, "baseline"),
                lambda: measure.start_worker(context, files.paths, backend, "again"),
                1,
                replace(self._effort(), max_blocks=20),
            )
            taken: tuple[Turn, ...] = ()
            final = row.final
            with closing(fresh), suppress(WorkerFailed):
                one = next(fresh)
                taken = tuple(Turn.of(block) for block in one.pair.blocks)
                final = final or score_plan(
                    context, one.candidate, row.plan, *context.evaluation_parts()
                )
        self.kept.put(replace(row, pairs=(*row.pairs, taken), final=final))

    def _effort(self) -> Effort:
        """Of a plan: as long as a search of three minutes times it, in shorter bursts."""
        return Effort(seconds=self.pair_seconds, decide=False, burst=RECORDED_BURST_S)

    def _best(self) -> float:
        """Return the ratio of the fastest plan so far that keeps the budget."""
        known = [r.truth for r in self.kept.rows.values() if r.passes and r.truth is not None]
        return min([1.0, *known])

    def _measured(self, key: str, proposal: Proposal) -> tuple[Row, Trial]:
        plan, cuts = proposal.plan, list[Cut]()
        blank = Trial(key, plan, "search", Status.FAILED, stage=proposal.stage)
        row = Row(key, plan, proposal.stage, Status.FAILED, neighbour_of=proposal.neighbour_of)
        live, tried = self._ensure_baseline(), Attempt()
        try:
            files = self._build_in_parts(plan, cuts)
        except OrtuneError as error:
            died = replace(blank, why=error.what, error=error.what)
            return replace(row, cuts=tuple(cuts), why=error.what, died="build"), died
        row = replace(row, cuts=tuple(cuts), size=files.size, edits=_brief(files.edits))
        blank = replace(blank, size=files.size, edits=files.edits, artefact=files.artefact)
        if plan.recipe.steps and not files.changed:
            trial = replace(blank, status=Status.UNCHANGED, why="nothing to change")
            return replace(row, status=trial.status, why=trial.why), trial
        why = ""
        try:
            blank = self._run(proposal, files, live, blank, tried)
        except WorkerFailed as error:
            if error.worker is live:
                raise
            why = error.failure.reason
        except OrtuneError as error:
            why = error.what
        blank = tried.known.pop("trial", blank)
        if why:
            late: dict[str, Any] = {
                "died": tried.died,
                "died_s": time.perf_counter() - tried.began,
            }
            return replace(row, **tried.known, **late, why=why), replace(blank, why=why, error=why)
        trial = measure.judge_trial(self.context, blank, stats.NOTHING)
        return replace(row, **tried.known, status=trial.status, why=trial.why), trial

    def _run(
        self, proposal: Proposal, files: Files, live: Worker, blank: Trial, tried: Attempt
    ) -> Trial:
        """Load, time and score; `tried` knows all that went well."""
        context, known = self.context, tried.known
        with measure.start_worker(context, files.paths, proposal.plan.backend, "search") as worker:
            started = tried.starts(worker)
            with tried.phase("timing"):
                pair, took = timed(live, worker, self._effort(), self._best())
            del known["timing_s"]
            known |= took
            known["pairs"] = (tuple(Turn.of(block) for block in pair.blocks),)
            blank = replace(blank, measurement=measure.make_measurement(started, [pair]))
            ratio = stats.latency_ratio([pair], stats.SEARCHING)
            if ratio.low >= measure.HOPELESS or ratio.value >= SCORED:
                return blank
            around = self.kept.rows.get(proposal.neighbour_of)
            if around is not None and behind([pair], self._best(), len(pair.blocks)):
                known |= {"scores": around.scores, "search_s": around.search_s}
                return replace(blank, scores=around.scores)
            # Settings seldom change an answer: of these the fastest alone are scored on all.
            whole = around is None or bool(context.evaluate)
            return self._scored(proposal.plan, worker, blank, tried, pair, whole=whole)

    def _scored(
        self,
        plan: Plan,
        worker: Worker,
        blank: Trial,
        tried: Attempt,
        pair: Pair,
        *,
        whole: bool,
    ) -> Trial:
        """Score on the search's part, then on all samples: what was scored is not run again."""
        context, known, once = self.context, tried.known, Once(worker)
        run_ns = max(pair.blocks[-1].candidate.latency_ns)
        with tried.phase("search"):
            scores = score_plan(context, once, plan, context.parts["search"], run_ns=run_ns)
        known["scores"] = scores
        blank = replace(blank, scores=scores)
        known["trial"] = measure.judge_trial(context, blank, stats.NOTHING)
        if not whole:
            return blank
        with tried.phase("final"):
            known["final"] = score_plan(
                context, once, plan, *context.evaluation_parts(), run_ns=run_ns
            )
        known["final_s"] += known["search_s"]
        return blank

    def _build_in_parts(self, plan: Plan, cuts: list[Cut]) -> Files:
        """Build a plan part by part, and note what each part took that no row has timed yet."""
        steps, known = plan.recipe.steps, self.kept.built
        for until in cuts_of(steps):
            part, began = steps[:until], time.perf_counter()
            if spelled(part) in known:
                continue
            self._forget(part)
            asked: dict[str, float] = {}
            ranges: list[str] = []
            error = ""
            try:
                with calibrations(asked, ranges):
                    build_all(self.context, Plan(Recipe("part", part), plan.backend), self.sink)
            except OrtuneError as failed:
                error = failed.what
                raise
            finally:
                once = sum(set(asked.values()))
                seconds = max(0.0, time.perf_counter() - began - once)
                unique = tuple(dict.fromkeys(ranges))
                cuts.append(Cut(spelled(part), seconds, unique, asked, error))
        return build_all(self.context, plan, self.sink)

    def _forget(self, steps: Sequence[Step]) -> None:
        """Remove a build that a stopped recording made and did not keep the seconds of."""
        for material in self.context.materials.values():
            folder = (
                self.context.root / "artefacts" / steps_key(steps, material.compute_key(steps))
            )
            shutil.rmtree(folder, ignore_errors=True)


def _brief(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    return tuple(replace(edit, note=edit.note[:80]) for edit in edits)
