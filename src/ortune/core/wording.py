"""How numbers and trials are written in reports: one spelling everywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `format_count` is for those that start without NumPy too
    from ortune.core.metric import Metric
    from ortune.core.session import IntegerUse
    from ortune.core.study import Study
    from ortune.core.trial import Interval, Score, Trial

NONE = "-"
_WHOLE_RATE = 1e4
_LISTED = re.compile(
    r"""(?:groups|decisions|probabilities|states)=\[(?:"(?:[^"\\]|\\.)*"|[^"\]])*\](?:, )?"""
)
"""Fields of metrics that list outputs."""


def format_speedup(interval: Interval) -> str:
    """Write a speed-up: ``1.92x``."""
    return f"{interval.value:.2f}x" if math.isfinite(interval.value) else NONE


def format_estimate(interval: Interval) -> str:
    """Write a speed-up; one whose interval tells nothing is about that: ``~1.92x``."""
    figure = format_speedup(interval)
    return figure if interval.is_bounded or figure == NONE else f"~{figure}"


def format_span(interval: Interval) -> str:
    """Write an interval's ends: ``1.87-1.98``."""
    return f"{interval.low:.2f}-{interval.high:.2f}" if interval.is_bounded else NONE


def describe_speedup(ratio: Interval | None) -> str:
    """Write a latency ratio as a speed-up with its interval: ``1.92x [1.87, 1.98]``."""
    if ratio is None or not math.isfinite(ratio.value):
        return NONE
    speedup = ratio.inverse()
    if not speedup.is_bounded:
        return f"about {speedup.value:.2f}x"
    return f"{speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}]"


def describe_latencies(study: Study, trial: Trial) -> str:
    """Write a plan's latency beside the original's, and the speed-ups that repeats will find.

    Empty where neither is known.
    """
    ends = study.predict_speedup(trial)
    times = [format_milliseconds(latency_ns(study, t)) for t in (trial, study.baseline)]
    parts = []
    if NONE not in times:
        measure = study.job.workload.measure
        parts.append(f"{measure[:1].upper()}{measure[1:]} {times[0]} ms vs {times[1]} ms")
    if ends is not None and math.isfinite(ends.value):
        parts.append(f"repeat measurements: {ends.low:.2f}-{ends.high:.2f}x (95 %)")
    return "; ".join(parts)


def format_score_value(value: float | None) -> str:
    """Write a score with five significant digits."""
    return NONE if value is None or math.isnan(value) else f"{value:.5g}"


def format_apart(value: float, other: float) -> tuple[str, str]:
    """Return two numbers with four digits, or with as many as tell them apart."""
    digits = next((n for n in range(4, 17) if f"{value:.{n}g}" != f"{other:.{n}g}"), 4)
    return f"{value:.{digits}g}", f"{other:.{digits}g}"


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
    return match[1] if match else re.sub(r"^top(\d)", r"top-\1", spelled.partition("(")[0])


def scale_score(metric: Metric) -> tuple[float, str]:
    """Return the factor from a score to what people read, and its unit: shares are in points."""
    from ortune.core.metric import Kind

    return (100.0, ", points") if metric.kind() is Kind.RIGHT else (1.0, "")


def shorten_groups(spelled: str) -> str:
    """Write a metric or a budget without the parts of outputs that it lists.

    ``parity(groups=["1:boxes", "all:state"])>=30`` is ``parity>=30 by output and group``.
    """
    short = drop_output_lists(spelled)
    kind = "output and group" if short.startswith("parity") else "group"
    return spelled if short == spelled else f"{short} by {kind}"


def drop_output_lists(spelled: str) -> str:
    """Write a metric or a budget without those of its fields that list outputs."""
    return _LISTED.sub("", spelled).replace(", )", ")").replace("()", "")


def format_milliseconds(ns: float | None) -> str:
    """Write a duration with four significant digits: ``0.0512``, ``1.920``, ``12.30`` ms."""
    if ns is None or ns <= 0:
        return NONE
    ms = ns / 1e6
    return f"{ms:.{max(0, 3 - math.floor(math.log10(ms)))}f}" if ms < 1000 else f"{ms:.0f}"


def format_seconds(value: float) -> str:
    """Write seconds with a unit that suits them: ``6.5 s``, ``151 ms``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def format_megabytes(size: int | None) -> str:
    """Write bytes in units of 10^6 with three significant digits."""
    if size is None:
        return NONE
    mb = size / 1e6
    return f"{mb:.0f}" if mb >= 100 else f"{mb:.3g}" if mb >= 0.001 else f"{mb:.4f}"


def format_measurement(trial: Trial, name: str) -> str:
    """Write a figure of a trial's measurement in MB, or ns in ms: whole from ten on."""
    if trial.measurement is None:
        return NONE
    value = getattr(trial.measurement, name) / 1e6
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def format_rate(per_second: float) -> str:
    """Return a rate with four digits, or whole."""
    return f"{per_second:.4g}" if per_second < _WHOLE_RATE else f"{per_second:,.0f}"


def format_count(amount: int, singular: str, plural: str = "") -> str:
    """Write a number and its noun: ``1 plan``, ``1,200 plans``."""
    return f"{amount:,} {singular if amount == 1 else plural or singular + 's'}"


def join_names(names: Sequence[str], most: int) -> str:
    """Name a few and count the others: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def format_duration(seconds: float) -> str:
    """Write seconds with their units: ``3 s``, ``1 h 30 min``."""
    whole, parts = math.floor(seconds), []
    for length, unit in ((3600, "h"), (60, "min")):
        if whole >= length:
            parts.append(f"{whole // length} {unit}")
        seconds, whole = seconds - whole // length * length, whole % length
    return " ".join([*parts, *[f"{seconds:.3g} s"] * (seconds > 0 or not parts)])


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


def tabulate_score(score: Score) -> tuple[str, ...]:
    """Write metric, value, reference, bound, verdict and basis, each for a cell."""
    reference = "-" if math.isnan(score.base) else f"{score.base:.6g}"
    cells = (shorten_groups(score.metric), f"{score.value:.6g}", reference, format_bound(score))
    return (*cells, str(score.verdict or ""), score.basis)


def explain_verdict(score: Score | None) -> str:
    """Say in one sentence what a score's verdict means; empty for one that is not judged."""
    from ortune.core.trial import Verdict

    if score is None or score.verdict is None:
        return ""
    claim = score.claim or f"{shorten_groups(score.metric)} is within the budget"
    if score.verdict is Verdict.PROVED:
        if score.proved_on is None:
            return f"proved by construction: {claim} ({score.basis})"
        return f"proved: with {100 * (1 - score.error):.3g} % confidence {claim} ({score.basis})"
    seen = "" if score.inside is None else f", {100 * score.inside:.3g} % are inside"
    if score.verdict is Verdict.FAILS:
        name = shorten_groups(score.metric)
        result = f"{name} is {format_score_value(score.value)}{seen} ({score.basis})"
        return (
            f"fails: on {format_count(score.samples, 'sample')} {result}; the budget requires "
            f"that {claim}"
        )
    looks = ""
    if score.chance is not None:
        cases = f"in up to {100 * score.chance:.2g} % of cases"
        plans = format_count(score.plans, "plan")
        looks = f"; one just outside would look so {cases}, {plans} looked at"
    result = f"{claim} on {format_count(score.samples, 'sample')} ({score.basis})"
    name = "likely, not proved" if score.verdict is Verdict.LIKELY else "undecided"
    return f"{name}: {result}{looks}; {describe_needed(score)}"


def describe_needed(score: Score) -> str:
    """Say how many samples in all would prove a score that is not proved, or make it likely."""
    from ortune.core.trial import Verdict

    likely = ""
    enough = score.count_likely_samples(score.plans)
    if score.verdict is Verdict.UNDECIDED and enough is not None:
        likely = f"about {format_count(enough, 'sample')} like these in all would make it likely; "
    if score.needed is None:
        return f"{likely}no number of samples like these would prove it"
    like = " (such as photos or speakers)" if score.unit == "group" else ""
    count = format_count(score.needed, f"independent {score.unit}")
    return f"{likely}proving it needs about {count}{like} in all"


def describe_change(study: Study, score: Score) -> str:
    """Write what the budget limits with its 90 % interval, beside what the budget allows."""
    from ortune.core.metric import Kind

    metric, budget, change = study.budget.metric, study.budget, score.change
    if change is None:
        return describe_scores(study, score)
    name, samples = shorten_metric(score.metric), format_count(score.samples, "sample")
    if score.share is not None:
        span = f"[{100 * change.least:.3g}, {100 * change.most:.3g}]"
        inside = f"{100 * change.value:.3g} % {span} of {samples} keep {name} {budget.limit:g}"
        return f"{inside}, at least {100 * score.share:g} % have to"
    scale, unit = (100, " points") if metric.kind() is Kind.RIGHT else (1, "")
    sign = "+" if budget.relative else ""
    value, low, high, limit = (
        f"{scale * number:{sign}.3g}"
        for number in (change.value, change.least, change.most, budget.limit)
    )
    least = "at least" if metric.higher_is_better else "at most"
    limit_text = f"the budget asks for {least} {limit}{unit}"
    return f"{name} {value}{unit} [{low}, {high}] on {samples}, {limit_text}"


def describe_scores(study: Study, score: Score) -> str:
    """Write a score beside the original's: ``top-1 89.7 -> 90.5 % (+0.9 points, 116 samples)``."""
    from ortune.core.metric import Kind

    metric, samples = study.budget.metric, format_count(score.samples, "sample")
    name = shorten_metric(score.metric)
    if metric.kind() is Kind.RIGHT and math.isfinite(score.value):
        points = 100 * (score.value - score.base)
        values = f"{100 * score.base:.1f} -> {100 * score.value:.1f} %"
        return f"{name} {values} ({points:+.1f} points, {samples})"
    values = f"{format_score_value(score.base)} -> {format_score_value(score.value)}"
    return f"{name} {values} ({samples})"


def list_failed_outputs(scores: Sequence[Score]) -> list[str]:
    """Name the outputs that the budget does not read and that fall below limits of their own."""
    from ortune.core.trial import Verdict

    failures = [score for score in scores[1:] if score.verdict is Verdict.FAILS]
    return [
        f"{shorten_groups(score.metric)} is {format_score_value(score.value)}: {score.basis}"
        for score in failures
    ]


def describe_verdict(trial: Trial) -> str:
    """Say in a word what became of a trial's accuracy, or why there is none."""
    from ortune.core.acceptance import Outcome, classify_outcome
    from ortune.core.trial import Verdict

    result = classify_outcome(trial)
    if result is Outcome.FAILS:
        return str(Verdict.FAILS)
    timed = (Outcome.FASTER, Outcome.LEVEL, Outcome.ROUGH, Outcome.DISTURBED, Outcome.EMULATED)
    if result not in timed:
        return str(result)
    return str(trial.score.verdict) if trial.score and trial.score.verdict else "not scored"


def explain_outcome(trial: Trial) -> str:
    """Say in a line why a trial won or lost, by the interval that is shown with it."""
    from ortune.core.acceptance import Outcome, classify_outcome

    if classify_outcome(trial) is Outcome.DISTURBED:
        return str(Outcome.DISTURBED)
    why = " ".join((trial.why or trial.error or "").split())
    kind = classify_outcome(trial)
    if kind is Outcome.ROUGH:
        return f"rough, not re-measured: timed for {measure_timed_s(trial):.1f} s only"
    return str(kind) if kind is Outcome.LEVEL and not why.startswith(kind) else why


def measure_timed_s(trial: Trial) -> float:
    """Return the seconds of a trial's timed runs, the original's beside them included."""
    pairs = trial.measurement.pairs if trial.measurement else ()
    return sum(block.seconds for pair in pairs for block in pair.blocks)


def find_search_trial(study: Study, trial: Trial) -> Trial:
    """Return the search's own trial of a plan: scores of one column are on the same samples."""
    same = (t for t in study.trials if t.key == trial.key and t.part == "search")
    return next(same, trial)


def list_latest_trials(study: Study) -> tuple[Trial, ...]:
    """Return one trial a plan, in order of first appearance; the final one where there are two."""
    return tuple({trial.key: trial for trial in study.trials}.values())


def format_integer_use(use: IntegerUse) -> str:
    """Say what ran in integers: ``48 of 53 layers with integers run in integers; 5 in float``."""
    inside = use.layers - len(use.in_float)
    text = f"{inside} of {format_count(use.layers, 'layer')} with integers run in integers"
    if use.in_float:
        slowest = sorted(use.in_float, key=lambda name: -use.in_float[name])
        spent = format_milliseconds(sum(use.in_float.values()))
        text += f"; {len(slowest)} in float, {spent} ms: {join_names(slowest, _NAMED)}"
    if use.beside:
        parts = (f"{op} {format_milliseconds(ns)} ms" for op, ns in use.beside.items())
        text += f"; conversions beside them: {', '.join(parts)}"
    return text


_NAMED = 3
