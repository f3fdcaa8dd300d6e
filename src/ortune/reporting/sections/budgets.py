"""What each step of a budget buys: the plan that would be handed out for it."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.judgement import judge_steps
from ortune.core.section import Block, Heading, Section, Table, Text
from ortune.core.study import Study


@dataclass(frozen=True)
class BudgetsSection(Section):
    """A row for each step of the budget, and how to take another's plan."""

    order: ClassVar[int] = 4
    terminal: ClassVar[bool] = True

    def blocks(self, study: Study) -> Iterable[Block]:
        steps = judge_steps(study)
        if len(steps) < 2:
            return
        yield Heading("Limits of the budget")
        metric = say.shorten_metric(str(study.budget.metric))
        yield Table(
            ("budget", "plan", "speed-up", "99 % interval", metric, "accuracy", "MB", "key"),
            tuple(_make_row(step) for step in steps),
            tuple("win" if step is study else "" for step in steps),
        )
        plans = [step.best for step in steps if step.best.key != study.best.key]
        if plans:
            yield Text(
                "The result is the plan for the first limit. To pack the plan for the loosest:"
            )
            root = shlex.quote(study.root)
            yield Text(f"ortune pack {root} -o model.ortune --plan {plans[-1].key[:8]}", "code")


def _make_row(study: Study) -> tuple[str, ...]:
    best, speed = study.best, study.speedup(study.best)
    stays = best.key == study.baseline.key
    return (
        say.shorten_groups(str(study.budget)),
        "the original stays" if stays else study.label(best.plan),
        say.format_speedup(speed),
        say.NONE if stays else say.format_span(speed),
        say.format_score_value(best.score.value if best.score else None),
        "" if stays else say.describe_verdict(best),
        say.format_megabytes(best.size),
        best.key[:8],
    )
