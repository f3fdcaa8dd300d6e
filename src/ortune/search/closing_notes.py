"""What a search concludes beside its winner: how far the machine could be trusted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from ortune.core.acceptance import Outcome, classify_outcome
from ortune.core.errors import Interruption
from ortune.core.trial import Status, Trial
from ortune.core.wording import format_count
from ortune.measurement.machine import noise
from ortune.measurement.timing import stats
from ortune.search.experiment import measure

_UNREAD = (
    "the accuracy of plans that were tried last was not read: with so few samples, one more that "
    "is looked at would leave none that can be shown to be within the accuracy budget"
)
LONGEST_S = 90  # seconds of a finalist at most that are worth asking for


def list_notes(
    trials: Sequence[Trial], current: Sequence[Trial], finals: Sequence[Trial]
) -> list[str]:
    """Return what a search says at its end of what it could not tell.

    Args:
        trials: All of the run, the original first.
        current: Those that the last step of the budget judges.
        finals: The finalists among them.
    """
    unread = any(
        t.part == "search" and t.plan.lossy and t.status is Status.SCREENED and not t.stopped
        for t in current
    )
    notes = [
        _describe_needed_time(trials, finals),
        _describe_interruptions(current),
        _UNREAD if unread else "",
    ]
    return [text for text in notes if text]


def _describe_needed_time(trials: Sequence[Trial], finals: Sequence[Trial]) -> str:
    """Say how long would tell 3 % where a finalist is not told from the original; else empty."""
    timed = [t for t in finals if t.measurement is not None]
    if not any(classify_outcome(t) is Outcome.LEVEL for t in timed):
        return ""
    each = fmean(t.seconds / len(t.measurement.pairs) for t in timed if t.measurement)
    learnt = measure.pool_variance(trials)
    needed = stats.pairs_for(learnt)
    if needed is not None and needed <= stats.PAIRS:
        return ""
    pairs = format_count(stats.PAIRS, "process pair")
    smallest = f"{100 * stats.minimum_detectable_effect(learnt):.0f} %"
    text = (
        f"not enough measurements: with {pairs} ({stats.PAIRS * each:.0f} s) the smallest "
        f"detectable difference is {smallest}"
    )
    if needed is not None and needed * each <= LONGEST_S:
        return f"{text}; 3 % needs {needed} pairs ({needed * each:.0f} s)"
    return f"{text}; 3 % needs more than {LONGEST_S} s per finalist"


def _describe_interruptions(trials: Sequence[Trial]) -> str:
    """Say of how many plans nothing is known, as they were cut short, and by what; else empty."""
    counts = Counter(str(t.interruption) for t in trials if t.interruption is not None)
    if not counts:
        return ""
    causes = ", ".join(f"{count} {cause}" for cause, count in counts.items())
    plans = format_count(counts.total(), "plan")
    text = f"{plans} cut short ({causes}): no verdict, the same command tries again"
    return f"{text}; with more --time" if Interruption.TIME in counts else text


def assess_machine(
    trials: Sequence[Trial], finals: Sequence[Trial], record: noise.Record
) -> tuple[Mapping[str, str], noise.Judgement]:
    """Return readings that say how far the machine could be trusted, and the verdict on it.

    The original is the first of the trials, and the record is since the search began.
    """
    readings: dict[str, str] = {}
    pairs = [p for t in trials if t.measurement for p in t.measurement.pairs]
    groups = [t.measurement.pairs for t in finals if t.measurement is not None]
    first, equal = trials[0].measurement, None
    if first is not None:
        equal = stats.latency_ratio(first.pairs, learnt=stats.PooledVariance.pool(groups))
        readings["original timed against itself (A/A ratio)"] = str(equal)
    share = stats.compute_disturbed_share(pairs)
    disturbance = "not readable here" if share != share else f"{100 * share:.1f} %"
    readings["runs that waited for a CPU"] = disturbance
    readings |= record.format_readings()
    reach = stats.half_width(measure.pool_variance(trials))
    readings["smallest error of a speed-up here"] = f"{100 * reach:.1f} %"
    claimed = any(t.ratio is not None and t.ratio.clear for t in finals)
    behind = [pair for group in groups for pair in group] or pairs
    unusable = (stats.count_unusable(behind), len(behind))
    readings["pairs without an interval, as their runs waited"] = "{} of {}".format(*unusable)
    judged = noise.judge_noise(
        record, share, equal, unusable=unusable, reach=reach, claimed=claimed
    )
    return readings, judged
