"""What recorded searches taught: the numbers that a search begins with, read from one file.

``priors.json`` holds three parts. ``fitted`` is written by ``python -m benchmarks.search.fit``
from recorded tables, with the error of each table by the fit to the others. ``defaults`` are for
what no table has, each with its source. ``levels`` are statistical levels and units, each with
its reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal


@dataclass(frozen=True)
class FeaturePrior:
    """What is expected of a feature: an intercept, and a slope on what physics says of it."""

    mean: float
    sd: float
    slope: float = 1.0


class Fitted:
    """The numbers of the file.

    Attributes:
        build: Role of a step -> seconds that it takes: see `durations`.
        numbers: Other numbers that were fitted.
        sizes: Quantizer -> bytes of the files over the original's.
        gains: Instruction set -> times as fast as floats, by its width.
        levels: Statistical levels and units.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        of_tables = data["fitted"]
        self.build: Mapping[str, Mapping[str, float]] = of_tables["build"]
        self.numbers: Mapping[str, float] = of_tables["numbers"]
        self.sizes: Mapping[str, float] = _values(data["defaults"]["sizes"]) | of_tables["sizes"]
        self.gains: Mapping[str, float] = _values(data["defaults"]["gains"])
        self.levels: Mapping[str, float] = _values(data["levels"])
        self._parts = {number: _parts(data, number) for number in ("latency", "strain")}

    def part(self, number: Literal["latency", "strain"], feature: str) -> FeaturePrior:
        """Return what is expected of a feature, or of its kind where no table has it.

        What is said of a kind's unknown members is wider than what its known ones have in common.
        Of the hint of an unknown backend its precision is known.
        """
        parts, kind = self._parts[number], feature.partition(":")[0]
        precision = f"{kind}:*/{feature.rpartition('/')[2]}"
        names = (feature, precision, f"{kind}:unknown", f"{kind}:", "")
        return next(parts[name] for name in names if name in parts)


def _parts(data: Mapping[str, Any], number: str) -> dict[str, FeaturePrior]:
    known = data["defaults"][number] | data["fitted"][number]
    return {
        name: FeaturePrior(one["mean"], one["sd"], one.get("slope", 1.0))
        for name, one in known.items()
    }


def _values(some: Mapping[str, Any]) -> dict[str, float]:
    return {name: one["value"] for name, one in some.items()}


@lru_cache(1)
def load() -> Fitted:
    """Read the package's file, once."""
    path = files("ortune.search.expectation") / "priors.json"
    return Fitted(json.loads(path.read_text(encoding="utf-8")))
