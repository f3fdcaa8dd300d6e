"""One sequence, step by step: states take what the model gave, masks grow along."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.session import Tensors
from ortune.core.wording import count
from ortune.data import batches, checks, sizes
from ortune.data.sequences.pairs import StatePair
from ortune.data.stream import named

Run = Callable[[Tensors], Mapping[str, NDArray[Any]]]


@dataclass(frozen=True)
class Rolling:
    """How states are rolled.

    Attributes:
        shapes: Of states at the first step, where given.
    """

    inputs: tuple[TensorSpec, ...]
    pairs: tuple[StatePair, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def states(self) -> tuple[str, ...]:
        """Inputs that take a state."""
        return tuple(pair.input for pair in self.pairs)

    @property
    def mask(self) -> TensorSpec | None:
        """The input that is 1 for every position of growing states and of the step."""
        beside = (one for one in self._beside() if "mask" in one.name.lower())
        return next((one for one in beside if len(one.shape or ()) == 2), None)

    @property
    def positions(self) -> TensorSpec | None:
        """The input that counts the step's positions on from those of growing states."""
        kinds = ("int32", "int64")
        beside = (one for one in self._beside() if "position" in one.name.lower())
        return next((one for one in beside if one.dtype in kinds), None)

    @property
    def spared(self) -> frozenset[str]:
        """Inputs that samples may leave out."""
        made = [one.name for one in (self.mask, self.positions) if one is not None]
        return frozenset([*self.states, *made])

    def growing(self) -> Iterator[tuple[str, int]]:
        """Yield states that get longer, and their axis."""
        specs = checks.by_name(self.inputs)
        for pair in self.pairs:
            axis = length_axis(specs[pair.input], pair)
            if axis is not None:
                yield pair.input, axis

    def _beside(self) -> Iterator[TensorSpec]:
        """Yield inputs that may grow with the states."""
        if not any(self.growing()):
            return
        for one in self.inputs:
            dims = one.shape or ()
            free = dims and not isinstance(dims[-1], int)
            if one.name not in self.states and len(dims) in (1, 2) and free:
                yield one


def roll(how: Rolling, steps: Iterable[Tensors], run: Run, where: str) -> Iterator[Tensors]:
    """Yield the steps of one sequence, with the states that the model gave at the step before.

    States at the first step are the sample's, or zeros. The model is not run on the last step.

    Args:
        steps: What the samples give; states at later steps are not read.

    Raises:
        BadData: What the model gives is no state of its own, or an input does not grow along.
    """
    current = _Sequence(how, where)
    given: Mapping[str, NDArray[Any]] | None = None
    for step, following in pairwise(_marked(steps)):
        sample = current.fed(step or {}, given)
        yield sample
        if following is not None:
            given = run(sample)


def _marked(steps: Iterable[Tensors]) -> Iterator[Tensors | None]:
    yield from steps
    yield None


class _Sequence:
    """What is known of a sequence while it is rolled."""

    def __init__(self, how: Rolling, where: str) -> None:
        self._how, self._where, self._at = how, where, -1
        self._specs = checks.by_name(how.inputs)
        self._growing = dict(how.growing())
        self._seen: NDArray[Any] | None = None

    def fed(self, step: Tensors, given: Mapping[str, NDArray[Any]] | None) -> Tensors:
        """Return the next step as the model takes it, from the outputs of the step before."""
        self._at += 1
        states = self._first(step) if given is None else self._next(given)
        sample = {name: step[name] for name in step if name not in states} | states
        for name, array in self._beside(step, states).items():
            sample[name] = array
        return {one.name: sample[one.name] for one in self._how.inputs}

    @property
    def _here(self) -> str:
        return f"{self._where} step {self._at}"

    def _first(self, step: Tensors) -> dict[str, NDArray[Any]]:
        how = self._how
        fed = {name: array for name, array in step.items() if name not in how.states}
        return {
            pair.input: step[pair.input]
            if pair.input in step
            else zeros(self._specs[pair.input], pair, fed, how.inputs, how.shapes)
            for pair in how.pairs
        }

    def _next(self, given: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        found = {}
        for pair in self._how.pairs:
            spec, array = self._specs[pair.input], given[pair.output]
            what = f"{self._here}: state '{pair}'"
            fits = spec.dtype in checks.TEXT or array.dtype == named(spec.dtype)
            dims = spec.shape is None or (
                len(spec.shape) == array.ndim
                and all(
                    not isinstance(dim, int) or dim == size
                    for dim, size in zip(spec.shape, array.shape, strict=True)
                )
            )
            if not fits or not dims:
                raise BadData(
                    f"{what} does not fit: Got {array.dtype.name} {list(array.shape)}, "
                    f"expected {spec.dtype} {checks.spell(spec.shape)}",
                    fix="pair an output with the input of its type and shape: --state OUT:IN",
                )
            checks.finite(what, array, pair.output)
            found[pair.input] = array
        return found

    def _beside(self, step: Tensors, states: Tensors) -> dict[str, NDArray[Any]]:
        """Return the mask and the positions, where states grow."""
        mask, positions = self._how.mask, self._how.positions
        if mask is None and positions is None:
            return {}
        name, axis = next(iter(self._growing.items()))
        past, rows = states[name].shape[axis], batch(step, self._how.inputs)
        tokens = self._tokens(step, {one.name for one in (mask, positions) if one is not None})
        new = step[tokens].shape[1] if tokens else 1
        found: dict[str, NDArray[Any]] = {}
        if mask is not None:
            ends = (self._specs[tokens].shape or (None, None))[1] if tokens else None
            own = isinstance(ends, str) and mask.shape is not None and mask.shape[-1] == ends
            found[mask.name] = self._masked(mask, step, 0 if own else past, new, rows)
        if positions is not None and positions.name not in step:
            counted = np.arange(past, past + new, dtype=named(positions.dtype))
            wide = len(positions.shape or ()) == 2
            found[positions.name] = np.tile(counted, (rows, 1)) if wide else counted
        return found

    def _tokens(self, step: Tensors, beside: set[str]) -> str:
        """Return the fed input whose second dimension counts the positions of a step."""
        but = {*beside, *self._how.states}
        return next((name for name in step if name not in but and step[name].ndim > 1), "")

    def _masked(
        self, mask: TensorSpec, step: Tensors, past: int, new: int, rows: int
    ) -> NDArray[Any]:
        given = step.get(mask.name)
        now = np.ones((rows, new), named(mask.dtype)) if given is None else given
        before = self._seen
        if before is None or not past:
            before = np.ones((*now.shape[:-1], past), now.dtype)
        if now.shape[-1] == new and before.shape[-1] == past:
            whole = np.concatenate([before, now], axis=-1) if past else now
        elif now.shape[-1] == past + new:
            whole = now
        else:
            raise BadData(
                f"{self._here}: '{mask.name}' is {list(now.shape)}, "
                f"after {count(past, 'position')} and with {new} more",
                fix=f"give a mask of {new} or of {count(past + new, 'position')}, or leave it out",
            )
        self._seen = whole
        return whole


_LENGTH = re.compile(r"past|seq|len|time|cache", re.IGNORECASE)


def length_axis(spec: TensorSpec, pair: StatePair) -> int | None:
    """Return the axis along which a state gets longer with every step, None when none does."""
    free = [
        axis
        for axis, dim in enumerate(spec.shape or ())
        if axis and not isinstance(dim, int) and "batch" not in str(dim).lower()
    ]
    called = [axis for axis in free if _LENGTH.search(str((spec.shape or ())[axis]))]
    if called:
        return called[0]
    return free[-1] if pair.grows and free else None


def zeros(
    spec: TensorSpec,
    pair: StatePair,
    step: Tensors,
    inputs: Sequence[TensorSpec],
    shapes: Mapping[str, tuple[int, ...]],
) -> NDArray[np.generic]:
    """Return the zeros that a state begins with.

    A growing state has no length at first. Other dynamic dimensions have the size of the fed
    inputs' dimension of that name, or of their batch.

    Raises:
        BadData: A dimension is not known, or a given shape does not fit.
    """
    shape = shapes.get(spec.name)
    if shape is not None:
        checks.shape("--shape", shape, spec, batch=False)
    else:
        if spec.shape is None:
            raise _unknown(spec, "its rank")
        bound = {
            dim: size
            for one in inputs
            if one.name in step and one.shape and len(one.shape) == step[one.name].ndim
            for dim, size in zip(one.shape, step[one.name].shape, strict=True)
            if isinstance(dim, str)
        }
        grown, rows = length_axis(spec, pair), batch(step, inputs)
        free = [axis for axis, dim in enumerate(spec.shape) if not isinstance(dim, int)]
        others = [axis for axis in free if axis != grown]
        found: list[int] = []
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, int):
                found.append(dim)
            elif dim in bound:
                found.append(bound[dim])
            elif axis == grown:
                found.append(0)
            elif axis == 0 or "batch" in str(dim).lower() or others == [axis]:
                found.append(rows)
            else:
                raise _unknown(spec, f"dimension {axis}")
        shape = tuple(found)
    dtype = np.dtype("U1") if spec.dtype in checks.TEXT else named(spec.dtype)
    sizes.demand(sizes.array_bytes(shape, dtype), f"the state '{spec.name}'")
    return np.zeros(shape, dtype)


def batch(step: Tensors, inputs: Sequence[TensorSpec]) -> int:
    """Return the rows of the fed inputs."""
    fed = [one for one in inputs if one.name in step and step[one.name].ndim and one.shape]
    rows = [step[one.name].shape[0] for one in fed if one.shape and batches.is_batch(one.shape[0])]
    return rows[0] if rows else 1


def _unknown(spec: TensorSpec, what: str) -> BadData:
    return BadData(
        f"state '{spec.name}' {checks.spell(spec.shape)} begins with zeros, and the size of "
        f"{what} is not known",
        fix=f"give it: --shape {spec.name}:2x1x128, or the state at the first step as a sample",
    )
