"""Which samples calibrate, which the search sees, and which only finalists see."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ortune.core.errors import BadData
from ortune.data.feeds import Feeds

FEWEST = 8
"""Below this many samples a split would leave parts too small to say anything."""
CALIBRATION = 128
"""More samples hardly change a range, and calibration takes its time."""
_SHOWN = 3


@dataclass(frozen=True)
class Parts:
    """Indices into the feeds, each in ascending order.

    Attributes:
        calibration: What quantizers observe; into the calibration feeds with `own_calibration`.
        search: What the search scores on.
        final: What only finalists are scored on.
        own_calibration: Calibration samples were given apart.
        notes: What a person should know.
    """

    calibration: tuple[int, ...]
    search: tuple[int, ...]
    final: tuple[int, ...]
    own_calibration: bool = False
    notes: tuple[str, ...] = ()


def split(feeds: Feeds, calibration: Feeds | None = None) -> Parts:
    """Split into calibration (25 %, at most 128), search (50 %) and final (the rest).

    With calibration feeds of their own the data are split into search (60 %) and final. Equal
    samples and samples of one group land in the same part; classes are spread evenly where labels
    are classes. The split depends on the samples' contents alone, not on their order or names.
    Below 8 samples, or 3 groups, all parts share all samples, and a note says so.

    Raises:
        BadData: A calibration sample is also in the data.
    """
    if calibration is not None:
        _disjoint(feeds, calibration)
    units = _units(feeds)
    everything = tuple(range(feeds.count))
    own = None if calibration is None else tuple(range(calibration.count))
    if feeds.count < FEWEST or len(units) < 3:
        few = (
            f"only {feeds.count} samples"
            if feeds.count < FEWEST
            else f"only {len(units)} independent groups of samples"
        )
        note = f"{few}: calibration, search and final scores share them; scores are optimistic"
        if own is not None:
            note = f"{few}: search and final scores share them; scores are optimistic"
        return Parts(own or everything, everything, everything, own is not None, (note,))
    if own is not None:
        search, final = _deal(feeds, units, (feeds.count * 6 // 10,))
        return Parts(own, search, final, True)
    quota = min(feeds.count // 4, CALIBRATION)
    first, search, final = _deal(feeds, units, (quota, feeds.count // 2))
    return Parts(first, search, final)


def _disjoint(feeds: Feeds, calibration: Feeds) -> None:
    places: dict[str, int] = {}
    for at, digest in enumerate(feeds.digests):
        places.setdefault(digest, at)
    both = [(at, places[d]) for at, d in enumerate(calibration.digests) if d in places]
    if both:
        shown = ", ".join(f"{one} = {two}" for one, two in both[:_SHOWN])
        more = f" and {len(both) - _SHOWN} more" if len(both) > _SHOWN else ""
        raise BadData(
            f"{len(both)} calibration samples are also in the data "
            f"(calibration sample = data sample, from 0: {shown}{more})",
            fix="take them out of one of the two, or leave --calibration out",
        )


def _units(feeds: Feeds) -> list[list[int]]:
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
    found: dict[int, list[int]] = {}
    for at in range(feeds.count):
        found.setdefault(root(at), []).append(at)
    return list(found.values())


def _deal(
    feeds: Feeds, units: Sequence[list[int]], quotas: Sequence[int]
) -> list[tuple[int, ...]]:
    """Deal units to parts of at most `quotas` samples, and one more part for the rest.

    Units come class by class, in an order drawn from their contents; each goes to the part that is
    furthest behind its share, so every class is spread in the parts' proportions. A part that
    would stay empty, because groups are large, gets the smallest unit of the fullest part.
    """
    sizes = [*quotas, feeds.count - sum(quotas)]
    dealt: list[list[list[int]]] = [[] for _ in sizes]
    filled, seen = [0] * len(sizes), 0
    for unit in sorted(units, key=lambda unit: _order(feeds, unit)):
        seen += len(unit)
        fits = [at for at, quota in enumerate(quotas) if filled[at] + len(unit) <= quota]
        part = max(
            [*fits, len(quotas)], key=lambda at: sizes[at] * seen / feeds.count - filled[at]
        )
        dealt[part].append(unit)
        filled[part] += len(unit)
    for empty in [members for members in dealt if not members]:
        fullest = max(dealt, key=len)
        empty.append(fullest.pop(fullest.index(min(fullest, key=len))))
    return [tuple(sorted(at for unit in members for at in unit)) for members in dealt]


def _order(feeds: Feeds, unit: Sequence[int]) -> tuple[str, str]:
    """Return a sort key: the class, then a digest of the contents."""
    smallest = min(feeds.digests[at] for at in unit)
    shuffled = hashlib.sha256(smallest.encode()).hexdigest()
    if feeds.labels is None or not _few(feeds.labels):
        return "", shuffled
    return min(repr(feeds.labels[at]) for at in unit), shuffled


def _few(labels: Sequence[Any]) -> bool:
    """Say whether labels are classes of which each has some samples."""
    if not all(isinstance(label, (int, str)) for label in labels):
        return False
    return 2 <= len(set(labels)) <= max(2, len(labels) // 4)
