"""The answer: what to take, how sure that is, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.acceptance import FASTEST, Outcome
from ortune.core.section import Block, Section, Text
from ortune.core.study import Study
from ortune.core.trial import Trial, Verdict

_ENDS = {
    "time": "The time budget ended the search.",
    "target": "The search stopped at the first proved plan that reached the target.",
    "interrupted": "The search was interrupted; the same command goes on.",
}

_WAITING, _BUSY = 0.02, 0.5
"""A run that waited for over 2 % of its time was disturbed; with over half of them the noise may
have gone one way (``docs/measuring.md``)."""


@dataclass(frozen=True)
class VerdictSection(Section):
    """What to take, how sure that is, and what it costs."""

    order: ClassVar[int] = 10
    terminal: ClassVar[bool] = True

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield the answer first."""
        best = study.best
        yield Text(describe_answer(study), _select_tone(study, best))
        yield from (Text(line, tone) for line, tone in describe_choice(study))
        if best.key != study.baseline.key and (meaning := say.explain_verdict(best.score)):
            yield Text(f"Accuracy {meaning}.")
        yield from (Text(line, "warn") for line in _list_doubts(study, best))
        if foreseen := say.describe_prediction(best):
            yield Text(
                f"Ratio of {study.job.workload.measure} {say.format_ratio(best)}; {foreseen}."
            )
        if used := say.describe_workload(study):
            yield Text(used)
        counts = dict(study.counts)
        untried_count = counts.pop(Outcome.UNTRIED)
        parts = ", ".join(f"{number} {kind}" for kind, number in counts.items() if number)
        tried = (
            f"{say.format_count(sum(counts.values()), 'plan')} "
            f"tried{': ' + parts if parts else ''}"
        )
        why = ": the report says why" if study.ending.left_out else ""
        tried += f"; {untried_count} {Outcome.UNTRIED}{why}." if untried_count else "."
        yield Text(f"{tried} {_ENDS.get(study.finished, '')}".strip())
        yield from (Text(line, "warn") for line in _describe_unconfirmed(study))
        rule = f", derived: {study.job.budget_rule}" if study.job.budget_rule else ", as given"
        parts = ", ".join(f"{number:,} {part}" for part, number in study.samples.items())
        yield Text(f"Budget: {study.budget}{rule}." + f" Samples: {parts}." * bool(parts))
        yield from (
            Text(f"Not decisive: {text}.", "warn") for text in say.list_failed_outputs(best.scores)
        )


def describe_answer(study: Study) -> str:
    """Return the study's result as one line."""
    best = study.best
    if best.key == study.baseline.key:
        if over := study.job.wanted.describe_excess(best):
            return f"the original stays, but does not keep what was asked: {over}"
        if len(say.list_latest_trials(study)) == 1:
            return "the original stays: no plan was tried"
        return f"the original stays: {_explain_no_plan(study)}"
    speed = study.speedup(best)
    under = f" under {study.job.workload}" if say.describe_workload(study) else ""
    times = f"{say.format_speedup(speed)} as fast as the original{under}"
    faster = f"{times} (99 % interval {say.format_span(speed)})"
    return f"{_describe_saving(study, best)}{faster}, {_describe_accuracy(best)}"


def describe_choice(study: Study) -> Iterable[tuple[str, str]]:
    """Say by what the winner was chosen and whether it keeps its bounds, each with its tone."""
    goal, best = study.job.wanted, study.best
    if goal.describe_excess(best):
        yield "No plan keeps it, keeps the accuracy budget and is not slower.", "warn"
    if goal != FASTEST:
        least = "the fastest plan"
        if goal.prefer != "speed":
            least = f"the least {goal.prefer} that is not slower beyond the noise"
        yield f"Chosen by: {least} ({goal}).", "plain"


def _describe_saving(study: Study, best: Trial) -> str:
    """Say what the winner needs of what is preferred; empty for speed."""
    prefer = study.job.wanted.prefer
    if prefer == "speed":
        return ""
    parts = [_describe_needs(trial, prefer) for trial in (best, study.baseline)]
    return f"{prefer} {parts[0]} of {parts[1]} MB, "


def _describe_needs(trial: Trial, prefer: str) -> str:
    return (
        say.format_megabytes(trial.size)
        if prefer == "size"
        else say.format_measurement(trial, "peak_rss", 1e6)
    )


def _explain_no_plan(study: Study) -> str:
    """Say why no plan is handed out, as weakly as it is known."""
    if study.too_noisy:
        return "nothing could be distinguished from it on this machine"
    if study.unconfirmed:
        return "nothing faster was confirmed yet"
    prefer = study.job.wanted.prefer
    if prefer != "speed":
        return f"nothing of less {prefer} was within the budget and not slower beyond the noise"
    return "nothing was faster beyond the noise within the budget"


def _describe_accuracy(best: Trial) -> str:
    score = best.score
    if score is None:
        return "accuracy not scored"
    values = (
        f"{say.shorten_metric(score.metric)} {say.format_score_value(score.base)} -> "
        f"{say.format_score_value(score.value)}"
    )
    return f"accuracy kept: {values}, {score.verdict or 'not judged'}"


def _select_tone(study: Study, best: Trial) -> str:
    """Return the colour of the whole claim: good only where nothing in it is in doubt."""
    if best.key == study.baseline.key:
        return (
            "warn" if study.ending.too_noisy or study.job.wanted.describe_excess(best) else "plain"
        )
    proved = best.score is not None and best.score.verdict is Verdict.PROVED
    return "warn" if _list_doubts(study, best) or not proved else "good"


def _list_doubts(study: Study, best: Trial) -> list[str]:
    """Say what of the speed is in doubt."""
    doubts, advice = [], f": {study.advice[0]}" if study.advice else ""
    if study.too_noisy:
        doubts.append(f"This machine was too noisy for a verdict{advice}.")
    elif study.ending.too_noisy:
        doubts.append(f"Measured on a noisy machine{advice}.")
    if best.key == study.baseline.key:
        return doubts
    if (share := _compute_waiting_share(best)) > _BUSY:
        doubts.append(f"{100 * share:.0f} % of the runs behind the speed-up waited for a CPU.")
    if study.job.wanted.prefer == "speed" and best.predicted and best.predicted.high >= 1:
        doubts.append("A new measurement may find no gain.")
    return doubts


def _compute_waiting_share(trial: Trial) -> float:
    """Return the share of a trial's timed runs whose threads waited for a CPU; 0 if unknown."""
    pairs = trial.measurement.pairs if trial.measurement else ()
    blocks = [block for pair in pairs for block in pair.blocks]
    bursts = (burst for block in blocks for burst in (block.baseline, block.candidate))
    waiting_shares = [share for burst in bursts for share in burst.waited if share >= 0]
    return (
        sum(share > _WAITING for share in waiting_shares) / len(waiting_shares)
        if waiting_shares
        else 0.0
    )


def _describe_unconfirmed(study: Study) -> Iterable[str]:
    """Name what looked faster and was not measured again; it is not handed out."""
    for trial in study.unconfirmed:
        speed = study.speedup(trial)
        ends = f" ({say.format_span(speed)})" if speed.is_bounded else ", about,"
        seen = f"{trial.plan}, {say.format_speedup(speed)}{ends} when it was measured once"
        yield f"Not confirmed: {seen} (ortune pack --trial {trial.key[:8]} --unconfirmed)."
