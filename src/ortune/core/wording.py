"""How numbers and trials are written in reports: one spelling everywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `format_count` is for those that start without NumPy too
    from ortune.core.study import Study
    from ortune.core.trial import Interval, Score, Trial

NONE = "-"


def format_speedup(interval: Interval) -> str:
    """Write a speed-up: ``1.92x``."""
    return f"{interval.value:.2f}x" if math.isfinite(interval.value) else NONE


def format_span(interval: Interval) -> str:
    """Write an interval's ends: ``1.87-1.98``."""
    return f"{interval.low:.2f}-{interval.high:.2f}" if interval.is_bounded else NONE


def format_ratio(trial: Trial) -> str:
    """Write a latency ratio with its interval, or that there is none."""
    is_finite = trial.ratio is not None and math.isfinite(trial.ratio.value)
    return str(trial.ratio) if is_finite else NONE


def ratio_of(study: Study) -> str:
    """Return the heading of a column of `format_ratio`."""
    return "latency ratio, 99 %" if not describe_workload(study) else "time ratio, 99 %"


def describe_prediction(trial: Trial) -> str:
    """Say where one new measurement of a trial's ratio will fall; empty when that is unknown."""
    prediction = trial.predicted
    if prediction is None or not math.isfinite(prediction.value):
        return ""
    return f"a new measurement falls in {prediction.low:.3f}-{prediction.high:.3f} (95 %)"


def describe_workload(study: Study) -> str:
    """Say what was timed and what a speed-up is the ratio of; empty for the plain latency."""
    used = study.job.workload
    if str(used) == "latency":
        return ""
    return f"Workload: {used}. A speed-up is the ratio of {used.measure}."


def format_score_value(value: float | None) -> str:
    """Write a score with five significant digits."""
    return NONE if value is None or math.isnan(value) else f"{value:.5g}"


def format_score(study: Study, trial: Trial) -> str:
    """Write the score that the budget judges, behind the original's on the same samples."""
    score = trial.score
    if score is None:
        return NONE
    value = format_score_value(score.value)
    if trial.key == study.baseline.key or not math.isfinite(score.base):
        return value
    return f"{format_score_value(score.base)} -> {value}"


def shorten_metric(spelled: str) -> str:
    """Write a metric in a word or two: its name, of a function its path."""
    match = re.match(r'function\(path="?([^",)]+)', spelled)
    return match[1] if match else spelled.partition("(")[0]


def format_milliseconds(ns: float | None) -> str:
    """Write a duration with four significant digits: ``0.0512``, ``1.920``, ``12.30`` ms."""
    if ns is None or ns <= 0:
        return NONE
    ms = ns / 1e6
    return f"{ms:.{max(0, 3 - math.floor(math.log10(ms)))}f}" if ms < 1000 else f"{ms:.0f}"


def format_megabytes(size: int | None) -> str:
    """Write bytes in units of 10^6 with three significant digits."""
    if size is None:
        return NONE
    mb = size / 1e6
    return f"{mb:.0f}" if mb >= 100 else f"{mb:.3g}" if mb >= 0.001 else f"{mb:.4f}"


def format_measurement(trial: Trial, name: str, unit: float) -> str:
    """Write a figure of a trial's measurement in a unit: whole from ten on."""
    if trial.measurement is None:
        return NONE
    value: int = getattr(trial.measurement, name)
    return f"{value / unit:.0f}" if value >= 10 * unit else f"{value / unit:.2f}"


def format_count(amount: int, singular: str, plural: str = "") -> str:
    """Write a number and its noun: ``1 plan``, ``1,200 plans``."""
    return f"{amount:,} {singular if amount == 1 else plural or singular + 's'}"


def latency_ns(study: Study, trial: Trial) -> float | None:
    """Return a plan's latency: the original's beside the winner, times the plan's ratio.

    The columns of a table divide to the ratios that stand beside them.
    """
    pairs = study.best.measurement.pairs if study.best.measurement else ()
    timed = [ns for pair in pairs for block in pair.blocks for ns in block.baseline.latency_ns]
    original = median(timed) if timed else None
    if original is None or trial.key == study.baseline.key:
        return original
    return None if trial.ratio is None else original * trial.ratio.value


def format_bound(score: Score) -> str:
    """Write what a score is at least, or at most, at its error."""
    if math.isfinite(score.low):
        return f"at least {format_score_value(score.low)}"
    return f"at most {format_score_value(score.high)}" if math.isfinite(score.high) else NONE


def explain_verdict(score: Score | None) -> str:
    """Say in one sentence what a score's verdict means; empty for one that is not judged."""
    from ortune.core.trial import Verdict

    if score is None or score.verdict is None:
        return ""
    claim = score.claim or f"{score.metric} is within the budget"
    if score.verdict is Verdict.PROVED:
        if score.proved_on is None:
            return f"proved by construction: {claim} ({score.basis})"
        return f"proved: with {100 * (1 - score.error):.3g} % confidence {claim} ({score.basis})"
    seen = "" if score.inside is None else f", {100 * score.inside:.3g} % are inside"
    if score.verdict is Verdict.FAILS:
        result = f"{score.metric} is {format_score_value(score.value)}{seen}"
        return (
            f"fails: on {format_count(score.samples, 'sample')} {result}; the budget requires "
            f"that {claim}"
        )
    more = "no number of samples proves it as it is"
    if score.needed is not None:
        more = (
            f"about {format_count(score.needed, f'unread independent {score.unit}')} would prove "
            "it"
        )
    seen = f"as far as {format_count(score.samples, 'sample')} tell ({score.basis})"
    return f"likely: {claim}, {seen}; {more}"


def list_failed_outputs(scores: Sequence[Score]) -> list[str]:
    """Name the outputs that the budget does not read and that fall below limits of their own."""
    from ortune.core.trial import Verdict

    failures = [score for score in scores[1:] if score.verdict is Verdict.FAILS]
    return [
        f"{score.metric} is {format_score_value(score.value)}: {score.basis}" for score in failures
    ]


def describe_verdict(trial: Trial) -> str:
    """Say in a word what became of a trial's accuracy, or why there is none."""
    from ortune.core.acceptance import Outcome, classify_outcome
    from ortune.core.trial import Verdict

    result = classify_outcome(trial)
    if result is Outcome.FAILS:
        return str(Verdict.FAILS)
    if result not in (Outcome.FASTER, Outcome.LEVEL, Outcome.DISTURBED):
        return str(result)
    return str(trial.score.verdict) if trial.score and trial.score.verdict else "not scored"


def explain_outcome(trial: Trial) -> str:
    """Say in a line why a trial won or lost, by the interval that is shown with it."""
    from ortune.core.acceptance import Outcome, classify_outcome

    if classify_outcome(trial) is Outcome.DISTURBED:
        return str(Outcome.DISTURBED)
    why = " ".join((trial.why or trial.error or "").split())
    level = classify_outcome(trial) is Outcome.LEVEL and not why.startswith(Outcome.LEVEL)
    if classify_outcome(trial) is Outcome.LEVEL and trial.ratio and not trial.ratio.is_bounded:
        return "screened: one block, which proves nothing"
    return str(Outcome.LEVEL) if level else why


def find_search_trial(study: Study, trial: Trial) -> Trial:
    """Return the search's own trial of a plan: scores of one column are on the same samples."""
    same = (t for t in study.trials if t.key == trial.key and t.part == "search")
    return next(same, trial)


def list_latest_trials(study: Study) -> tuple[Trial, ...]:
    """Return one trial a plan, in order of first appearance; the final one where there are two."""
    return tuple({trial.key: trial for trial in study.trials}.values())
