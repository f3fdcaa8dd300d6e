"""One plan after another at full effort, each with what it cost, kept as it is found."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnx_ir as ir

from benchmarks.neighbour import to_itself
from benchmarks.search.table import Cut, Row, Turn, cuts_of, spelled
from ortune.calibration.cache import RangeCache
from ortune.calibration.calibrate import calibrate
from ortune.core.atomic_write import write_text
from ortune.core.errors import OrtuneError
from ortune.core.event import Sink
from ortune.core.observer import Probe
from ortune.core.plugins import codec
from ortune.core.step import AS_IS, Edit, Recipe, Step
from ortune.core.trial import Plan, Proposal, Status, Trial
from ortune.experiment import measure
from ortune.experiment.build import Files, build_all
from ortune.experiment.context import Context
from ortune.experiment.evaluate import Attempts, effort
from ortune.experiment.scores import score
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing import stats
from ortune.measurement.timing.pairs import (
    BaselineFailed,
    Stop,
    claiming,
    fresh_pairs,
    time_pair,
)
from ortune.measurement.timing.turns import ready
from ortune.recipe import editing
from ortune.recipe.built import steps_key


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

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; what fails in it says where."""
        self.died, self.began = name, time.perf_counter()
        yield
        self.known[f"{name}_s"] = time.perf_counter() - self.began


class Recording(Attempts):
    """The search's attempts, in which every phase is timed and whatever runs is scored twice."""

    def __init__(
        self, context: Context, pair_seconds: float, sink: Sink, stack: ExitStack, kept: Kept
    ) -> None:
        super().__init__(context, pair_seconds, sink, stack)
        self.kept = kept

    def original(self) -> None:
        """Record the original, as every search begins."""
        plan = Plan(AS_IS, self.context.job.baseline)
        if self.key(plan) in self.kept.rows:
            return
        with to_itself():
            began = time.perf_counter()
            self.baseline()
            seconds = time.perf_counter() - began
        trial = self.ledger.trials[0]
        taken = trial.measurement
        assert taken is not None
        row = Row(trial.key, trial.plan, "baseline", trial.status, size=trial.size)
        load_s, first_s = taken.load_ns / 1e9, taken.first_ns / 1e9
        turns = tuple(Turn.of(block) for block in taken.pairs[0].blocks)
        found = replace(row, pairs=(turns,), scores=trial.scores, final=trial.scores)
        timed = replace(found, load_s=load_s, first_s=first_s, peak_rss=taken.peak_rss)
        block_s = sum(block.seconds for block in taken.pairs[0].blocks) / len(turns)
        # What is left is the start of the other process, and the warming up of both.
        warm_s = max(0.0, seconds - 2 * (load_s + first_s) - block_s * len(turns))
        self.kept.put(replace(timed, warm_s=warm_s, block_s=block_s))

    def one(
        self, proposal: Proposal, *, always_score: bool = False, stop: Stop | None = None
    ) -> Trial:
        """Return the trial of a plan, with a row of what it cost; nothing else runs meanwhile."""
        self._began = time.perf_counter()
        key = self.key(proposal.plan)
        known = self.ledger.find(key, "search")
        if known is not None and key in self.kept.rows:
            return known
        with to_itself():
            row, trial = self._measured(key, proposal)
        self.kept.put(row)
        return self._recorded(trial, proposal)

    def again(self, row: Row, pairs: int) -> None:
        """Time a row's plan in fresh pairs too: one pair of processes proves little."""
        with to_itself():
            self._rest()
            files = build_all(self.context, row.plan, self.sink)
            context, backend = self.context, row.plan.backend
            models, base = context.models, context.job.baseline
            taken = [
                tuple(Turn.of(block) for block in one.pair.blocks)
                for one in fresh_pairs(
                    lambda: measure.start(context, models, base, "baseline"),
                    lambda: measure.start(context, files.paths, backend, "again"),
                    pairs,
                    claiming(self.pair_seconds),
                )
            ]
        self.kept.put(replace(row, pairs=(*row.pairs, *taken)))

    def _measured(self, key: str, proposal: Proposal) -> tuple[Row, Trial]:
        plan, cuts = proposal.plan, list[Cut]()
        blank = Trial(key, plan, "search", Status.FAILED, stage=proposal.stage)
        row = Row(key, plan, proposal.stage, Status.FAILED, neighbour_of=proposal.neighbour_of)
        live, tried = self._live(), Attempt()
        try:
            files = self._built(plan, cuts)
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
        except BaselineFailed:
            raise
        except WorkerFailed as error:
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
        trial = measure.concluded(self.context, blank, stats.NOTHING)
        return replace(row, **tried.known, status=trial.status, why=trial.why), trial

    def _run(
        self, proposal: Proposal, files: Files, live: Any, blank: Trial, tried: Attempt
    ) -> Trial:
        """Load, time and score; `tried` knows all that went well."""
        context, known = self.context, tried.known
        with measure.start(context, files.paths, proposal.plan.backend, "search") as worker:
            with tried.phase("load"):
                started = ready(worker)
            known["load_s"] -= started.first_ns / 1e9
            known |= {"first_s": started.first_ns / 1e9, "peak_rss": started.peak_rss}
            seen: list[float] = []
            with tried.phase("timing"):
                began = time.perf_counter()
                pair = time_pair(
                    live,
                    worker,
                    effort(proposal, self.pair_seconds),
                    lambda ratio, done: seen.append(time.perf_counter() - began),
                )
            known |= _turns(known.pop("timing_s"), seen, len(pair.blocks))
            known["pairs"] = (tuple(Turn.of(block) for block in pair.blocks),)
            blank = replace(blank, measurement=measure.measurement(started, [pair]))
            with tried.phase("search"):
                scores = score(context, worker, proposal.plan, context.parts["search"])
            known["scores"] = scores
            blank = replace(blank, scores=scores)
            known["trial"] = measure.concluded(context, blank, stats.NOTHING)
            parts = context.evaluation()
            with tried.phase("final"):
                known["final"] = scores
                if len(parts) > 1:
                    known["final"] = score(context, worker, proposal.plan, *parts)
        return blank

    def _built(self, plan: Plan, cuts: list[Cut]) -> Files:
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
                cuts.append(Cut(spelled(part), seconds, tuple(ranges), asked, error))
        return build_all(self.context, plan, self.sink)

    def _forget(self, steps: Sequence[Step]) -> None:
        """Remove a build that a stopped recording made and did not keep the seconds of."""
        for material in self.context.materials.values():
            folder = self.context.root / "artefacts" / steps_key(steps, material.key)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def calibrations(asked: dict[str, float], ranges: list[str]) -> Iterator[None]:
    """Note the seconds of every pass over the samples, and what it was asked.

    Args:
        asked: Gets what was not known -> seconds of the pass that found it out.
        ranges: Gets all that was asked.
    """
    real = calibrate

    def noting(
        model: ir.Model,
        probes: Sequence[Probe],
        stream: Path,
        indices: Sequence[int],
        folder: Path,
        **others: Any,
    ) -> Any:
        missing = RangeCache(folder, [list(indices)]).missing(probes)
        began = time.perf_counter()
        found = real(model, probes, stream, indices, folder, **others)
        seconds = time.perf_counter() - began
        ranges.extend(dict.fromkeys(f"{folder.name} {probe.observer}" for probe in probes))
        asked.update({f"{folder.name} {probe.observer}": seconds for probe in missing})
        return found

    with patch.object(editing, "calibrate", noting):
        yield


def _turns(seconds: float, seen: Sequence[float], blocks: int) -> dict[str, float]:
    """Return what a turn took, seen from the third on, and what came before the first."""
    each = (seen[-1] - seen[0]) / (len(seen) - 1) if len(seen) > 1 else seconds / (blocks + 1)
    return {"block_s": each, "warm_s": max(0.0, seconds - blocks * each)}


def _brief(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    return tuple(replace(edit, note=edit.note[:80]) for edit in edits)
