"""What is wrong with a model, or may surprise, found without running it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx
import onnx_ir as ir

from ortune.model.analysis.weight_values import WeightValues
from ortune.model.io.check import faults
from ortune.model.lint import graph, names, types
from ortune.model.lint import weights as lint_weights
from ortune.model.lint.finding import Finding, finding

_ORDER = {"error": 0, "warning": 1, "note": 2}


def lint(
    model: ir.Model,
    shaped: ir.Model,
    proto: onnx.ModelProto | None,
    values: Sequence[WeightValues] | None,
) -> tuple[Finding, ...]:
    """Apply every rule; errors come first, then warnings, then notes.

    Args:
        model: As loaded.
        shaped: The same with shapes and without functions; see `ortune.model.shapes.infer`.
        proto: The file itself, for its names; None where there is none.
        values: Of all weights, for the rules about them; None where they were not read.
    """
    found: list[Finding | None] = [*_faults(model)]
    found += names.findings(proto) if proto is not None else []
    found += graph.findings(model)
    found += types.findings(model, shaped)
    found += lint_weights.findings(model, values) if values is not None else []
    return ordered([one for one in found if one is not None])


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return errors first, then warnings, then notes."""
    return tuple(sorted(findings, key=lambda one: (_ORDER[one.severity], one.rule)))


def _faults(model: ir.Model) -> Iterator[Finding | None]:
    """Report what onnx's checker and type inference say; they stop at the first of a kind."""
    every = list(faults(model))
    broken = [text for kind, text in every if kind in ("rules", "types")]
    if broken:
        yield finding(
            "invalid",
            "error",
            f"breaks ONNX's rules: {broken[0]}",
            broken,
            "runtimes may refuse it, or each reads it in a way of its own",
            "export it again",
        )
    yield finding(
        "declared-shape",
        "warning",
        "{n} values declared with another type or shape than is computed",
        [text for kind, text in every if kind == "declared"],
        "runtimes warn or refuse; memory is planned for the wrong size",
        "export it again with the dimensions that vary declared dynamic",
    )
