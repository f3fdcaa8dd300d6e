"""Rules about the values of weights: they read all of them, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.model.analysis.denormals import denormal
from ortune.model.graph.prune import share_weights
from ortune.model.graph.values import named_weights
from ortune.model.lint.finding import Finding, finding

_CHUNK = 1 << 20
_HALF_MAX = 65504.0
_MASK = 1e30
"""Constants from here on stand for infinity: masks."""
_HALF_SMALL = 2.0**-14
_SHARE = 0.05
"""Share of a tensor's weights from which what float16 rounds coarsely is worth a word."""

_MANY = 0.01
"""Share of all weights from which that is so."""
_WASTE = 1 << 16
"""Bytes of copies from which they are worth a word."""


@dataclass
class _Seen:
    nan: list[str] = field(default_factory=list)
    infinite: list[str] = field(default_factory=list)
    denormal: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    small: list[str] = field(default_factory=list)
    elements: int = 0
    denormals: int = 0
    smalls: int = 0


def findings(model: ir.Model) -> Iterator[Finding | None]:
    """Yield what is odd about the values of weights."""
    seen = _Seen()
    for name, tensor in named_weights(model):
        if tensor.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE):
            _look(name, tensor, seen)
    yield finding(
        "nan-weights",
        "error",
        "{n} weights with NaN",
        seen.nan,
        "every answer that they touch is NaN",
        "train or export again",
    )
    yield finding(
        "infinite-weights",
        "warning",
        "{n} weights with infinity beside finite numbers",
        seen.infinite,
        "infinity minus infinity is NaN; ranges for integers cannot hold it",
        "export masks with a finite number such as -1e4",
    )
    share = seen.denormals / seen.elements if seen.elements else 0.0
    yield finding(
        "denormal-weights",
        "warning",
        f"{{n}} weights with denormals, {share:.2%} of all values",
        seen.denormal,
        "many CPUs compute up to a hundred times slower with them",
        'run with --on "cpu(flush_denormals=true)"; `ortune tune` measures it',
    )
    yield finding(
        "fp16-overflow",
        "warning",
        f"{{n}} weights beyond {_HALF_MAX:.0f}, the largest of float16",
        seen.over,
        "in float16 they become infinity",
        "the step fp16 keeps what reads them in float32",
    )
    yield finding(
        "fp16-masks",
        "note",
        "{n} constants beyond float16, standing for infinity",
        seen.masks,
        "in float16 they become infinity, and NaN where two of them meet",
        "the step fp16 clips them",
    )
    yield finding(
        "fp16-small",
        "note",
        f"{{n}} weights with over {_SHARE:.0%} of their values below 6.1e-5",
        seen.small if seen.smalls > _MANY * seen.elements else (),
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


def _look(name: str, tensor: ir.TensorProtocol, seen: _Seen) -> None:
    flat = np.asarray(tensor.numpy()).reshape(-1)
    finite = nan = infinite = tiny = small = over = masks = 0
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        if part.dtype != np.float64:
            tiny += int(np.count_nonzero(denormal(part)))
        size: NDArray[np.floating] = np.abs(part)
        top = size.max(initial=0)
        if not np.isfinite(top):
            nan += int(np.count_nonzero(np.isnan(size)))
            infinite += int(np.count_nonzero(np.isinf(size)))
            size = size[np.isfinite(size)]
            top = size.max(initial=0)
        finite += size.size
        if part.dtype != np.float16:
            small += int(np.count_nonzero(size < _HALF_SMALL) - np.count_nonzero(size == 0))
            if top > _HALF_MAX:
                masks += int(np.count_nonzero(size >= _MASK))
                over += int(np.count_nonzero((size > _HALF_MAX) & (size < _MASK)))
    seen.elements += flat.size
    seen.denormals += tiny
    seen.smalls += small
    marks = (
        (seen.nan, nan),
        (seen.infinite, infinite and finite),
        (seen.denormal, tiny),
        (seen.over, over),
        (seen.masks, masks),
        (seen.small, flat.size > 1 and small > _SHARE * flat.size),
    )
    for names, hit in marks:
        if hit:
            names.append(name)
