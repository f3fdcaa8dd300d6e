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
from ortune.core.wording import format_count
from ortune.data import checks, sizes
from ortune.data.sequences.pairs import StatePair
from ortune.data.stream import parse_dtype

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
        beside = (spec for spec in self._list_growing_inputs() if "mask" in spec.name.lower())
        return next((spec for spec in beside if len(spec.shape or ()) == 2), None)

    @property
    def positions(self) -> TensorSpec | None:
        """The input that counts the step's positions on from those of growing states."""
        kinds = ("int32", "int64")
        beside = (spec for spec in self._list_growing_inputs() if "position" in spec.name.lower())
        return next((spec for spec in beside if spec.dtype in kinds), None)

    @property
    def optional_inputs(self) -> frozenset[str]:
        """Inputs that samples may leave out."""
        companions = [spec.name for spec in (self.mask, self.positions) if spec is not None]
        return frozenset([*self.states, *companions])

    def list_growing_states(self) -> Iterator[tuple[str, int]]:
        """Yield states that get longer, and their axis."""
        specs = checks.specs_by_name(self.inputs)
        for pair in self.pairs:
            axis = length_axis(specs[pair.input], pair)
            if axis is not None:
                yield pair.input, axis

    def _list_growing_inputs(self) -> Iterator[TensorSpec]:
        """Yield inputs that may grow with the states."""
        if not any(self.list_growing_states()):
            return
        for spec in self.inputs:
            dims = spec.shape or ()
            free = dims and not isinstance(dims[-1], int)
            if spec.name not in self.states and len(dims) in (1, 2) and free:
                yield spec


def roll_sequence(
    rolling: Rolling, steps: Iterable[Tensors], run: Run, where: str
) -> Iterator[Tensors]:
    """Yield the steps of one sequence, with the states that the model gave at the step before.

    States at the first step are the sample's, or zeros. The model is not run on the last step.

    Args:
        steps: What the samples give; states at later steps are not read.

    Raises:
        BadData: What the model gives is no state of its own, or an input does not grow along.
    """
    current = _SequenceState(rolling, where)
    outputs: Mapping[str, NDArray[Any]] | None = None
    for step, following in pairwise(_append_sentinel(steps)):
        sample = current.build_sample(step or {}, outputs)
        yield sample
        if following is not None:
            outputs = run(sample)


def _append_sentinel(steps: Iterable[Tensors]) -> Iterator[Tensors | None]:
    yield from steps
    yield None


class _SequenceState:
    """What is known of a sequence while it is rolled."""

    def __init__(self, rolling: Rolling, where: str) -> None:
        self._rolling, self._where, self._at = rolling, where, -1
        self._specs = checks.specs_by_name(rolling.inputs)
        self._growing = dict(rolling.list_growing_states())
        self._past_mask: NDArray[Any] | None = None

    def build_sample(self, step: Tensors, outputs: Mapping[str, NDArray[Any]] | None) -> Tensors:
        """Return the next step as the model takes it, from the outputs of the step before."""
        self._at += 1
        states = self._make_initial_states(step) if outputs is None else self._read_states(outputs)
        sample = {name: step[name] for name in step if name not in states} | states
        for name, array in self._make_companions(step, states).items():
            sample[name] = array
        return {spec.name: sample[spec.name] for spec in self._rolling.inputs}

    @property
    def _here(self) -> str:
        return f"{self._where} step {self._at}"

    def _make_initial_states(self, step: Tensors) -> dict[str, NDArray[Any]]:
        rolling = self._rolling
        fed = {name: array for name, array in step.items() if name not in rolling.states}
        return {
            pair.input: step[pair.input]
            if pair.input in step
            else make_initial_state(
                self._specs[pair.input], pair, fed, rolling.inputs, rolling.shapes
            )
            for pair in rolling.pairs
        }

    def _read_states(self, outputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        states = {}
        for pair in self._rolling.pairs:
            spec, array = self._specs[pair.input], outputs[pair.output]
            where = f"{self._here}: state '{pair}'"
            fits = spec.dtype in checks.TEXT or array.dtype == parse_dtype(spec.dtype)
            dims = spec.shape is None or (
                len(spec.shape) == array.ndim
                and all(
                    not isinstance(dim, int) or dim == size
                    for dim, size in zip(spec.shape, array.shape, strict=True)
                )
            )
            if not fits or not dims:
                raise BadData(
                    f"{where} does not fit: Got {array.dtype.name} {list(array.shape)}, "
                    f"expected {spec.dtype} {checks.format_shape(spec.shape)}",
                    fix="pair an output with the input of its type and shape: --state OUT:IN",
                )
            checks.check_finite(where, array, pair.output)
            states[pair.input] = array
        return states

    def _make_companions(self, step: Tensors, states: Tensors) -> dict[str, NDArray[Any]]:
        """Return the mask and the positions, where states grow."""
        mask, positions = self._rolling.mask, self._rolling.positions
        if mask is None and positions is None:
            return {}
        name, axis = next(iter(self._growing.items()))
        past, rows = states[name].shape[axis], count_batch_rows(step, self._rolling.inputs)
        tokens = self._find_token_input(
            step, {spec.name for spec in (mask, positions) if spec is not None}
        )
        new = step[tokens].shape[1] if tokens else 1
        companions: dict[str, NDArray[Any]] = {}
        if mask is not None:
            ends = (self._specs[tokens].shape or (None, None))[1] if tokens else None
            covers_step = (
                isinstance(ends, str) and mask.shape is not None and mask.shape[-1] == ends
            )
            companions[mask.name] = self._extend_mask(
                mask, step, 0 if covers_step else past, new, rows
            )
        if positions is not None and positions.name not in step:
            counted = np.arange(past, past + new, dtype=parse_dtype(positions.dtype))
            wide = len(positions.shape or ()) == 2
            companions[positions.name] = np.tile(counted, (rows, 1)) if wide else counted
        return companions

    def _find_token_input(self, step: Tensors, beside: set[str]) -> str:
        """Return the fed input whose second dimension counts the positions of a step."""
        excluded = {*beside, *self._rolling.states}
        return next((name for name in step if name not in excluded and step[name].ndim > 1), "")

    def _extend_mask(
        self, mask: TensorSpec, step: Tensors, past: int, new: int, rows: int
    ) -> NDArray[Any]:
        step_mask = step.get(mask.name)
        now = np.ones((rows, new), parse_dtype(mask.dtype)) if step_mask is None else step_mask
        before = self._past_mask
        if before is None or not past:
            before = np.ones((*now.shape[:-1], past), now.dtype)
        if now.shape[-1] == new and before.shape[-1] == past:
            whole = np.concatenate([before, now], axis=-1) if past else now
        elif now.shape[-1] == past + new:
            whole = now
        else:
            raise BadData(
                f"{self._here}: '{mask.name}' is {list(now.shape)}, "
                f"after {format_count(past, 'position')} and with {new} more",
                fix=(
                    f"give a mask of {new} or of {format_count(past + new, 'position')}, or "
                    "leave it out"
                ),
            )
        self._past_mask = whole
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


def make_initial_state(
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
        checks.check_shape("--shape", shape, spec, batch=False)
    else:
        if spec.shape is None:
            raise _make_size_error(spec, "its rank")
        bound = {
            dim: size
            for input_spec in inputs
            if input_spec.name in step
            and input_spec.shape
            and len(input_spec.shape) == step[input_spec.name].ndim
            for dim, size in zip(input_spec.shape, step[input_spec.name].shape, strict=True)
            if isinstance(dim, str)
        }
        grown, rows = length_axis(spec, pair), count_batch_rows(step, inputs)
        free = [axis for axis, dim in enumerate(spec.shape) if not isinstance(dim, int)]
        other_axes = [axis for axis in free if axis != grown]
        dims: list[int] = []
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, int):
                dims.append(dim)
            elif dim in bound:
                dims.append(bound[dim])
            elif axis == grown:
                dims.append(0)
            elif axis == 0 or "batch" in str(dim).lower() or other_axes == [axis]:
                dims.append(rows)
            else:
                raise _make_size_error(spec, f"dimension {axis}")
        shape = tuple(dims)
    dtype = np.dtype("U1") if spec.dtype in checks.TEXT else parse_dtype(spec.dtype)
    sizes.require_memory(sizes.array_bytes(shape, dtype), f"the state '{spec.name}'")
    return np.zeros(shape, dtype)


def count_batch_rows(step: Tensors, inputs: Sequence[TensorSpec]) -> int:
    """Return the rows of the fed inputs."""
    fed = [spec for spec in inputs if spec.name in step and step[spec.name].ndim and spec.shape]
    rows = [
        step[spec.name].shape[0] for spec in fed if spec.shape and checks.is_batch(spec.shape[0])
    ]
    return rows[0] if rows else 1


def _make_size_error(spec: TensorSpec, part: str) -> BadData:
    return BadData(
        f"state '{spec.name}' {checks.format_shape(spec.shape)} begins with zeros, and the size "
        "of "
        f"{part} is not known",
        fix=f"give it: --shape {spec.name}:2x1x128, or the state at the first step as a sample",
    )
