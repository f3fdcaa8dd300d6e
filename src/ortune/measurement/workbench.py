"""The live state of a worker: sessions and feeds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.core.backend import Session, Tensors
from ortune.core.errors import BadData
from ortune.data import stream
from ortune.measurement.job import MAIN, WorkerJob

_ROUNDS = 32
_ROUND_BYTES = 256 * 2**20

Round: TypeAlias = list[tuple[Session, Tensors]]
"""Calls that are timed as one."""


class Workbench:
    """What the tasks of a worker act on: opened sessions and streams of samples."""

    def __init__(self, job: WorkerJob, stack: ExitStack) -> None:
        self.job = job
        self._stack = stack
        self.sessions: dict[str, Session] = {}
        self.feeds = {name: stream.Stream(path) for name, path in job.feeds.items()}
        self._rounds: list[Round] = []

    def open(self) -> None:
        """Open every model once."""
        for name, path in self.job.models.items():
            if name not in self.sessions:
                opened = self.job.backend.open(path, verbose=self.job.verbose)
                self.sessions[name] = self._stack.enter_context(opened)

    def any(self) -> Session:
        """Return the first session: its clock times all."""
        return next(iter(self.sessions.values()))

    def sample(self, index: int, name: str = MAIN) -> dict[str, NDArray[Any]]:
        """Return one sample, as one run takes it."""
        return self.feeds[name][index]

    def rounds(self, limit: int) -> list[Round]:
        """Return what timing cycles through, spread over the feeds.

        A round is one call of the only model. Of several models it holds calls of each, as many
        as its share of the recorded calls, so that a round's time stands for the whole job's.
        """
        fewest = min(len(feeds) for feeds in self.feeds.values())
        size = sum(
            array.nbytes * len(feeds) // fewest
            for feeds in self.feeds.values()
            for array in feeds[0].values()
        )
        count = max(1, min(limit, fewest, _ROUND_BYTES // max(1, size)))
        return [
            [
                (self.sessions[name], self._stacked(name, start + k))
                for name, feeds in self.feeds.items()
                for start in [turn * len(feeds) // count]
                for k in range(len(feeds) // fewest)
            ]
            for turn in range(count)
        ]

    def round(self, position: int) -> Round:
        """Return the round at a position of the endless timing cycle."""
        if not self._rounds:
            self._rounds = self.rounds(limit=_ROUNDS)
        return self._rounds[position % len(self._rounds)]

    def _stacked(self, name: str, index: int) -> Tensors:
        feeds = self.feeds[name]
        if self.job.batch <= 1:
            return {key: np.array(value) for key, value in feeds[index].items()}
        rows = [feeds[(index + k) % len(feeds)] for k in range(self.job.batch)]
        return stack(rows)


def stack(rows: Sequence[Tensors]) -> dict[str, NDArray[Any]]:
    """Concatenate samples along their first dimension; 0-d tensors are taken once."""
    made = {}
    for name, first in rows[0].items():
        if first.ndim == 0:
            made[name] = np.array(first)
            continue
        if any(row[name].shape[1:] != first.shape[1:] for row in rows):
            raise BadData(
                f"samples of input '{name}' differ in shape and cannot be batched",
                fix="pad the samples to one shape, or leave --batch out",
            )
        made[name] = np.concatenate([row[name] for row in rows])
    return made
