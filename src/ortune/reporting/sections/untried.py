"""Plans that the search left out, and why."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core.acceptance import Outcome
from ortune.core.section import Block, Heading, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import UntriedPlan
from ortune.core.wording import NONE, format_count

EXPECTED = ("expected speed-up", "chance within budget", "cost")
"""Heads of the columns of `format_expectation`."""


def format_expectation(untried: UntriedPlan) -> tuple[str, str, str]:
    """Write what was expected of a plan: ``4.0x (1.9-8.3)``, ``42 %`` and ``18 s``."""
    speed, chance, cost_s = untried.speedup, untried.chance, untried.seconds
    return (
        NONE if speed is None else f"{speed.value:.2g}x ({speed.low:.2g}-{speed.high:.2g})",
        NONE if chance is None else f"{100 * chance:.0f} %",
        NONE if cost_s is None else f"{cost_s:.0f} s",
    )


@dataclass(frozen=True)
class UntriedSection(Section):
    """Every plan that was not tried, with its reason."""

    order: ClassVar[int] = 35

    def blocks(self, study: Study) -> Iterable[Block]:
        untried_plans = study.ending.left_out
        if not untried_plans:
            return
        yield Heading("Not tried", folded=True)
        rows = ((p.label or p.plan, *format_expectation(p), p.why) for p in untried_plans)
        yield Table(("plan", *EXPECTED, "why not"), tuple(rows))
        more = study.counts[Outcome.UNTRIED] - len(untried_plans)
        if more > 0:
            yield Text(f"And {format_count(more, 'plan')} more.")
