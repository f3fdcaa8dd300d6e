"""Who is ahead at which batch, from the rows of a bench."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ortune.analysis.benchmark.crossover import Crossover, crossovers

SETS, BLOCKS, ENTRIES = 3, 8, 6


def row(backend: str, batch: int, ns: float, *, noise: float = 0.002, **other: Any) -> Any:
    rng = np.random.default_rng([ord(backend[0]), batch])
    taken = ns * np.exp(rng.normal(0, noise, (SETS, BLOCKS, ENTRIES)))
    return {
        "model": "m.onnx",
        "backend": backend,
        "batch": batch,
        "again": False,
        "error": None,
        "turns": [[[int(x) for x in block] for block in one] for one in taken],
        "waited": [[[0.0] * ENTRIES] * BLOCKS] * SETS,
        "runs_each": [1] * SETS,
    } | other


def sweep(times: Mapping[int, tuple[float, float]], **other: Any) -> list[Crossover]:
    """Cross A and B, whose nanoseconds a run are given for every batch."""
    return crossovers(
        [
            row(name, batch, ns, **other)
            for batch, both in times.items()
            for name, ns in zip("AB", both, strict=True)
        ]
    )


def test_the_crossover_is_named_and_interpolated() -> None:
    (found,) = sweep({1: (1e6, 2e6), 4: (4e6, 4.4e6), 8: (8.8e6, 8e6), 16: (20e6, 16e6)})
    assert found.batch == pytest.approx(5.66, rel=0.02)
    assert str(found) == (
        f"A is ahead up to batch 4, B from 8 on; crossover at about batch {found.batch:.3g}"
    )
    assert found.ratios[1].value == pytest.approx(2, rel=0.01)
    assert [found.ahead(b) for b in (1, 4, 8, 16)] == ["A", "A", "B", "B"]


def test_without_a_change_there_is_no_crossover() -> None:
    (found,) = sweep({1: (1e6, 2e6), 2: (2e6, 3e6), 4: (4e6, 5e6)})
    assert found.batch is None
    assert str(found) == "A is ahead at every batch; no crossover"


def test_equal_contestants_are_inside_the_noise() -> None:
    (found,) = sweep({1: (1e6, 1e6), 8: (8e6, 8e6)}, noise=0.03)
    assert found.batch is None
    assert str(found) == "A and B: inside the noise at 1, 8, no crossover"


def test_the_noise_between_the_sides_is_told() -> None:
    (found,) = sweep({1: (1e6, 1.3e6), 4: (4e6, 4e6), 16: (20e6, 16e6)})
    assert str(found).startswith("A is ahead up to batch 1, B from 16 on; crossover at about")
    assert str(found).endswith("; inside the noise at 4")
    assert found.batch is not None
    assert 2 < found.batch < 8


def test_sides_that_change_twice_have_no_crossover() -> None:
    (found,) = sweep({1: (1e6, 2e6), 2: (2e6, 1e6), 4: (1e6, 2e6), 8: (1e6, 2e6)})
    assert found.batch is None
    assert str(found) == "the sides change more than once: A at 1, B at 2, A at 4-8"


def test_failed_rows_and_lone_batches_are_left_out() -> None:
    rows = [row(name, batch, 1e6) for name in "ABC" for batch in (1, 2)]
    rows[1]["error"] = "out of memory"
    rows += [row("A", 1, 1e6, again=True)]
    assert [(one.one, one.two) for one in crossovers(rows)] == [("B", "C")]
    assert crossovers(rows[2:3]) == []


def test_models_are_named_where_there_are_several() -> None:
    rows = [row("cpu", b, b * 1e6, model=m) for m in ("x/a.onnx", "x/b.onnx") for b in (1, 2)]
    (found,) = crossovers(rows)
    assert (found.one, found.two) == ("a.onnx on cpu", "b.onnx on cpu")


def test_rows_of_unequal_counts_are_compared_where_their_entries_are_alike() -> None:
    def few(batch: int, ns: float) -> Any:
        found = row("B", batch, ns, alike=True)
        cut = {key: [[b[:2] for b in s] for s in found[key]] for key in ("turns", "waited")}
        return found | cut

    rows = [row("A", 1, 1e6, alike=True), few(1, 2e6), row("A", 2, 1e6, alike=True), few(2, 3e6)]
    (found,) = crossovers(rows)
    assert [found.ratios[b].value for b in (1, 2)] == pytest.approx([2, 3], rel=0.01)
