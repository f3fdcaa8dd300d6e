"""Rules about the values of weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ortune.model.analysis.weight_values import HALF_MAX, WeightValues, denormal_share
from ortune.model.graph.prune import share_weights
from ortune.model.lint.finding import Finding, finding

_SHARE = 0.05
"""Share of a tensor's weights from which what float16 rounds coarsely is worth a word."""

_MANY = 0.01
"""Share of all weights from which that is so."""
_WASTE = 1 << 16
"""Bytes of copies from which they are worth a word."""


def findings(model: ir.Model, values: Sequence[WeightValues]) -> Iterator[Finding | None]:
    """Yield what is odd about the values of weights, which were counted before."""
    small = [one for one in values if one.elements > 1 and one.small > _SHARE * one.elements]
    elements = sum(one.elements for one in values)
    yield finding(
        "nan-weights",
        "error",
        "{n} weights with NaN",
        [one.name for one in values if one.nan],
        "every answer that they touch is NaN",
        "train or export again",
    )
    yield finding(
        "infinite-weights",
        "warning",
        "{n} weights with infinity beside finite numbers",
        [v.name for v in values if v.infinite and v.elements > v.nan + v.infinite],
        "infinity minus infinity is NaN; ranges for integers cannot hold it",
        "export masks with a finite number such as -1e4",
    )
    yield finding(
        "denormal-weights",
        "warning",
        f"{{n}} weights with denormals, {denormal_share(values):.2%} of all values",
        [one.name for one in values if one.denormal],
        "many CPUs compute up to a hundred times slower with them",
        'run with --on "cpu(flush_denormals=true)"; `ortune tune` measures it',
    )
    yield finding(
        "fp16-overflow",
        "warning",
        f"{{n}} weights beyond {HALF_MAX:.0f}, the largest of float16",
        [one.name for one in values if one.over],
        "in float16 they become infinity",
        "the step fp16 keeps what reads them in float32",
    )
    yield finding(
        "fp16-masks",
        "note",
        "{n} constants beyond float16, standing for infinity",
        [one.name for one in values if one.masks],
        "in float16 they become infinity, and NaN where two of them meet",
        "the step fp16 clips them",
    )
    yield finding(
        "fp16-small",
        "note",
        f"{{n}} weights with over {_SHARE:.0%} of their values below 6.1e-5",
        [v.name for v in small] if sum(v.small for v in values) > _MANY * elements else (),
        "float16 rounds them coarsely, and to 0 below 3e-8",
        "the step fp16 with --data measures what that does",
    )
    yield _copies(model)


def _copies(model: ir.Model) -> Finding | None:
    twin = model.clone()
    share_weights(twin)
    kept = twin.graph.initializers
    gone = {n: v for n, v in model.graph.initializers.items() if n not in kept}
    size = sum(v.const_value.nbytes for v in gone.values() if v.const_value is not None)
    return finding(
        "equal-weights",
        "warning",
        "{n} weights equal to another",
        gone if size >= _WASTE else (),
        f"{size:,} bytes of the file and of memory",
        "apply simplify",
    )
