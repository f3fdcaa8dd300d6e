"""A mix of input shapes, one run after another."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ortune.core.errors import BadData
from ortune.core.workload import Driven, Rig, Span, Workload, spread_indices
from ortune.measurement.arrivals import lanes
from ortune.measurement.arrivals.lanes import make_shape_sort_key, summarize_tails

_CYCLE = 256


@dataclass(frozen=True)
class Shapes(Workload):
    """One run after another over many shapes: an entry is the mean over the burst's shapes.

    The mix is the data's own, up to 256 samples spread over it, unless `mix` gives one. All
    entries of a burst are equal: long inputs count by the time they take.

    Attributes:
        mix: Weights such as ``["1x16=7", "1x128=3"]``; others are left out. Empty: as in the data.
        order: Of the runs: as in the ``data``, ``shuffled``, or ``sorted`` by shape.
        seed: Of the shuffling.
    """

    measure: ClassVar[str] = "mean latency over the shapes"
    whole: ClassVar[bool] = True

    mix: tuple[str, ...] = ()
    order: Literal["data", "shuffled", "sorted"] = "data"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for text in self.mix:
            shape, _, weight = text.rpartition("=")
            good = shape and weight.replace(".", "", 1).isdecimal() and float(weight) > 0
            self.demand(bool(good), "mix", 'SHAPE=WEIGHT, such as "1x16=7"')

    def cycle(self, shapes: Sequence[str]) -> Sequence[int]:
        """Return samples in the mix's shares.

        Raises:
            BadData: No sample has a shape that the mix names.
        """
        chosen = (
            self._mix_shapes(list(shapes))
            if self.mix
            else list(spread_indices(len(shapes), _CYCLE))
        )
        if self.order == "shuffled":
            random.Random(self.seed).shuffle(chosen)
        if self.order == "sorted":
            chosen.sort(key=lambda index: make_shape_sort_key(shapes[index]))
        return chosen

    def _mix_shapes(self, shapes: list[str]) -> list[int]:
        """Draw from every shape's samples in turn, each step the shape that is most behind."""
        weights = {text.rpartition("=")[0]: float(text.rpartition("=")[2]) for text in self.mix}
        having: dict[str, list[int]] = {shape: [] for shape in weights}
        for index, shape in enumerate(shapes):
            if shape in having:
                having[shape].append(index)
        for shape, indices in having.items():
            if not indices:
                available = ", ".join(sorted(set(shapes), key=make_shape_sort_key)[:8])
                raise BadData(
                    f"no sample has the shape {shape} of the mix", fix=f"use {available}"
                )
        total, counts = sum(weights.values()), dict.fromkeys(weights, 0)
        chosen = []
        for step in range(1, _CYCLE + 1):
            behind = {s: step * w / total - counts[s] for s, w in weights.items()}
            shape = max(behind, key=lambda s: behind[s])
            chosen.append(having[shape][counts[shape] % len(having[shape])])
            counts[shape] += 1
        return chosen

    def drive(self, rig: Rig, span: Span) -> Driven:
        lane = rig.lanes[0]
        dropped = lanes.settle_lane(lane, span)
        waiting = lanes.RunQueueMeter(lane)
        times: dict[str, list[int]] = {}
        for position in range(span.at, span.at + span.total):
            calls = lane.calls(position)
            start = lane.clock()
            for session, feeds in calls:
                session.run(feeds)
            shape = rig.shapes[position % len(rig.shapes)]
            times.setdefault(shape, []).append(lane.clock() - start)
        share = waiting.share()
        mean = sum(map(sum, times.values())) // span.total
        return Driven(
            [mean] * span.runs, [share] * span.runs, dropped + span.total, {"shapes": times}
        )

    def results(
        self, latency_ns: Sequence[int], details: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return ``per_shape``: runs, share of the runs and of the time, mean and percentiles."""
        times: dict[str, list[int]] = {}
        for detail in details:
            for shape, ns in detail["shapes"].items():
                times.setdefault(shape, []).extend(ns)
        runs, time = sum(map(len, times.values())), sum(map(sum, times.values()))
        return {
            "per_shape": {
                shape: {
                    "runs": len(ns),
                    "share_of_runs": len(ns) / runs,
                    "share_of_time": sum(ns) / max(1, time),
                    "mean_ns": sum(ns) / len(ns),
                    **summarize_tails(ns, "latency"),
                }
                for shape, ns in sorted(
                    times.items(), key=lambda item: make_shape_sort_key(item[0])
                )
            }
        }
