"""Made-up samples, from the model's own input types: enough to run it, not to judge it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.session import Tensors
from ortune.data import batches, checks, sizes, stream
from ortune.data.feeds import Feeds, digest

Shapes = Mapping[str, tuple[int, ...]]
Ranges = Mapping[str, tuple[float, float]]
Draw = Callable[[np.random.Generator], NDArray[Any]]

_FREE, _IMAGE, _SIGNAL = 16, 224, 512
"""Made-up sizes of a dynamic dimension, of an image's height and width, of a signal's length."""
_IDS = 100
_DIMENSIONS = 64
"""Of a NumPy array."""
_DRAWN = np.dtype(np.float64)


def make(
    inputs: Sequence[TensorSpec],
    out: Path,
    *,
    shapes: Shapes,
    ranges: Ranges,
    count: int = 8,
    seed: int = 0,
) -> Feeds:
    """Make samples up in ``OUT/feeds.stream``; equal arguments, equal samples.

    Shapes not given: the first dimension and every dimension named as a batch are 1, height and
    width of an image 224, the length of a signal (floats of rank 2) 512, other dynamic ones 16; a
    dimension that a given shape names has its size everywhere.
    Values not given: floats standard normal; masks 1; token types 0; positions 0, 1, 2, ...; what
    indexes a table any of its rows, other bytes 0 to 255, other integers 0 to 99; booleans true;
    text "a".

    Raises:
        BadData: A name is no input, a shape or a range does not fit it, an input's shape is
            unknown, or there is no room for a sample.
    """
    checks.tensors(inputs)
    known = checks.by_name(inputs)
    for name in [*shapes, *ranges]:
        if name not in known:
            raise BadData(
                f"the model has no input '{name}'", fix=f"its inputs are: {', '.join(known)}"
            )
    named = _sizes(inputs, shapes)
    chosen = {
        spec.name: shapes[spec.name] if spec.name in shapes else _shape(spec, named)
        for spec in inputs
    }
    for spec in inputs:
        checks.shape("--shape", chosen[spec.name], spec, batch=False)
        if len(chosen[spec.name]) > _DIMENSIONS:
            raise BadData(
                f"input '{spec.name}' has {wording.count(len(chosen[spec.name]), 'dimension')}",
                fix=f"export it with {_DIMENSIONS} at most, as arrays have",
            )
    _demand_room(inputs, chosen, out, count)
    draws: dict[str, Draw] = {}
    notes = []
    for spec in inputs:
        shape = chosen[spec.name]
        words, draws[spec.name] = _drawn(spec, shape, ranges.get(spec.name))
        notes.append(f"made up: {spec.name} {spec.dtype} {checks.spell(shape)}, {words}")
    digests: list[str] = []

    def samples() -> Iterator[Tensors]:
        for index in range(count):
            rng = np.random.default_rng([seed, index])
            sample = {name: draw(rng) for name, draw in draws.items()}
            digests.append(digest(sample))
            yield sample

    path = out / "feeds.stream"
    made = stream.write(path, samples())
    return Feeds(path, made, tuple(digests), source="made up", synthetic=True, notes=tuple(notes))


def _demand_room(inputs: Sequence[TensorSpec], shapes: Shapes, out: Path, count: int) -> None:
    """Check that made-up samples fit memory and disk before one is made, else raise BadData."""
    bytes_of = {
        spec.name: sizes.array_bytes(
            shapes[spec.name],
            # Values are drawn in 64 bits and then narrowed.
            max(_DRAWN, _dtype(spec), key=lambda dtype: dtype.itemsize),
        )
        for spec in inputs
    }
    largest = max(inputs, key=lambda spec: bytes_of[spec.name], default=None)
    if largest is None:
        return
    spelled = "x".join(map(str, shapes[largest.name]))
    what = f"a made-up sample with {largest.name}:{spelled}"
    fix = f"give a smaller shape: --shape {largest.name}:..."
    sizes.demand(sum(bytes_of.values()), what, fix)
    stored = sum(sizes.array_bytes(shapes[spec.name], _dtype(spec)) for spec in inputs)
    sizes.demand_disk(count * stored, out, f"{count} times {what}", fix)


def _dtype(spec: TensorSpec) -> np.dtype[Any]:
    return np.dtype("U1") if spec.dtype in checks.TEXT else stream.named(spec.dtype)


def _sizes(inputs: Sequence[TensorSpec], shapes: Shapes) -> dict[str, int]:
    """Return the sizes that the given shapes set for named dimensions, and 1 for batches."""
    found: dict[str, int] = {}
    for spec in inputs:
        for axis, dim in enumerate(spec.shape or ()):
            batch = axis == 0 and batches.is_batch(dim)
            if isinstance(dim, str) and (batch or "batch" in dim.lower()):
                found[dim] = 1
    for spec in inputs:
        given = shapes.get(spec.name)
        if given is not None and spec.shape is not None and len(given) == len(spec.shape):
            named = zip(spec.shape, given, strict=True)
            found |= {dim: size for dim, size in named if isinstance(dim, str)}
    return found


def _shape(spec: TensorSpec, named: Mapping[str, int]) -> tuple[int, ...]:
    if spec.shape is None:
        raise BadData(
            f"the shape of input '{spec.name}' is unknown",
            fix=f"give it: --shape {spec.name}:1x16",
        )
    made_up = _made_up(spec)
    found = []
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, int):
            found.append(dim)
        elif isinstance(dim, str) and dim in named:
            found.append(named[dim])
        elif axis == 0 and batches.is_batch(dim):
            found.append(1)
        else:
            found.append(made_up.get(axis, _FREE))
    return tuple(found)


def _made_up(spec: TensorSpec) -> dict[int, int]:
    """Return sizes by axis for inputs that look like images or signals."""
    shape = spec.shape or ()
    if len(shape) == 4 and shape[1] in (1, 3, 4):
        return {2: _IMAGE, 3: _IMAGE}
    if len(shape) == 4 and shape[3] in (1, 3, 4):
        return {1: _IMAGE, 2: _IMAGE}
    return {1: _SIGNAL} if len(shape) == 2 and "float" in spec.dtype else {}


def _drawn(
    spec: TensorSpec, shape: tuple[int, ...], limits: tuple[float, float] | None
) -> tuple[str, Draw]:
    """Return how values are made up, in words and as a function."""
    if spec.dtype in checks.TEXT:
        return "text 'a'", lambda rng: np.full(shape, "a")
    dtype, name = stream.named(spec.dtype), spec.name.lower()
    exact = dtype.kind in "iu"
    if limits is not None:
        return _within(spec, shape, limits)
    if dtype.kind == "b":
        return "true", lambda rng: np.ones(shape, dtype)
    if "mask" in name or (exact and "attention" in name):
        return "ones", lambda rng: np.ones(shape, dtype)
    if exact and ("token_type" in name or "segment" in name):
        return "zeros", lambda rng: np.zeros(shape, dtype)
    if exact and "position" in name and shape:
        last = (spec.rows or shape[-1]) - 1
        places = np.broadcast_to(np.arange(shape[-1]).clip(max=last), shape).astype(dtype)
        return "0, 1, 2, ...", lambda rng: places
    if exact:
        top = spec.rows or (256 if spec.dtype == "uint8" else _IDS)
        top = min(top, int(np.iinfo(dtype).max) + 1)
        return f"0..{top - 1}", lambda rng: rng.integers(0, top, shape).astype(dtype)
    return "standard normal", lambda rng: rng.standard_normal(shape).astype(dtype)


def _within(
    spec: TensorSpec, shape: tuple[int, ...], limits: tuple[float, float]
) -> tuple[str, Draw]:
    low, high = limits
    words, dtype = f"{low:g}..{high:g}", stream.named(spec.dtype)
    if dtype.kind not in "iub":
        limit = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        if low < -limit or high > limit:
            raise BadData(
                f"range {words} does not fit input '{spec.name}' of {spec.dtype}",
                fix=f"give numbers within {-limit:g}..{limit:g}",
            )
        if not np.isfinite(high - low):
            raise BadData(f"range {words} is too wide to draw from", fix="give a narrower one")
        return words, lambda rng: rng.uniform(low, high, shape).astype(dtype)
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if spec.rows is not None and (low < -spec.rows or high >= spec.rows):
        raise BadData(
            f"range {words} of '{spec.name}' goes beyond its table of "
            f"{wording.count(spec.rows, 'row')}",
            fix=f"give --range {spec.name}:0..{spec.rows - 1}, or leave it out",
        )
    if low != int(low) or high != int(high) or low < least or high > most:
        raise BadData(
            f"range {words} does not fit input '{spec.name}' of {spec.dtype}",
            fix=f"give whole numbers within {least}..{most}",
        )
    first, last = int(low), int(high)
    return words, lambda rng: rng.integers(first, last, shape, endpoint=True).astype(dtype)
