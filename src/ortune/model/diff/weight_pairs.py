"""Node pairs of two models by weights: equal, scaled or in another order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeAlias

import numpy as np

from ortune.model.diff.graphs import Graphs
from ortune.model.diff.weights import likeness, unit

_MATRIX = 64
"""Elements from which a weight is looked for among scaled ones."""
_TELLING = 16
"""Weights from this many elements on tell one node from another."""

Reader: TypeAlias = tuple[int, int]
"""A weight, and the one node that computes with it."""


def classes(
    graphs: Graphs, keyed: Iterable[tuple[Hashable, int]]
) -> list[tuple[list[int], list[int]]]:
    """Return the nodes of one key in either model, where both have some."""
    found: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for key, node in keyed:
        found[key][graphs.side(node)].append(node)
    return [sides for sides in found.values() if sides[0] and sides[1]]


def readers(graphs: Graphs) -> Iterator[Reader]:
    """Yield weights that tell nodes apart, each with the one node that computes with it."""
    for value, held in graphs.constants.items():
        if held.size < _TELLING or (not held.floating and held.tensor.dtype.itemsize > 1):
            continue
        users = {user for user in graphs.users[value] if not graphs.constant(user)}
        if len(users) == 1:
            yield value, users.pop()


def equal(graphs: Graphs, readers: list[Reader]) -> list[tuple[int, int]]:
    """Return nodes whose weights have the same content, as no others do."""
    held = graphs.constants
    keyed = (((held[v].digest, held[v].scale is None), node) for v, node in readers)
    found = {(a[0], b[0]) for a, b in classes(graphs, keyed) if len(set(a)) == len(set(b)) == 1}
    return sorted(found)


def reordered(graphs: Graphs, readers: list[Reader]) -> list[tuple[int, int]]:
    """Return nodes whose weights hold the same numbers in another order, as no others do."""
    held, side = graphs.constants, graphs.side
    sizes = [{held[v].size for v, n in readers if side(n) == which} for which in (0, 1)]
    keyed = (
        ((held[v].size, *held[v].moments[:2]), node)
        for v, node in readers
        if held[v].size in sizes[0] & sizes[1] and held[v].scale is None
    )
    found = [(a[0], b[0]) for a, b in classes(graphs, keyed) if len(a) == len(b) == 1]
    return [(a, b) for a, b in found if graphs.role[a] == graphs.role[b]]


def scaled(graphs: Graphs, readers: list[Reader]) -> list[tuple[int, int]]:
    """Return nodes whose weights are alike but for factors along an axis, as no others."""
    held = graphs.constants
    shapes: dict[tuple[int, ...], tuple[list[Reader], list[Reader]]]
    shapes = defaultdict(lambda: ([], []))
    for value, node in readers:
        if len(held[value].shape) > 1 and held[value].size >= _MATRIX:
            shapes[held[value].shape][graphs.side(node)].append((value, node))
    found = []
    for left, right in shapes.values():
        if not left or not right:
            continue
        grids = [[held[value].grid for value, _ in side] for side in (left, right)]
        flat = [np.stack([unit(grid).ravel() for grid in side]) for side in grids]
        score = np.abs(flat[0] @ flat[1].T)
        for a, b in enumerate(score.argmax(1)):
            if score[:, b].argmax() == a and likeness(grids[0][a], grids[1][b]) > 0.95:
                found.append((left[a][1], right[b][1]))
    return found
