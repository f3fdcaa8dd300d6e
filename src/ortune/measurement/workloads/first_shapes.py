"""The first run at every shape: what recompiles, replans or allocates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

from ortune.core.workload import Driven, Rig, Span, Workload, spread_indices
from ortune.measurement.arrivals import lanes
from ortune.measurement.arrivals.lanes import make_shape_sort_key

_SHAPES = 64
_COSTLY = 1.5


@dataclass(frozen=True)
class FirstShapes(Workload):
    """A fresh session meets every shape of the data once: an entry is a first run at a shape.

    Every burst opens a session of its own and begins at another shape, as the session's very
    first run pays for more than its shape. Then all shapes are run once more, to compare.
    """

    measure: ClassVar[str] = "latency of the first run at a shape"
    scheduled: ClassVar[bool] = True

    def cycle(self, shapes: Sequence[str]) -> Sequence[int]:
        """Return the first sample of every shape, at most 64, spread over them."""
        first: dict[str, int] = {}
        for index, shape in enumerate(shapes):
            first.setdefault(shape, index)
        indices = list(first.values())
        return [indices[k] for k in spread_indices(len(indices), _SHAPES)]

    def drive(self, rig: Rig, span: Span) -> Driven:
        """Run all shapes twice on a fresh session; the span only says where to begin."""
        count = len(rig.shapes)
        turn = [(span.at + k) % count for k in range(count)]
        times: dict[str, list[int]] = {rig.shapes[k]: [] for k in turn}
        with rig.fresh() as lane:
            waiting = lanes.RunQueueMeter(lane)
            for position in (*turn, *turn):
                start = lane.clock()
                lanes.run_rounds(lane, position)
                times[rig.shapes[position]].append(lane.clock() - start)
            share = waiting.share()
        first = [times[rig.shapes[k]][0] for k in turn]
        opening = rig.shapes[turn[0]]
        details = {"shapes": times, "opening": opening}
        return Driven(first, [share] * count, 2 * count, details)

    def results(
        self, latency_ns: Sequence[int], details: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return ``per_shape``: medians of the first and of the second run, and their ratio.

        A session's very first run is told apart where bursts began at several shapes.
        """
        firsts: dict[str, list[int]] = {}
        agains: dict[str, list[int]] = {}
        opening: list[int] = []
        for detail in details:
            for shape, ns in detail["shapes"].items():
                agains.setdefault(shape, []).append(ns[-1])
                first = opening if shape == detail["opening"] else firsts.setdefault(shape, [])
                first.append(ns[0])
        table = {
            shape: {
                "first_ns": median(firsts[shape]),
                "again_ns": median(agains[shape]),
                "times": median(firsts[shape]) / max(1, median(agains[shape])),
            }
            for shape in sorted(firsts, key=make_shape_sort_key)
        }
        return {
            "per_shape": table,
            "session_first_ns": median(opening) if opening else None,
            "notes": _make_notes([row["times"] for row in table.values()]),
        }


def _make_notes(times: Sequence[float]) -> list[str]:
    if not times:
        return ["the data has only one shape: no first run at a new shape can be timed"]
    middle = median(times)
    phrase = "costs" if middle >= _COSTLY else "costs hardly more:"
    return [f"the first run at a shape {phrase} {middle:.2f} times a later one (median of shapes)"]
