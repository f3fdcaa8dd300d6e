"""Every exact transform, in every way that a recipe may hold it: alone, in order, shuffled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from random import Random

from ortune.core.plugins import catalog
from ortune.core.step import Transform
from ortune.transforms.raise_opset import RaiseOpset

TOLD = {"fix-dims", "ir-version", "lower-opset"}
"""Steps that refuse to run without being told what to do."""
LATEST = 23
"""Opset that models are raised to in the orders of all: some transforms write for no older one."""


def transforms() -> list[Transform]:
    """Return all with their default fields, in stage order, then by name.

    Those whose defaults ask for nothing do nothing; those that change inputs or outputs on
    request, or refuse to run without settings, are left out.
    """
    names = [name for name in catalog.list_plugins(Transform) if name not in TOLD]
    every = [catalog.load_plugin(Transform, name)() for name in names]
    kept = [step for step in every if step.keeps_io]
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
    """Yield name and steps: each alone, all in order, all in so many shuffled orders.

    A transform that writes for a newer opset only stands behind a step that raises the model, as
    in a search.
    """
    for step in transforms():
        yield step.name(), [RaiseOpset(to=step.needs_opset)] * bool(step.needs_opset) + [step]
    yield "all in order", together()
    for seed in range(shuffles):
        yield f"shuffle {seed}", shuffled(together(), seed)


def together() -> list[Transform]:
    """Return all in order, on an opset that each can write for."""
    every = transforms()
    return [RaiseOpset(to=LATEST) if isinstance(one, RaiseOpset) else one for one in every]


def edits(steps: Sequence[Transform], counts: Sequence[int]) -> int:
    """Return how many edits there were, the raising before a transform apart."""
    pairs = zip(steps, counts, strict=True)
    return sum(n for step, n in pairs if len(steps) == 1 or not isinstance(step, RaiseOpset))
