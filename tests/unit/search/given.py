"""A policy that proposes the plans of a test, and what searches with it are asked."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from tests.unit.search.experiment.scripted import LOSSY

from ortune.backends.cpu import Cpu
from ortune.core.event import Event
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Recipe, Transform
from ortune.core.study import Study
from ortune.core.trial import Plan, Proposal
from ortune.search.policy import LeftOut, View

MORE = "three more plans are there"
PLANS = [replace(LOSSY, backend=Cpu(threads=n)) for n in range(1, 6)]
EXACT = Recipe("graph", (parse_plugin(Transform, "simplify"),))
told: list[Event] = []
"""Events of the last search."""


@dataclass(frozen=True)
class Given:
    """Proposes the plans of a test."""

    plans: tuple[Plan, ...] = ()

    def next(self, view: View) -> Proposal | None:
        left = [plan for plan in self.plans if not view.has_trial(plan)]
        return Proposal(left[0], "test", "given") if left else None

    def explain_untried(self, view: View) -> LeftOut:
        return LeftOut(notes=(MORE,), plans=3)


class Clock:
    """A clock that a test turns."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def turn(self, seconds: float) -> None:
        self.now += seconds


def backends(study: Study, part: str) -> list[int]:
    return [
        t.plan.backend.threads for t in study.trials[1:] if t.part == part and t.stage != "history"
    ]


def ratios(*values: float) -> dict[Any, float]:
    return {plan.backend: value for plan, value in zip(PLANS, values, strict=False)}


def seeing(seen: list[Any], what: Callable[[View], Any] = attrgetter("remaining_s")) -> Any:
    """Return a policy that proposes nothing and tells of its views the time that is left."""

    @dataclass(frozen=True)
    class Seeing(Given):
        def next(self, view: View) -> Proposal | None:
            seen.append(what(view))
            return None

    return Seeing
