"""Coordinate descent over a backend's settings: the walk, and what a setting must gain.

`optimize` walks over recorded trials and `tune` over live pairs; both keep a setting by `GAIN`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ortune.core.backend import Backend

GAIN = 0.99
"""A setting is kept where latency falls below this share of the best before it."""


def walk(
    best: Callable[[], Backend],
    coordinates: Callable[[Backend], Mapping[str, Sequence[Backend]]],
) -> Iterator[tuple[str, Backend]]:
    """Yield setting and candidate, each coordinate once, always around the present best.

    The setting that is worth most comes first; what the best was on the way is not offered again.
    """
    seen = {best()}
    done: set[str] = set()
    while left := [name for name in coordinates(best()) if name not in done]:
        done.add(left[0])
        for candidate in coordinates(best())[left[0]]:
            if candidate not in seen:
                seen.add(candidate)
                yield left[0], candidate
