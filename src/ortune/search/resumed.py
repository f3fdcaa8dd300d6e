"""A run that is to go on: it holds nothing but what was asked for this time, and is as far.

A run's folder may come from elsewhere, and a search that goes on runs plans of its ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, takewhile
from pathlib import Path

from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.errors import BadData
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec, stored
from ortune.core.trial import Trial
from ortune.core.wording import count
from ortune.experiment.ledger import read_header, read_trials
from ortune.search.request import Optimize


def closing(trials: Sequence[Trial]) -> list[Trial]:
    """Return the finals and the history at the end of a ledger: a search that had come so far.

    Where it goes on, what these taught must not make it search anew.
    """
    ends = takewhile(lambda one: one.part == "final" or one.stage == "history", reversed(trials))
    return list(ends)


def demand(root: Path, asked: Optimize, targets: Sequence[Backend]) -> None:
    """Refuse a run whose plans name code or threads that nobody has asked for now.

    Args:
        root: The run's folder; one that holds no run yet passes.
        targets: The backends in it, the baseline's among them.

    Raises:
        BadData: The run holds more.
    """
    header = read_header(root)
    if header is None:
        return
    folders = (root, *(path.parent for path in root.glob("batches/*/ledger.jsonl")))
    plans = [trial.plan for trial in chain.from_iterable(map(read_trials, folders))]
    given = {*stored.code(codec.encode(targets)), asked.evaluate}
    if asked.budget is not None:
        given.update(stored.code(codec.encode(Budget.parse(asked.budget))))
    named = stored.code(codec.encode([header.job, plans]))
    if strange := [name for name in named if name not in given]:
        raise BadData(
            f"the run in {root} names code that was not asked for: '{strange[0]}'",
            fix="do not trust this run, or name that code as when the search began",
        )
    most = max((effective_cpus(), *(stored.threads(backend) for backend in targets)))
    above = max((stored.threads(plan.backend) for plan in plans), default=0)
    if above > most:
        raise BadData(
            f"the run in {root} has a plan of {count(above, 'thread')}, and there are "
            f"{count(effective_cpus(), 'CPU')} here",
            fix="do not trust this run; search again into another -o folder",
        )
