"""A file, line or dict as a sequence: its arrays are cut into steps."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.wording import format_count, join_names
from ortune.data import checks
from ortune.data.arrays import Column, NamedArrays
from ortune.data.checks import LABEL
from ortune.data.sequences.request import FILE, GROUP

_SAVE = "save arrays of [steps, ...]: one more dimension than the input, or its rows as steps"


class Steps:
    """Cuts blocks into steps, and remembers how many each had.

    An array with one dimension more than its input has the steps in front. Where no array has one,
    the rows of arrays are the steps, each with a batch of 1. Other arrays are the same at every
    step; a state is what the first step begins with.

    Attributes:
        lengths: Steps of every block so far.
    """

    def __init__(self, inputs: Sequence[TensorSpec], states: Collection[str]) -> None:
        self._specs, self._states = checks.specs_by_name(inputs), frozenset(states)
        self.lengths: list[int] = []

    def __call__(self, blocks: Iterable[NamedArrays]) -> Iterator[NamedArrays]:
        """Yield the steps of every block, of which each array has as many, else raise BadData."""
        for block in blocks:
            cut = self._select_step_arrays(block)
            count = next(iter(cut.values())).shape[0]
            self.lengths.append(count)
            label = block.columns.get(LABEL) if LABEL not in self._specs else None
            if label is not None and label.shape and label.shape[0] == count:
                cut = {**cut, LABEL: label}
            rows = {name: column.rows(0) for name, column in cut.items()}
            shared = {}  # what every step has
            for name, column in block.columns.items():
                if name not in cut:
                    array = column.read()
                    deep = name in self._specs and self._has_step_axis(name, column)
                    shared[name] = Column.from_array(
                        array[0] if deep and len(array) == 1 else array
                    )
            for at in range(count):
                columns = {}
                for name, column_rows in rows.items():
                    row = next(column_rows)
                    deep = name not in self._specs or self._has_step_axis(name, cut[name])
                    columns[name] = Column.from_array(row[0] if deep else row)
                still = {n: c for n, c in shared.items() if not at or n not in self._states}
                yield NamedArrays(f"{block.where} step {at}", {**still, **columns})

    def _select_step_arrays(self, block: NamedArrays) -> Mapping[str, Column]:
        """Return the arrays that have steps."""
        fed = {
            n: c for n, c in block.columns.items() if n in self._specs and n not in self._states
        }
        cut = {
            name: column for name, column in fed.items() if self._has_step_axis(name, column)
        } or {
            name: column for name, column in fed.items() if self._has_rows_as_steps(name, column)
        }
        lengths = {name: column.shape[0] for name, column in cut.items()}
        if not lengths or not max(lengths.values()):
            shapes = ", ".join(
                f"{name} {checks.format_shape(array.shape)}" for name, array in fed.items()
            )
            raise BadData(
                f"{block.where}: no array has steps: Got {shapes or 'none of the inputs'}",
                fix=_SAVE,
            )
        if len({length for length in lengths.values() if length > 1}) > 1:
            spelled = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise BadData(
                f"{block.where}: different numbers of steps: {spelled}",
                fix="give every array as many steps; what does not change has one",
            )
        most = max(lengths.values())
        return {name: column for name, column in cut.items() if column.shape[0] == most}

    def _has_step_axis(self, name: str, column: Column) -> bool:
        shape = self._specs[name].shape
        return shape is not None and len(column.shape) == len(shape) + 1

    def _has_rows_as_steps(self, name: str, column: Column) -> bool:
        shape = self._specs[name].shape
        first = shape[0] if shape else None
        single = not isinstance(first, int) or first == 1
        return bool(column.shape) and single and checks.is_batch(first)


_SHOWN = 8


def group_into_sequences(
    form: str, count: int, groups: Sequence[str] | None, lengths: Sequence[int] = ()
) -> list[tuple[int, ...]]:
    """Return the samples of every sequence, in order.

    Args:
        form: ``file``, ``group`` or a number of samples.
        groups: One a sample. Samples of one group need not be neighbours to be its steps; a
            number of samples does not reach from one group into the next.
        lengths: Steps of every file.

    Raises:
        BadData: There are no groups, or no sequence has two steps.
    """
    if form == FILE:
        ends = [sum(lengths[: at + 1]) for at in range(len(lengths))]
        sequences = [tuple(range(end - n, end)) for end, n in zip(ends, lengths, strict=True)]
    elif form == GROUP:
        if groups is None:
            raise BadData(
                "--sequence group: the samples have no group",
                fix="add 'group' to every sample, or give --sequence file or a number of samples",
            )
        grouped: dict[str, list[int]] = {}
        for place in range(count):
            grouped.setdefault(groups[place], []).append(place)
        sequences = [tuple(places) for places in grouped.values()]
    else:
        size = int(form)
        grouped_runs = groupby(range(count), key=lambda at: groups[at] if groups else "")
        runs = [tuple(run) for _, run in grouped_runs]
        sequences = [run[at : at + size] for run in runs for at in range(0, len(run), size)]
    if max(map(len, sequences), default=0) < 2:
        raise BadData(
            f"--sequence {form}: every sequence has a single step "
            f"({format_count(count, 'sample')})",
            fix="give sequences of two steps or more; samples without order need no --sequence",
        )
    return sequences


def list_step_groups(
    sequences: Sequence[Sequence[int]], groups: Sequence[str] | None
) -> tuple[tuple[str, ...], ...]:
    """Return for every sequence the groups of its steps: those given, or one of its own."""
    if groups is None:
        return tuple((f"sequence {at}",) * len(sequence) for at, sequence in enumerate(sequences))
    return tuple(tuple(groups[at] for at in sequence) for sequence in sequences)


def describe_sequences(sequences: Sequence[Sequence[int]], pairs: Sequence[Any]) -> str:
    """Say what is rolled through what."""
    lengths = sorted(map(len, sequences))
    steps = (
        f"{lengths[0]} to {format_count(lengths[-1], 'step')}, {median(lengths):g} in the middle"
    )
    if lengths[0] == lengths[-1]:
        steps = format_count(lengths[0], "step")
    rolled = join_names(list(map(str, pairs)), _SHOWN)
    return f"rolled through {format_count(len(sequences), 'sequence')} of {steps}: {rolled}"
