"""A lane: one session of every model, and the time that one thread sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from ortune.core.session import Session, Tensors

_NEAR_NS = 150_000
"""A sleep ends this much too late at times: the rest of a wait is spent yielding."""

Round: TypeAlias = list[tuple[str, Tensors]]
"""Calls that are timed as one: names of models and what they are fed."""


class SessionLane:
    """What a workload drives: see `ortune.core.workload.Lane`."""

    def __init__(self, sessions: Mapping[str, Session], round_at: Callable[[int], Round]) -> None:
        self._sessions = sessions
        self._round_at = round_at
        self._first = next(iter(sessions.values()))
        self._skipped = 0

    def calls(self, position: int) -> list[tuple[Session, Tensors]]:
        """Return the calls of a round on this lane's sessions."""
        return [(self._sessions[name], feeds) for name, feeds in self._round_at(position)]

    def clock(self) -> int:
        return self._first.clock() + self._skipped

    def until(self, moment: int) -> None:
        """Wait until the clock shows a moment; a scripted one, which stands still, is moved on."""
        before = self._first.clock()
        left = moment - self.clock()
        if left <= 0:
            return
        time.sleep(max(0, left - _NEAR_NS) / 1e9)
        if self._first.clock() == before:
            self._skipped += left
        while self.clock() < moment:
            time.sleep(0)

    def waited(self) -> int:
        return self._first.waited()
