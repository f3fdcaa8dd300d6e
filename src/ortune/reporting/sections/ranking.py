"""Every plan: how fast, how good, and why it lost."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.acceptance import LOST, Outcome, classify_outcome, compare_latency
from ortune.core.section import Block, Heading, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import Trial

_ORDER = (
    *(Outcome.FASTER, Outcome.ROUGH, Outcome.LEVEL, Outcome.DISTURBED, Outcome.EMULATED),
    *(Outcome.UNSCORED, Outcome.FAILS, Outcome.SLOWER, Outcome.TOO_LARGE, Outcome.FAILED),
    *(Outcome.CUT_SHORT, Outcome.UNTRIED),
)

_MEASURED = (Outcome.FASTER, Outcome.LEVEL, Outcome.ROUGH, Outcome.UNSCORED)


@dataclass(frozen=True)
class RankingSection(Section):
    """The finalists first, then what the search left behind."""

    order: ClassVar[int] = 30
    terminal: ClassVar[bool] = True

    def blocks(self, study: Study) -> Iterable[Block]:
        ranked = rank_trials(study)
        yield Heading("Every plan", folded=True)
        metric = say.shorten_metric(str(study.budget.metric))
        yield Table(
            ("plan", "speed-up", "99 % interval", metric, "MB", "accuracy", "why"),
            tuple(_make_row(study, trial) for trial in ranked),
            tuple(_select_tone(study, trial) for trial in ranked),
        )
        scored = {t.score.samples for t in study.final if t.score}
        if scored and scored != {study.samples.get("search", 0)}:
            yield Text(
                f"Scores: the original's -> the plan's on the same samples: of finalists all "
                f"{say.format_count(max(scored), 'sample')}, of others the "
                f"{study.samples.get('search', 0):,} of the search."
            )
        for trial in ranked:
            if trial.error and trial.reproduce:
                ended = "was cut short" if trial.interruption else "failed"
                yield Text(f"{study.label(trial.plan)} {ended}; to repeat it:")
                yield Text(trial.reproduce, "code")


def rank_trials(study: Study) -> list[Trial]:
    """Return one trial a plan: the winner, the other finalists, then what was left behind."""
    return sorted(say.list_latest_trials(study), key=lambda trial: _rank_key(study, trial))


def _rank_key(study: Study, trial: Trial) -> tuple[bool, int, float]:
    ratio = trial.ratio.value if trial.ratio else math.inf
    winner = trial.key == study.best.key
    final = winner or trial.part == "final"
    return (not final, -1 if winner else _ORDER.index(classify_outcome(trial)), ratio)


def _select_tone(study: Study, trial: Trial) -> str:
    if trial.key == study.best.key:
        return "win"
    return "lose" if classify_outcome(trial) in LOST else ""


def _make_row(study: Study, trial: Trial) -> tuple[str, ...]:
    original = trial.key == study.baseline.key
    return (
        study.label(trial.plan),
        say.format_estimate(study.speedup(trial)),
        say.NONE if original else say.format_span(study.speedup(trial)),
        say.format_score(study, trial),
        say.format_megabytes(trial.size),
        say.describe_verdict(trial) if not original else "",
        _explain_rank(study, trial),
    )


def _explain_rank(study: Study, trial: Trial) -> str:
    reason = say.explain_outcome(trial)
    if trial.key == study.baseline.key:
        return ""
    if trial.key == study.best.key:
        return f"the winner: {reason}"
    over = study.job.wanted.describe_excess(trial)
    if over and classify_outcome(trial) in _MEASURED:
        reason = over
    elif classify_outcome(trial) is Outcome.FASTER:
        reason = _explain_loss(study, trial)
    return f"{'finalist: ' if trial.part == 'final' else ''}{reason}"


def _explain_loss(study: Study, trial: Trial) -> str:
    """Say why a plan that is faster than the original is not the winner."""
    if not study.accepts(trial):
        if not study.strict:
            return "too few samples tell whether it is within the accuracy budget"
        return "its accuracy is not proved, which --strict asks for"
    best = study.best
    goal = study.job.wanted
    if goal.needs_less(best, trial):
        than = "original" if best.key == study.baseline.key else "winner"
        return f"needs more {goal.prefer} than the {than}"
    if best.key == study.baseline.key or trial in study.unconfirmed:
        return "not re-measured"
    if compare_latency(best, trial).high < 1:
        return f"slower than the winner's {say.format_speedup(study.speedup(best))}"
    return "tied with the winner (within noise)"
