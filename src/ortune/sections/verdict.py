"""The answer, and the original beside the winner."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.acceptance import FASTEST, Outcome
from ortune.core.section import Block, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import Trial, Verdict

_ENDS = {
    "time": "The time budget ended the search.",
    "target": "The search stopped at the first proved plan that reached the target.",
    "interrupted": "The search was interrupted; the same command goes on.",
}


@dataclass(frozen=True)
class VerdictSection(Section):
    """What to take, how sure that is, and what it costs."""

    order: ClassVar[int] = 10
    terminal: ClassVar[bool] = True

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield the answer first."""
        best = study.best
        yield Text(answer(study), _tone(study, best))
        yield from (Text(line, tone) for line, tone in chosen(study))
        if best.key != study.baseline.key and (meaning := say.means(best.score)):
            yield Text(f"Accuracy {meaning}.")
        if study.too_noisy:
            advice = next(iter(study.advice), "measure again")
            yield Text(f"This machine was too noisy for a verdict: {advice}.", "warn")
        if foreseen := say.foreseen(best):
            yield Text(f"Ratio of {study.job.workload.measure} {say.ratio(best)}; {foreseen}.")
        if used := say.workload(study):
            yield Text(used)
        yield Text(_tried(study))
        yield from (Text(line, "warn") for line in _unconfirmed(study))
        yield Text(_budget(study))
        yield from (Text(f"Not decisive: {text}.", "warn") for text in say.fallen(best.scores))
        yield _comparison(study, best)


def answer(study: Study) -> str:
    """Return the study's result as one line."""
    best = study.best
    if best.key == study.baseline.key:
        if over := study.job.wanted.over(best):
            return f"the original stays, but does not keep what was asked: {over}"
        if len(say.latest(study)) == 1:
            return "the original stays: no plan was tried"
        return f"the original stays: {_nothing(study)}"
    speed = study.speedup(best)
    under = f" under {study.job.workload}" if say.workload(study) else ""
    times = f"{say.times(speed)} as fast as the original{under}"
    faster = f"{times} (99 % interval {say.span(speed)})"
    return f"{_saved(study, best)}{faster}, {_accuracy(best)}"


def chosen(study: Study) -> Iterable[tuple[str, str]]:
    """Say by what the winner was chosen and whether it keeps its bounds, each with its tone."""
    wanted, best = study.job.wanted, study.best
    if wanted.over(best):
        yield "No plan keeps it, keeps the accuracy budget and is not slower.", "warn"
    if wanted != FASTEST:
        least = "the fastest plan"
        if wanted.prefer != "speed":
            least = f"the least {wanted.prefer} that is not slower beyond the noise"
        yield f"Chosen by: {least} ({wanted}).", "plain"


def _saved(study: Study, best: Trial) -> str:
    """Say what the winner needs of what is preferred; empty for speed."""
    prefer = study.job.wanted.prefer
    if prefer == "speed":
        return ""
    parts = [_needs(trial, prefer) for trial in (best, study.baseline)]
    return f"{prefer} {parts[0]} of {parts[1]} MB, "


def _needs(trial: Trial, prefer: str) -> str:
    return say.megabytes(trial.size) if prefer == "size" else _measured(trial, "peak_rss", 1e6)


def _nothing(study: Study) -> str:
    """Say why no plan is handed out, as weakly as it is known."""
    if study.unconfirmed:
        return "nothing faster was confirmed yet"
    if study.too_noisy:
        return "nothing could be told apart from it on this machine"
    prefer = study.job.wanted.prefer
    if prefer != "speed":
        return f"nothing of less {prefer} was within the budget and not slower beyond the noise"
    return "nothing was faster beyond the noise within the budget"


def _accuracy(best: Trial) -> str:
    score = best.score
    if score is None:
        return "accuracy not scored"
    name = score.metric.partition("(")[0]
    values = f"{name} {say.number(score.base)} -> {say.number(score.value)}"
    return f"accuracy kept: {values}, {score.verdict or 'not judged'}"


def _tone(study: Study, best: Trial) -> str:
    if best.key == study.baseline.key:
        return "plain"
    proved = best.score is not None and best.score.verdict is Verdict.PROVED
    return "good" if proved else "warn"


def _tried(study: Study) -> str:
    counts = dict(study.counts)
    left = counts.pop(Outcome.UNTRIED)
    parts = ", ".join(f"{number} {kind}" for kind, number in counts.items() if number)
    tried = f"{say.count(sum(counts.values()), 'plan')} tried{': ' + parts if parts else ''}"
    why = ": the report says why" if study.ending.left_out else ""
    tried += f"; {left} {Outcome.UNTRIED}{why}." if left else "."
    return f"{tried} {_ENDS.get(study.finished, '')}".strip()


def _unconfirmed(study: Study) -> Iterable[str]:
    """Name what looked faster and was not measured again; it is not handed out."""
    for trial in study.unconfirmed:
        speed = study.speedup(trial)
        ends = f" ({say.span(speed)})" if speed.bounded else ", about,"
        seen = f"{trial.plan}, {say.times(speed)}{ends} when it was measured once"
        yield f"Not confirmed: {seen} (ortune pack --trial {trial.key[:8]} --unconfirmed)."


def _budget(study: Study) -> str:
    rule = f", derived: {study.job.budget_rule}" if study.job.budget_rule else ", as given"
    parts = ", ".join(f"{number:,} {part}" for part, number in study.samples.items())
    return f"Budget: {study.budget}{rule}." + f" Samples: {parts}." * bool(parts)


def _comparison(study: Study, best: Trial) -> Table:
    trials = [study.baseline] + ([best] if best.key != study.baseline.key else [])
    rows = [
        (f"{study.job.workload.measure}, ms", *(_latency(study, trial) for trial in trials)),
        ("score", *_scores(trials)),
        ("size, MB", *(say.megabytes(trial.size) for trial in trials)),
        ("recipe", *(trial.plan.recipe.name for trial in trials)),
        ("backend", *(str(trial.plan.backend) for trial in trials)),
        ("ran on", *(_placement(trial) for trial in trials)),
        ("peak memory, MB", *(_measured(trial, "peak_rss", 1e6) for trial in trials)),
        ("load, ms", *(_measured(trial, "load_ns", 1e6) for trial in trials)),
        ("first run, ms", *(_measured(trial, "first_ns", 1e6) for trial in trials)),
    ]
    return Table(("", "original", "winner")[: len(trials) + 1], tuple(rows))


def _latency(study: Study, trial: Trial) -> str:
    return say.milliseconds(say.latency_ns(study, trial))


def _scores(trials: list[Trial]) -> list[str]:
    """Write both scores on the samples that the last of the trials was scored on."""
    score = trials[-1].score
    if score is None:
        return [say.NONE for _ in trials]
    values = [score.base, score.value][-len(trials) :]
    return [f"{score.metric} {say.number(value)}" for value in values]


def _placement(trial: Trial) -> str:
    found = trial.measurement.placement if trial.measurement else {}
    return (
        ", ".join(f"{name}: {say.count(nodes, 'node')}" for name, nodes in found.items())
        or "not recorded"
    )


def _measured(trial: Trial, name: str, unit: float) -> str:
    if trial.measurement is None:
        return say.NONE
    value: int = getattr(trial.measurement, name)
    return f"{value / unit:.0f}" if value >= 10 * unit else f"{value / unit:.2f}"
