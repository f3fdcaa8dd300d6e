"""Which samples calibrate, which the search sees, and which only finalists see."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ortune.core.errors import BadData
from ortune.core.wording import format_count, join_names
from ortune.core.workload import spread_indices
from ortune.data.feeds import Feeds

FEWEST = 8
"""Below this many samples a split would leave parts too small to say anything."""
CALIBRATION = 128
"""More samples hardly change a range, and calibration takes its time."""
_SHOWN = 3


@dataclass(frozen=True)
class Parts:
    """Indices into the feeds, each in ascending order."""

    # What quantizers observe; into the calibration feeds where these were given.
    calibration: tuple[int, ...]
    search: tuple[int, ...]  # what the search scores on
    # What only finalists are scored on; the same as `search` where there are too few.
    final: tuple[int, ...]
    notes: tuple[str, ...] = ()


def split_samples(
    feeds: Feeds, calibration: Feeds | None = None, min_final: int | None = None
) -> Parts:
    """Split into calibration (25 %, at most 128), search (50 %) and final (the rest).

    With calibration feeds of their own the data are split into search (60 %) and final. Equal
    samples and samples of one group land in the same part; classes are spread evenly where labels
    are classes. The split depends on the samples' contents alone, not on their order or names.
    Below 8 samples, or 3 groups, all parts share all samples, and a note says so.

    Args:
        calibration: Samples to calibrate on, given apart.
        min_final: Independent samples (groups count as one) that a proof needs. Where these shares
            hold out fewer, so many are held out, if `compute_split_minimum` allows; the rest is
            then divided into calibration and search as before, 1 to 2.

    Raises:
        BadData: A calibration sample is also in the data.
    """
    if calibration is not None:
        require_disjoint(feeds, calibration)
    classes = feeds.labels
    if classes is not None:  # of which each has some samples
        named = all(isinstance(label, (int, str)) for label in classes)
        if not (named and 2 <= len(set(classes)) <= max(2, len(classes) // 4)):
            classes = None

    def make_key(unit: Sequence[int]) -> tuple[str, str]:
        """Return the class, and a digest of the contents."""
        smallest = min(feeds.digests[at] for at in unit)
        kind = "" if classes is None else min(repr(classes[at]) for at in unit)
        return kind, hashlib.sha256(smallest.encode()).hexdigest()

    units = sorted(_group_units(feeds), key=make_key)
    apart = calibration is not None
    everything = tuple(range(feeds.count))
    observed = everything if calibration is None else tuple(range(calibration.count))
    if feeds.count < FEWEST or len(units) < 3:
        few = f"{format_count(len(units), 'independent group')} of samples"
        if feeds.count < FEWEST:
            few = format_count(feeds.count, "sample")
        sharing = "search and final scores" if apart else "calibration, search and final scores"
        note = f"only {few}: {sharing} share them; scores are optimistic"
        return Parts(observed, everything, everything, (note,))
    quotas: tuple[int, ...] = (min(feeds.count // 4, CALIBRATION), feeds.count // 2)
    if apart:
        quotas = (feeds.count * 6 // 10,)
    *kept, final = _deal_units(units, quotas)
    least = min_final or 0
    if len(final) < least and len(units) >= compute_split_minimum(least):
        remaining, final = _deal_units(units, (len(units) - least,), weigh=lambda unit: 1)
        third = min(sum(map(len, remaining)) // 3, CALIBRATION)
        kept = [remaining] if apart else _deal_units(remaining, (third,))
    *first, search = map(_list_indices, kept)
    return Parts(observed if apart else first[0], search, _list_indices(final))


def extend_parts(
    stored: Mapping[str, Sequence[int]],
    parts: Mapping[str, Sequence[int]],
    limits: Mapping[str, int],
) -> dict[str, tuple[int, ...]] | None:
    """Return parts with all samples of the stored ones, and more of their own where these fit.

    No sample changes its part: what was held out from the choices so far stays held out.

    Args:
        stored: Part -> samples that a run has used.
        parts: The same parts whole, as the samples are divided now.
        limits: Samples that each may have; a stored one that has more keeps them.

    Returns:
        None where the samples are divided otherwise now.
    """
    if any(not set(stored.get(name, ())) <= set(part) for name, part in parts.items()):
        return None
    extended = {}
    for name, part in parts.items():
        used = set(stored.get(name, ()))
        unused = [at for at in part if at not in used]
        room = max(0, limits[name] - len(used))
        added = (unused[place] for place in spread_indices(len(unused), room))
        extended[name] = tuple(sorted({*used, *added}))
    return extended


def compute_split_minimum(min_final: int) -> int:
    """Return how many independent samples there must be for `min_final` to be held out.

    A third of all, and twice `FEWEST`, are left to calibrate and to choose on.
    """
    return max(min_final + 2 * FEWEST, math.ceil(3 * min_final / 2))


def count_independent(feeds: Feeds, indices: Sequence[int]) -> int:
    """Count samples of which none equals another or shares its group."""
    selected = set(indices)
    return sum(not selected.isdisjoint(unit) for unit in _group_units(feeds))


def find_distinct(feeds: Feeds, indices: Sequence[int]) -> tuple[int, ...]:
    """Return the places in `indices` of samples that equal none before them."""
    first: dict[str, int] = {}
    for place, index in enumerate(indices):
        first.setdefault(feeds.digests[index], place)
    return tuple(first.values())


def require_disjoint(feeds: Feeds, calibration: Feeds) -> None:
    """Refuse samples to calibrate on that are also among those to score on.

    Raises:
        BadData: Some are.
    """
    places: dict[str, int] = {}
    for at, digest in enumerate(feeds.digests):
        places.setdefault(digest, at)
    both = [(at, places[d]) for at, d in enumerate(calibration.digests) if d in places]
    if both:
        shown = join_names([f"{sample} = {place}" for sample, place in both], _SHOWN)
        raise BadData(
            f"{format_count(len(both), 'calibration sample')} also in the data "
            f"(calibration sample = data sample, from 0: {shown})",
            fix="take them out of one of the two, or leave --calibration out",
        )


def _group_units(feeds: Feeds) -> list[list[int]]:
    """Join samples that must not be parted: of one group, or equal, also through others."""
    parent = list(range(feeds.count))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    first: dict[tuple[str, str], int] = {}
    for at in range(feeds.count):
        keys = [("digest", feeds.digests[at])]
        if feeds.groups is not None:
            keys.append(("group", feeds.groups[at]))
        for key in keys:
            parent[root(at)] = root(first.setdefault(key, at))
    units: dict[int, list[int]] = {}
    for at in range(feeds.count):
        units.setdefault(root(at), []).append(at)
    return list(units.values())


def _deal_units(
    units: Sequence[list[int]], quotas: Sequence[int], weigh: Callable[[list[int]], int] = len
) -> list[list[list[int]]]:
    """Deal units to parts of at most `quotas` samples, and one more part for the rest.

    Units come class by class, in an order drawn from their contents; each goes to the part that is
    furthest behind its share, so every class is spread in the parts' proportions. A part that
    would stay empty, because groups are large, gets the smallest unit of the fullest part. A unit
    counts its samples towards a quota, or what `weigh` says.
    """
    total = sum(map(weigh, units))
    sizes = [*quotas, total - sum(quotas)]
    dealt: list[list[list[int]]] = [[] for _ in sizes]
    filled, seen = [0] * len(sizes), 0
    for unit in units:
        seen += weigh(unit)
        fits = [at for at, quota in enumerate(quotas) if filled[at] + weigh(unit) <= quota]
        part = max([*fits, len(quotas)], key=lambda at: sizes[at] * seen / total - filled[at])
        dealt[part].append(unit)
        filled[part] += weigh(unit)
    for empty in [members for members in dealt if not members]:
        fullest = max(dealt, key=len)
        empty.append(fullest.pop(fullest.index(min(fullest, key=len))))
    return dealt


def _list_indices(units: Sequence[list[int]]) -> tuple[int, ...]:
    return tuple(sorted(at for unit in units for at in unit))
