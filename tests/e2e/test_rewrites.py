"""onnx's conformance cases through every transform: alone, all in order, shuffled in each stage.

A case that the standard's outputs cannot judge untouched is left out (`test_backend_cases` lists
those). An edited file must load and give the standard's outputs on a runner; one that was right on
onnxruntime must be so there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import onnx_ir as ir
import pytest
from tests import backend_cases as backend
from tests import sweeps
from tests.backend_cases import Case

from ortune.core.step import Transform
from ortune.graph.io import file
from ortune.graph.io.check import check_model, describe_signature

REFUSED = {"test_scan_sum"}
"""Opset 8 gave Scan a batch axis: there is no way up from there."""


@dataclass
class Tally:
    """What became of the cases."""

    cases: int = 0
    edited: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)


pytestmark = pytest.mark.usefixtures("quiet")


def sweep(
    cases: Iterable[Case], orders: Sequence[tuple[str, Sequence[Transform]]], folder: Path
) -> Tally:
    """Apply every order of steps to every case that can be judged."""
    tally = Tally()
    for case in cases:
        source = folder / "source.onnx"
        source.write_bytes(case.model.SerializeToString())
        runner: str | None = None
        model = file.load(source)
        for name, steps in orders:
            edited = model.clone()
            try:
                count = _apply(edited, steps)
            except Exception as error:  # a recipe rolls the step back
                tally.refused[f"{case.name} by {name}"] = f"{type(error).__name__}: {error}"[:300]
                continue
            if not count:
                continue
            runner = runner or backend.runs_on(case, source)
            if runner is None:
                break
            tally.edited[name] += 1
            path = file.save(edited, folder / "edited.onnx")
            if found := _difference(case, path, runner):
                tally.wrong[f"{case.name} by {name}"] = found
        tally.cases += 1
    return tally


def _apply(model: ir.Model, steps: Sequence[Transform]) -> int:
    before, counts = describe_signature(model), []
    for step in steps:
        counts.append(step.apply(model))
        if counts[-1]:
            check_model(model, before, step.name())
    return sweeps.edits(steps, counts)


def _difference(case: Case, path: Path, runner: str) -> str | None:
    """Compare on the runner that was right before; the evaluator lacks foreign operators."""
    found = "does not run"
    for name in dict.fromkeys((runner, "onnxruntime")):
        try:
            text = backend.difference(case, backend.RUNNERS[name](case, path))
        except Exception as error:  # whatever the runtime raises on a broken model
            text = f"does not run: {str(error)[:300]}"
        if text is None:
            return None
        found = text
    return found


def _all_cases() -> Iterator[Case]:
    return chain(backend.node_cases(), backend.light_cases(), backend.exported_cases())


def test_cases_through_all_transforms_in_order(tmp_path: Path) -> None:
    """Every third case; the long tests take all."""
    orders = [(name, steps) for name, steps in sweeps.orders(0) if name == "all in order"]
    tally = sweep(islice(_all_cases(), 0, None, 3), orders, tmp_path)
    assert tally.wrong == {} and _names(tally.refused) <= REFUSED
    assert tally.cases >= 660 and tally.edited["all in order"] >= 130


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_cases_through_every_transform_and_twenty_orders(tmp_path: Path) -> None:
    orders = list(sweeps.orders(20))
    tally = sweep(_all_cases(), orders, tmp_path)
    assert tally.wrong == {} and _names(tally.refused) <= REFUSED


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_frozen_cases_through_every_transform_and_five_orders(tmp_path: Path) -> None:
    """All inputs are constants: whatever can be folded is."""
    cases = (frozen for case in backend.node_cases() if (frozen := backend.frozen(case)))
    tally = sweep(cases, list(sweeps.orders(5)), tmp_path)
    assert tally.wrong == {} and _names(tally.refused) <= REFUSED


def _names(found: Iterable[str]) -> set[str]:
    return {name.partition(" ")[0] for name in found}
