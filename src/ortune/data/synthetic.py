"""Samples as they are given, or made up from the model's own input types: enough to run it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadData, suggest_names
from ortune.core.event import Note, Sink, ignore_event
from ortune.core.facts import TensorSpec
from ortune.core.hub import HubFolder
from ortune.core.session import Tensors
from ortune.data import batches, checks, feeds, sizes, stream
from ortune.data.feeds import Feeds, digest_sample
from ortune.data.sentences import list_cache_shapes
from ortune.data.sources import Source

Shapes = Mapping[str, tuple[int, ...]]
Ranges = Mapping[str, tuple[float, float]]
Draw = Callable[[np.random.Generator], NDArray[Any]]

_FREE, _IMAGE, _SIGNAL = 16, 224, 512
"""Made-up sizes of a dynamic dimension, of an image's height and width, of a signal's length."""
_IDS, _SIZE = 100, 3
PLUS = " + "
"""Joins the names of dimensions in that of their sum, such as ``past + sequence``."""
_LENGTHS = frozenset({"len", "lens", "length", "lengths", "seqlen", "seqlens"})
"""Words in the name of an input that tells how long sequences are."""
_DIMENSIONS = 64
"""Of a NumPy array."""
_DRAWN = np.dtype(np.float64)


def require_input_names(inputs: Sequence[TensorSpec], *by_name: Mapping[str, Any]) -> None:
    """Refuse names that are no inputs, whether or not samples are made up.

    Raises:
        BadData: There is one.
    """
    names = [spec.name for spec in inputs]
    for name in (name for named in by_name for name in named):
        if name not in names:
            raise BadData(f"the model has no input '{name}'", fix=suggest_names(name, names))


def generate_feeds(
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
    named dimension has one size everywhere, that of a given shape first; ``past + sequence`` is
    the sum of two.
    Values not given: floats standard normal; masks 1; token types 0; positions 0, 1, 2, ...; what
    indexes a table any of its rows, what says how large a tensor is to be 1 to 3, other bytes 0 to
    255, other integers 0 to 99; booleans true; text "a"; lengths of sequences 1 to the shortest
    sequence.

    Raises:
        BadData: A name is no input, a shape or a range does not fit it, an input's shape is
            unknown, or there is no room for a sample.
    """
    checks.check_tensor_inputs(inputs)
    require_input_names(inputs, shapes, ranges)
    dim_sizes = _resolve_dim_sizes(inputs, shapes)
    chosen = {
        spec.name: shapes[spec.name] if spec.name in shapes else _choose_shape(spec, dim_sizes)
        for spec in inputs
    }
    for spec in inputs:
        checks.check_shape("--shape", chosen[spec.name], spec, batch=False)
        if len(chosen[spec.name]) > _DIMENSIONS:
            raise BadData(
                f"input '{spec.name}' has "
                f"{wording.format_count(len(chosen[spec.name]), 'dimension')}",
                fix=f"export it with {_DIMENSIONS} at most, as arrays have",
            )
    _require_room(inputs, chosen, out, count)
    draws: dict[str, Draw] = {}
    notes = []
    pairs = [(spec.shape or (), chosen[spec.name]) for spec in inputs]
    sized = {dim: size for dims, shape in pairs for dim, size in zip(dims, shape, strict=False)}
    for spec in inputs:
        rows = sized.get(spec.rows) if isinstance(spec.rows, str) else spec.rows
        shape = chosen[spec.name]
        limits = ranges.get(spec.name)
        if limits is None and _is_length(spec):
            limits = 1, _find_shortest(spec, inputs, chosen)
        words, draws[spec.name] = _make_draw(spec, shape, limits, rows)
        notes.append(f"made up: {spec.name} {spec.dtype} {checks.format_shape(shape)}, {words}")
    digests: list[str] = []

    def samples() -> Iterator[Tensors]:
        for index in range(count):
            rng = np.random.default_rng([seed, index])
            sample = {name: draw(rng) for name, draw in draws.items()}
            digests.append(digest_sample(sample))
            yield sample

    path = out / "feeds.stream"
    written = stream.write_stream(path, samples())
    return Feeds(
        path, written, tuple(digests), source="made up", synthetic=True, notes=tuple(notes)
    )


def _require_room(inputs: Sequence[TensorSpec], shapes: Shapes, out: Path, count: int) -> None:
    """Check that made-up samples fit memory and disk before one is made, else raise BadData."""
    # Values are drawn in 64 bits and then narrowed.
    wide = {
        s.name: max(_DRAWN, _resolve_dtype(s), key=lambda dtype: dtype.itemsize) for s in inputs
    }
    bytes_of = {name: sizes.array_bytes(shapes[name], dtype) for name, dtype in wide.items()}
    largest = max(inputs, key=lambda spec: bytes_of[spec.name], default=None)
    if largest is None:
        return
    spelled = "x".join(map(str, shapes[largest.name]))
    subject = f"a made-up sample with {largest.name}:{spelled}"
    fix = f"give a smaller shape: --shape {largest.name}:..."
    sizes.require_memory(sum(bytes_of.values()), subject, fix)
    stored = sum(sizes.array_bytes(shapes[spec.name], _resolve_dtype(spec)) for spec in inputs)
    sizes.require_disk(count * stored, out, f"{count} times {subject}", fix)


def _resolve_dtype(spec: TensorSpec) -> np.dtype[Any]:
    return np.dtype("U1") if spec.dtype in checks.TEXT else stream.parse_dtype(spec.dtype)


def _resolve_dim_sizes(inputs: Sequence[TensorSpec], shapes: Shapes) -> dict[str, int]:
    """Return the sizes that the given shapes set for named dimensions, and 1 for batches."""
    dim_sizes: dict[str, int] = {}
    for spec in inputs:
        for axis, dim in enumerate(spec.shape or ()):
            batch = axis == 0 and checks.is_batch(dim)
            if isinstance(dim, str) and (batch or "batch" in dim.lower()):
                dim_sizes[dim] = 1
    for spec in inputs:
        shape = shapes.get(spec.name)
        if shape is not None and spec.shape is not None and len(shape) == len(spec.shape):
            named = zip(spec.shape, shape, strict=True)
            dim_sizes |= {dim: size for dim, size in named if isinstance(dim, str)}
    for spec in inputs:  # what one input's look says of a name holds for all that have it
        for axis, size in _guess_sizes(spec).items():
            dim = (spec.shape or ())[axis]
            if isinstance(dim, str):
                dim_sizes.setdefault(dim, size)
    return dim_sizes


def _choose_shape(spec: TensorSpec, dim_sizes: Mapping[str, int]) -> tuple[int, ...]:
    if spec.shape is None:
        raise BadData(
            f"the shape of input '{spec.name}' is unknown",
            fix=f"give it: --shape {spec.name}:1x16",
        )
    guesses = _guess_sizes(spec)
    dims = []
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, int):
            dims.append(dim)
        elif isinstance(dim, str) and dim in dim_sizes:
            dims.append(dim_sizes[dim])
        elif axis == 0 and checks.is_batch(dim):
            dims.append(1)
        elif isinstance(dim, str) and PLUS in dim:
            dims.append(sum(dim_sizes.get(part, _FREE) for part in dim.split(PLUS)))
        else:
            dims.append(guesses.get(axis, _FREE))
    return tuple(dims)


def _is_length(spec: TensorSpec) -> bool:
    """Say whether an input tells how long sequences are, one number each."""
    if spec.dtype in checks.TEXT or spec.rows is not None or len(spec.shape or ()) > 1:
        return False
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", spec.name).lower())
    return stream.parse_dtype(spec.dtype).kind in "iu" and not _LENGTHS.isdisjoint(words)


def _find_shortest(
    spec: TensorSpec, inputs: Sequence[TensorSpec], chosen: Mapping[str, tuple[int, ...]]
) -> int:
    """Return a length that no sequence falls short of.

    Sequences are the inputs of rank 2 and more; their time is a dimension of open size, the
    first where the second is the batch, of that name among the lengths.
    """
    batch = spec.shape[0] if spec.shape else None
    open_sizes: list[int] = []
    all_sizes: list[int] = []
    for other in inputs:
        dims, shape = other.shape or (), chosen[other.name]
        if len(dims) < 2:
            continue
        time_first = isinstance(batch, str) and dims[1] == batch
        axes = (0, *range(2, len(dims))) if time_first else range(1, len(dims))
        all_sizes += [shape[axis] for axis in axes]
        open_sizes += [shape[axis] for axis in axes if not isinstance(dims[axis], int)]
    shortest = min(open_sizes or all_sizes, default=_FREE)
    return max(1, min(shortest, int(np.iinfo(stream.parse_dtype(spec.dtype)).max)))


def _guess_sizes(spec: TensorSpec) -> dict[int, int]:
    """Return sizes by axis for inputs that look like images or signals."""
    shape = spec.shape or ()
    if len(shape) == 4 and shape[1] in (1, 3, 4):
        return {2: _IMAGE, 3: _IMAGE}
    if len(shape) == 4 and shape[3] in (1, 3, 4):
        return {1: _IMAGE, 2: _IMAGE}
    return {1: _SIGNAL} if len(shape) == 2 and "float" in spec.dtype else {}


def _make_draw(
    spec: TensorSpec, shape: tuple[int, ...], limits: tuple[float, float] | None, rows: int | None
) -> tuple[str, Draw]:
    """Return how values are made up, in words and as a function; `rows` are those of its table."""
    if spec.dtype in checks.TEXT:
        return "text 'a'", lambda rng: np.full(shape, "a")
    dtype, name = stream.parse_dtype(spec.dtype), spec.name.lower()
    exact = dtype.kind in "iu"
    if limits is not None:
        return _make_ranged_draw(spec, shape, limits, rows)
    if dtype.kind == "b":
        return "true", lambda rng: np.ones(shape, dtype)
    if "mask" in name or (exact and "attention" in name):
        return "ones", lambda rng: np.ones(shape, dtype)
    if exact and ("token_type" in name or "segment" in name):
        return "zeros", lambda rng: np.zeros(shape, dtype)
    if exact and "position" in name and shape:
        last = (rows or shape[-1]) - 1
        places = np.broadcast_to(np.arange(shape[-1]).clip(max=last), shape).astype(dtype)
        return "0, 1, 2, ...", lambda rng: places
    if exact and spec.sizes and rows is None:
        words = f"1..{_SIZE}, as they are sizes; to choose: --range {spec.name}:LOW..HIGH"
        return words, lambda rng: rng.integers(1, _SIZE + 1, shape).astype(dtype)
    if exact:
        top = rows or (256 if spec.dtype == "uint8" else _IDS)
        top = min(top, int(np.iinfo(dtype).max) + 1)
        has_range = rows or spec.dtype == "uint8"
        advice = "" if has_range else f", a guess: set it with --range {spec.name}:LOW..HIGH"
        return f"0..{top - 1}{advice}", lambda rng: rng.integers(0, top, shape).astype(dtype)
    return "standard normal", lambda rng: rng.standard_normal(shape).astype(dtype)


def _make_ranged_draw(
    spec: TensorSpec, shape: tuple[int, ...], limits: tuple[float, float], rows: int | None
) -> tuple[str, Draw]:
    low, high = limits
    words, dtype = f"{low:g}..{high:g}", stream.parse_dtype(spec.dtype)
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
    if rows is not None and (low < -rows or high >= rows):
        raise BadData(
            f"range {words} of '{spec.name}' goes beyond its table of "
            f"{wording.format_count(rows, 'row')}",
            fix=f"give --range {spec.name}:0..{rows - 1}, or leave it out",
        )
    if low != int(low) or high != int(high) or low < least or high > most:
        raise BadData(
            f"range {words} does not fit input '{spec.name}' of {spec.dtype}",
            fix=f"give whole numbers within {least}..{most}",
        )
    first, last = int(low), int(high)
    return words, lambda rng: rng.integers(first, last, shape, endpoint=True).astype(dtype)


_SYNTHETIC_COUNT = 8


def load_or_generate_feeds(
    data: Source | None,
    inputs: Sequence[TensorSpec],
    out: Path,
    *,
    labels: str | Path | Sequence[Any] | None = None,
    batch: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    count: int = _SYNTHETIC_COUNT,
    classes: Sequence[str] = (),
    settings: HubFolder | None = None,
    sink: Sink = ignore_event,
) -> Feeds:
    """Read `data` into a stream in ``OUT``, or make samples up when it is None.

    Args:
        data: See `feeds.load_feeds`.
        out: Folder for the stream file.
        classes: See `feeds.load_feeds`; likewise `settings`.

    Raises:
        BadData: The data, a shape or the batch does not fit the model, or labels have no data.
    """
    require_input_names(inputs, shapes or {}, ranges or {})
    if data is not None:
        samples = feeds.load_feeds(
            data,
            inputs,
            out,
            labels=labels,
            batch=batch,
            classes=classes,
            settings=settings,
            sink=sink,
        )
    elif labels is not None:
        raise BadData("labels are given without samples", fix="give --data too")
    else:
        batches.check_batch(batch, inputs)
        sizes = {**list_cache_shapes(settings, inputs), **(shapes or {})}
        samples = generate_feeds(inputs, out, shapes=sizes, ranges=ranges or {}, count=count)
    for text in samples.notes:
        sink(Note(text))
    return samples
