"""One sequence, step by step: states take what the model gave, masks grow along."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.session import Tensors
from ortune.core.wording import format_count, join_names
from ortune.data import checks, sizes
from ortune.data.stream import parse_dtype

_TOKEN = re.compile(r"[A-Za-z]+|\d+|[^A-Za-z\d]+")
_AFTER = {
    "present": ("past", "past_key_values"),
    "out": ("in", "input", ""),
    "output": ("input", "in", ""),
    "new": ("old", "prev", ""),
    "next": ("prev", "previous", ""),
    "updated": ("",),
    "final": ("initial", "init", ""),
    "n": ("0", ""),
}
"""Word in an output's name -> words in its place, or none, in the input's."""
_CACHE = re.compile(r"past|cache|kv", re.IGNORECASE)
_SHOWN = 12


@dataclass(frozen=True)
class StatePair:
    """A state: the output of a step that is an input of the next."""

    output: str
    input: str

    def __str__(self) -> str:
        return f"{self.output}:{self.input}"

    @property
    def grows(self) -> bool:
        """Whether its name says that it gets longer with every step, from nothing."""
        return bool(_CACHE.search(self.input))


def find_state_pairs(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[StatePair, ...]:
    """Pair outputs with inputs of one type and shape by the common conventions of their names.

    ``present.0.key`` -> ``past_key_values.0.key``, ``stateN`` -> ``state``, ``hn`` -> ``h0``,
    ``h_out`` -> ``h_in`` and the like. In the order of the inputs.

    Raises:
        BadData: There is none.
    """
    specs, outputs_by_input = checks.specs_by_name(inputs), dict[str, str]()
    for output in outputs:
        for name in _list_input_names(output.name):
            free = name in specs and name not in outputs_by_input
            if free and not _has_mismatch(output, specs[name]):
                outputs_by_input[name] = output.name
                break
    if not outputs_by_input:
        raise BadData(
            "no output is named like the state of an input: Got outputs "
            f"{_format_names(outputs)}; inputs {_format_names(inputs)}",
            fix="name the states: --state OUT:IN; a model without state needs no --sequence",
        )
    states = [spec.name for spec in inputs if spec.name in outputs_by_input]
    return tuple(StatePair(outputs_by_input[name], name) for name in states)


def match_states(inputs: Tensors, outputs: Tensors) -> tuple[StatePair, ...]:
    """Pair what one run took and gave, as `find_state_pairs` does; perhaps none."""
    sides = [
        [TensorSpec(name, str(a.dtype), (None,) * a.ndim) for name, a in side.items()]
        for side in (inputs, outputs)
    ]
    try:
        return find_state_pairs(*sides)
    except BadData:
        return ()


def parse_state_pairs(
    texts: Sequence[str], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[StatePair, ...]:
    """Read pairs such as ``h_out:h`` or ``present.*:past.*``; a star stands for the same twice.

    Raises:
        BadData: A name is unknown, type or shape differ, or a tensor is in two pairs.
    """
    pairs: list[StatePair] = []
    for text in texts:
        for pair in _parse_pair(text, inputs, outputs):
            output_spec = checks.specs_by_name(outputs)[pair.output]
            input_spec = checks.specs_by_name(inputs)[pair.input]
            if _has_mismatch(output_spec, input_spec):
                raise BadData(
                    f"state '{pair}': the output is {output_spec.dtype} "
                    f"{checks.format_shape(output_spec.shape)}, "
                    f"the input {input_spec.dtype} {checks.format_shape(input_spec.shape)}",
                    fix="pair an output with the input of its type and shape",
                )
            if pair not in pairs:
                pairs.append(pair)
    for kind, names in (
        ("output", [pair.output for pair in pairs]),
        ("input", [pair.input for pair in pairs]),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadData(f"{kind} '{twice}' is in two states", fix="give one --state for it")
    return tuple(pairs)


def _list_input_names(name: str) -> Iterator[str]:
    """Yield what an input may be called that takes this output at the next step."""
    tokens = _TOKEN.findall(name)
    for at, token in enumerate(tokens):
        before, after = tokens[:at], tokens[at + 1 :]
        if not any(part.isalpha() for part in before + after) and token != "present":
            continue  # output_1 is no state of input_1
        for word in _AFTER.get(token.lower(), ()):
            yield "".join(before) + _match_case(word, token) + "".join(after)
            if not word:
                yield "".join(before[:-1] + after)
                yield "".join(before + after[1:])
    for ends in (("Out", "In"), ("N", ""), ("N", "0"), ("n", "0"), ("n", "")):
        if name.endswith(ends[0]) and len(name) > len(ends[0]):
            yield name.removesuffix(ends[0]) + ends[1]


def _match_case(word: str, like: str) -> str:
    if like.isupper() and len(like) > 1:
        return word.upper()
    return word.capitalize() if like[0].isupper() else word


def _parse_pair(
    text: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Iterator[StatePair]:
    ins, outs = [spec.name for spec in inputs], [spec.name for spec in outputs]
    splits = [(text[:at], text[at + 1 :]) for at, sign in enumerate(text) if sign == ":"]
    if not splits or not all(any(part) for part in zip(*splits, strict=True)):
        raise BadData(f"cannot read state '{text[:80]}'", fix="write --state OUTPUT:INPUT")
    if "*" in text:
        pairs = [pair for out, to in splits for pair in _expand_star(out, to, ins, outs)]
        if not pairs:
            raise BadData(
                f"state '{text[:80]}' fits no output and input: Got outputs "
                f"{_format_names(outputs)}; inputs {_format_names(inputs)}",
                fix="a * stands for the same part of both names",
            )
        yield from pairs
        return
    out, to = next(
        (pair for pair in splits if pair[0] in outs and pair[1] in ins),
        next((pair for pair in splits if pair[0] in outs or pair[1] in ins), splits[0]),
    )
    for kind, name, specs in (("output", out, outputs), ("input", to, inputs)):
        if name not in [spec.name for spec in specs]:
            raise BadData(
                f"state '{text[:80]}': the model has no {kind} '{name[:60]}'",
                fix=f"its {kind}s are: {_format_names(specs)}",
            )
    yield StatePair(out, to)


def _expand_star(
    out: str, to: str, ins: Sequence[str], outs: Sequence[str]
) -> Iterator[StatePair]:
    if out.count("*") != 1 or to.count("*") != 1:
        return
    form = re.compile(re.escape(out).replace(r"\*", "(.*)"))
    for name in outs:
        match = form.fullmatch(name)
        if match and (target := to.replace("*", match[1])) in ins:
            yield StatePair(name, target)


def _has_mismatch(first: TensorSpec, second: TensorSpec) -> bool:
    """Whether type, rank or a fixed dimension differ; what is not known fits."""
    if first.dtype and second.dtype and first.dtype != second.dtype:
        return True
    if first.shape is None or second.shape is None:
        return False
    if len(first.shape) != len(second.shape):
        return True
    both = zip(first.shape, second.shape, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in both)


def _format_names(specs: Sequence[TensorSpec]) -> str:
    return join_names([spec.name for spec in specs], _SHOWN)


Run = Callable[[Tensors], Mapping[str, NDArray[Any]]]


@dataclass(frozen=True)
class Rolling:
    """How states are rolled."""

    inputs: tuple[TensorSpec, ...]
    pairs: tuple[StatePair, ...]
    # Of states at the first step, where given.
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
    for step, following in pairwise(chain(steps, [None])):
        sample = current.build_sample(step or {}, outputs)
        yield sample
        if following is not None:
            outputs = run(sample)


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
        rolling = self._rolling
        if outputs is not None:
            states = self._read_states(outputs)
        else:
            fed = {name: array for name, array in step.items() if name not in rolling.states}
            states = {}
            for pair in rolling.pairs:
                name, spec = pair.input, self._specs[pair.input]
                if name in step:
                    states[name] = step[name]
                else:
                    states[name] = make_initial_state(
                        spec, pair, fed, rolling.inputs, rolling.shapes
                    )
        sample = {**step, **states, **self._make_companions(step, states)}
        return {spec.name: sample[spec.name] for spec in rolling.inputs}

    @property
    def _here(self) -> str:
        return f"{self._where} step {self._at}"

    def _read_states(self, outputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        states = {}
        for pair in self._rolling.pairs:
            spec, array = self._specs[pair.input], outputs[pair.output]
            where = f"{self._here}: state '{pair}'"
            kind = spec.dtype if spec.dtype in checks.TEXT else array.dtype.name
            if _has_mismatch(TensorSpec(pair.output, kind, array.shape), spec):
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
        # The fed input whose second dimension counts the positions of a step.
        beside = {spec.name for spec in (mask, positions) if spec is not None}
        fed = [name for name in step if name not in beside.union(self._rolling.states)]
        tokens = next((name for name in fed if step[name].ndim > 1), "")
        new = step[tokens].shape[1] if tokens else 1
        companions: dict[str, NDArray[Any]] = {}
        if mask is not None:
            ends = (self._specs[tokens].shape or (None, None))[1] if tokens else None
            covers_step = isinstance(ends, str) and (mask.shape or (None,))[-1] == ends
            companions[mask.name] = self._extend_mask(
                mask, step, 0 if covers_step else past, new, rows
            )
        if positions is not None and positions.name not in step:
            counted = np.arange(past, past + new, dtype=parse_dtype(positions.dtype))
            wide = len(positions.shape or ()) == 2
            companions[positions.name] = np.tile(counted, (rows, 1)) if wide else counted
        return companions

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
            more = format_count(past + new, "position")
            raise BadData(
                f"{self._here}: '{mask.name}' is {list(now.shape)}, "
                f"after {format_count(past, 'position')} and with {new} more",
                fix=f"give a mask of {new} or of {more}, or leave it out",
            )
        self._past_mask = whole
        return whole


_LENGTH = re.compile(r"past|seq|len|time|cache", re.IGNORECASE)


def length_axis(spec: TensorSpec, pair: StatePair) -> int | None:
    """Return the axis along which a state gets longer with every step, None when none does."""
    dims = enumerate(spec.shape or ())
    free = [
        k for k, dim in dims if k and not isinstance(dim, int) and "batch" not in str(dim).lower()
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
    batches = [spec for spec in fed if spec.shape and checks.is_batch(spec.shape[0])]
    rows = [step[spec.name].shape[0] for spec in batches]
    return rows[0] if rows else 1


def _make_size_error(spec: TensorSpec, part: str) -> BadData:
    return BadData(
        f"state '{spec.name}' {checks.format_shape(spec.shape)} begins with zeros, and the size "
        "of "
        f"{part} is not known",
        fix=f"give it: --shape {spec.name}:2x1x128, or the state at the first step as a sample",
    )
