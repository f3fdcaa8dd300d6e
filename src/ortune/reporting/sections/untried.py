"""Plans that the search left out, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core.acceptance import Outcome
from ortune.core.section import Block, Heading, Section, Table, Text
from ortune.core.study import Study
from ortune.core.wording import format_count


@dataclass(frozen=True)
class UntriedSection(Section):
    """Every plan that was not tried, with its reason."""

    order: ClassVar[int] = 35

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield a row a plan, and how many more there are."""
        untried_plans = study.ending.left_out
        if not untried_plans:
            return
        yield Heading("Not tried", folded=True)
        yield Table(
            ("plan", "why not"), tuple((untried.plan, untried.why) for untried in untried_plans)
        )
        more = study.counts[Outcome.UNTRIED] - len(untried_plans)
        if more > 0:
            yield Text(f"And {format_count(more, 'plan')} more.")
