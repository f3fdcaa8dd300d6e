"""Which regions hand values on to which: what flows between two is rounded for either."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ortune.model.graph.match import label
from ortune.regions.grouping import Region

_MOVED = "Flatten Identity MaxPool Pad Reshape Slice Split Squeeze Transpose Unsqueeze"
_MOVES = frozenset(_MOVED.split())
"""Operators behind which values are the same ones."""


def neighbours(model: ir.Model, regions: Sequence[Region]) -> tuple[tuple[str, str], ...]:
    """Return pairs of regions of which one reads what the other makes, in the regions' order.

    Args:
        model: With the names that the regions have.
    """
    owner = {name: region.name for region in regions for name in region.nodes}
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for node in model.graph:
        maker = owner.get(str(node.name))
        if maker is not None:
            found[maker] |= dict.fromkeys(_readers(node, owner))
    return tuple(
        (region.name, other)
        for region in regions
        for other in found[region.name]
        if other != region.name
    )


def _readers(node: ir.Node, owner: dict[str, str]) -> Iterator[str]:
    """Yield the regions that read a node's outputs, moved or not."""
    for value in node.outputs:
        for reader, _ in value.uses():
            if (region := owner.get(str(reader.name))) is not None:
                yield region
            elif label(reader) in _MOVES:
                yield from _readers(reader, owner)
