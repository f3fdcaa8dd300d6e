"""Every exact transform, in every way that a recipe may hold it: alone, in order, shuffled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from random import Random

from ortune.core import catalog
from ortune.core.step import Transform

LATEST = 20
"""Opset that a sweep raises models to, where transforms could not write for theirs."""


FOREIGN = {"transformer-fusion"}
"""Not ours, and a process of its own for every model."""


def transforms() -> list[Transform]:
    """Return all with their default fields, in stage order, then by name.

    Those whose defaults ask for nothing do nothing; those that change inputs or outputs on
    request are left out.
    """
    every = [catalog.load(Transform, name)() for name in catalog.names(Transform)]
    kept = [step for step in every if step.keeps_io and step.name() not in FOREIGN]
    return sorted(kept, key=lambda step: (step.stage, step.name()))


def shuffled(steps: Sequence[Transform], seed: int) -> list[Transform]:
    """Return an order in which each stage is shuffled by itself."""
    random = Random(seed)
    found: list[Transform] = []
    for _, group in itertools.groupby(steps, key=lambda step: step.stage):
        stage = list(group)
        random.shuffle(stage)
        found += stage
    return found


def orders(shuffles: int) -> Iterator[tuple[str, list[Transform]]]:
    """Yield name and steps: each alone, all in order, all in so many shuffled orders."""
    steps = transforms()
    for step in steps:
        yield step.name(), [step]
    yield "all in order", steps
    for seed in range(shuffles):
        yield f"shuffle {seed}", shuffled(steps, seed)
