"""Coordinate descent: the walk around the best so far, one coordinate after the other.

`optimize` walks over recorded trials, `tune` over live pairs of a backend's settings, and a load
test's goal over how a bundle is served: they differ in what a candidate is and when it is better.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

GAIN = 0.99
"""A backend's setting is kept where latency falls below this share of the best before it."""


def walk_coordinates(
    best: Callable[[], T], coordinates: Callable[[T], Mapping[str, Iterable[T]]]
) -> Iterator[tuple[str, T]]:
    """Yield coordinate and candidate, each coordinate once, always around the present best.

    The coordinate that is worth most comes first; what the best was on the way is not offered
    again. Candidates that are an iterator may end it by what became of the last one.
    """
    seen = {best()}
    done: set[str] = set()
    while remaining := [name for name in coordinates(best()) if name not in done]:
        done.add(remaining[0])
        for candidate in coordinates(best())[remaining[0]]:
            if candidate not in seen:
                seen.add(candidate)
                yield remaining[0], candidate
