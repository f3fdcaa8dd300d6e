"""Scores of any file by ortune's own metrics, OpenVINO's own format among them.

`ortune verify` does the same, and reads both models as ONNX first: of OpenVINO's format it would
read nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.peers.making import last_line
from benchmarks.speed.contestants import Contestant
from benchmarks.speed.fresh import Kept
from ortune.backends.cpu import Cpu
from ortune.core.budget import Budget
from ortune.core.errors import OrtuneError
from ortune.core.event import ignore_event
from ortune.core.step import Recipe
from ortune.core.trial import Plan, Score, Verdict
from ortune.measurement.job import MAIN
from ortune.measurement.process import translate_failures
from ortune.measurement.timing.turns import wait_until_ready
from ortune.search.experiment import measure
from ortune.search.experiment.context import Context
from ortune.search.experiment.experiment import Experiment
from ortune.search.experiment.prepare import prepare_context
from ortune.search.experiment.scores import score_plan

RUN_NS = 1_000_000_000
"""What a run may take, for the deadline of scoring."""

Row = dict[str, Any]


class Scores:
    """Scores of one model's files, kept by what they hang on; the original runs once."""

    def __init__(self, model: Path, data: Path, budgets: tuple[str, ...], kept: Kept) -> None:
        self._model, self._data, self._kept = model, data, kept
        self._budgets = tuple(dict.fromkeys(budgets))

    def of(self, entries: list[Contestant]) -> list[Row]:
        """Return a row an entry: its error, its scores, the budgets that it does not fail."""
        known = {row["key"]: row for row in self._kept.rows()}
        missing = [one for one in entries if not one.error and self._key(one) not in known]
        if missing:
            for budget in self._budgets:
                self._add(missing, budget)
            known = {row["key"]: row for row in self._kept.rows()}
        return [known.get(self._key(one), _unscored(one.error)) for one in entries]

    def _add(self, missing: list[Contestant], budget: str) -> None:
        known = {row["key"]: row for row in self._kept.rows()}
        with self._context(budget) as context:
            for one in missing:
                row = known.get(self._key(one), _unscored("")) | {"key": self._key(one)}
                try:
                    found = _scored(context, one)
                    row["scores"] = row["scores"] | {each.metric: each.value for each in found}
                    fails = found[0].verdict is Verdict.FAILS
                    row["holds"] = row["holds"] + [budget] * (not fails)
                except OrtuneError as error:
                    row["error"] = last_line(error.what)
                self._kept.add(row)
                print(f"{one.name}: {row['error'] or row['scores']}", flush=True)

    @contextmanager
    def _context(self, budget: str) -> Iterator[Context]:
        experiment = Experiment(
            models={MAIN: self._model},
            data=self._data,
            budget=Budget.parse(budget),
            baseline=Cpu(),
            time=3600.0,
        )
        with TemporaryDirectory(prefix="ortune-") as folder:
            yield prepare_context(experiment, Path(folder), ignore_event, finalists=0)

    def _key(self, one: Contestant) -> str:
        """What a score hangs on: budgets, the entry, and when its file was made."""
        changed = one.model.stat().st_mtime_ns if one.model.is_file() else 0
        return f"{', '.join(self._budgets)}: {one.name} @ {one.backend} {changed}"


def _scored(context: Context, one: Contestant) -> tuple[Score, ...]:
    """Run a file over the samples; some of the peers' take ten times as long as the original.

    Raises:
        OrtuneError: It does not run.
    """
    paths, part = dict.fromkeys(context.models, one.model), context.parts["search"]
    plan = Plan(Recipe(one.name, ()), one.backend)
    with (
        translate_failures(f"{one.model} does not run on {one.backend}"),
        measure.start_worker(context, paths, one.backend, "peer", ignore_event) as worker,
    ):
        wait_until_ready(worker)
        return score_plan(context, worker, plan, part, run_ns=RUN_NS)


def _unscored(error: str) -> Row:
    return {"error": error, "scores": {}, "holds": []}
