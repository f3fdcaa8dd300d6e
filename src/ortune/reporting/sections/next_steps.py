"""What to do now, with commands to copy, and why the answer is not surer."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.fields import Duration
from ortune.core.judgement import judge_steps
from ortune.core.near_miss import find_near_miss
from ortune.core.section import Block, Heading, Section, Text
from ortune.core.settings import REPEAT
from ortune.core.study import AT_WORK, Study
from ortune.core.trial import UntriedPlan, Verdict
from ortune.reporting.sections.common.plans import list_doubts

_LIKELY = 0.5
"""Chance within the budget from which an untried plan is worth naming."""
_MOST = 3


@dataclass(frozen=True)
class NextStepsSection(Section):
    """Commands that use the answer or make it surer."""

    order: ClassVar[int] = 3
    columns: ClassVar[int] = 5

    def blocks(self, study: Study) -> Iterable[Block]:
        commands = [] if study.finished == AT_WORK else list_commands(study)
        if commands:
            yield Heading("What to do now")
        for about, command in commands:
            yield Text(about)
            yield Text(command, "code")
        doubts = [study.header.doubt] * bool(study.header.doubt) + list_doubts(study, study.best)
        doubts += [
            f"{line[:1].upper()}{line[1:]}."
            for line in study.advice
            if not any(line in doubt for doubt in doubts)
        ]
        if doubts:
            yield Heading("Why the result is not more certain")
            yield from (Text(line, "warn") for line in dict.fromkeys(doubts[:_MOST]))


def list_commands(study: Study) -> list[tuple[str, str]]:
    """Return what each command is for, and the command; the most useful first."""
    explain = f"ortune explain {shlex.quote(study.root)}"
    return [*_propose_commands(study)] or [("See why no other plan won:", explain)]


def _propose_commands(study: Study) -> Iterator[tuple[str, str]]:
    root, best = shlex.quote(study.root), study.best
    settings = shlex.quote(str(Path(study.root) / REPEAT))
    if best.key != study.baseline.key:
        yield "Use it:", f"ortune pack {root} -o model.ortune && ortune serve model.ortune"
    longer = Duration("60s").spell(2 * max(60.0, study.header.seconds))
    on = f"ortune optimize {settings} --time {longer}"
    if study.unconfirmed:
        yield "Re-measure the plans that looked faster:", on
    elif (plan := _select_untried(study)) is not None and plan.speedup is not None:
        label = plan.label or plan.plan
        yield f"Continue the search: {label} is expected at about {plan.speedup.value:.2g}x:", on
    elif study.finished in ("time", "interrupted"):
        yield "Continue the search:", on
    loosest = judge_steps(study)[-1]
    missed = find_near_miss(loosest.trials, loosest.best, study.job.budget, study.baseline.plan)
    if missed is not None:
        looser = shlex.quote(str(missed.looser))
        yield (
            f"Allow a larger loss: {missed.text}:",
            f"ortune optimize {settings} --budget {looser} -o another-run",
        )
    judged = study.undecided[0] if study.undecided else best
    score = judged.score
    if score and score.verdict in (Verdict.LIKELY, Verdict.UNDECIDED):
        needed = say.describe_needed(score)
        aim = "Prove" if score.verdict is Verdict.LIKELY else "Decide"
        yield (
            f"{aim} the accuracy: {needed}:",
            f"ortune optimize {settings} --data MORE_SAMPLES/ -o another-run",
        )
    if study.advice or study.ending.too_noisy:
        yield "See what disturbs this machine:", "ortune doctor"


def _select_untried(study: Study) -> UntriedPlan | None:
    """Return the plan that is expected to be fastest, if it may keep the budget and be ahead."""
    ahead = study.speedup(study.best).value
    hopeful = [
        plan
        for plan in study.ending.left_out
        if plan.speedup and plan.speedup.value > ahead and (plan.chance or 0.0) >= _LIKELY
    ]
    return max(hopeful, key=lambda plan: plan.speedup.value if plan.speedup else 0.0, default=None)
