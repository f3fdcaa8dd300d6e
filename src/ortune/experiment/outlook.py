"""What the samples can prove of a budget, said before anything is tried."""

from __future__ import annotations

from collections.abc import Mapping

from ortune.core import wording as say
from ortune.core.budget import Budget
from ortune.core.metric import Kind
from ortune.data import split
from ortune.data.feeds import Feeds
from ortune.experiment.context import ScoredPart
from ortune.experiment.samples import Division
from ortune.measurement.accuracy import unresolved

_LIST = (
    "--evaluate returns a list, whose samples cannot be kept apart: accuracy is likely at best; "
    "a generator that yields (record, group) lets it be proved"
)


def outlook(
    budget: Budget, wanted: int | None, feeds: Feeds | None, parts: Mapping[str, ScoredPart]
) -> str:
    """Say how many samples are held out, whether they can prove the budget, and how many would.

    Args:
        wanted: Independent samples that prove an unchanged answer; None when none do.
        feeds: The samples; None with an evaluate function that returns a list.
        parts: ``search`` and ``final``.
    """
    division = {name: part.indices for name, part in parts.items()}
    scored = len(set(division["search"]) | set(division["final"]))
    fine = unresolved(budget, scored, parts["search"].records)
    texts = [_LIST if feeds is None else _held_out(budget, wanted, feeds, division), fine]
    return "; ".join(text for text in texts if text)


def _held_out(budget: Budget, wanted: int | None, feeds: Feeds, division: Division) -> str:
    independent = split.independent(feeds, range(feeds.count))
    noun, samples = "sample", say.count(feeds.count, "sample")
    if independent < feeds.count:
        noun = "different sample" if feeds.groups is None else "group"
        different = "different ones" if feeds.groups is None else "independent groups"
        samples = f"{samples} in {independent:,} {different}"
    final = division["final"]
    shared = not set(final).isdisjoint(division["search"])
    held = 0 if shared else split.independent(feeds, final)
    kept = f"{samples}: {held or 'none'} {'is' if held < 2 else 'are'} held out"
    if wanted is None:
        return f"{kept}; {budget} cannot be proved by samples, accuracy is likely at best"
    if held >= wanted:
        return f"{kept}, enough to prove the budget if none of them shows a loss"
    least = split.least(wanted)
    # Of groups it is exact where they are of one size.
    about = "about " if noun == "group" and budget.metric.kind() is not Kind.SHARE else ""
    more = "more --time" if independent >= least else about + say.count(least, noun)
    return f"{kept}, which can make accuracy likely at best; {more} would let it be proved"
