"""How files become samples: split along the batch dimension, stacked to a fixed batch."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.data import checks, sizes
from ortune.data.arrays import Column, NamedArrays
from ortune.data.checks import GROUP, LABEL, Note
from ortune.data.labels import to_plain_label


@dataclass(frozen=True)
class Unit:
    """One row, or a whole block that is not split."""

    where: str
    tensors: dict[str, NDArray[Any]]
    row: bool  # one row of a batch, with a leading dimension of 1
    label: Any = None
    group: str | None = None


def count_sample_rows(inputs: Sequence[TensorSpec]) -> int | None:
    """Return the rows of one sample, or None when the inputs share no batch dimension."""
    firsts = [spec.shape[0] if spec.shape else None for spec in inputs]
    if any(spec.shape == () for spec in inputs) or not all(map(checks.is_batch, firsts)):
        return None
    fixed = {dim for dim in firsts if isinstance(dim, int)}
    names = {dim for dim in firsts if isinstance(dim, str) and "batch" not in dim.lower()}
    if len(fixed) > 1 or len(names) > 1:
        return None
    return fixed.pop() if fixed else 1


def check_batch(batch: int, inputs: Sequence[TensorSpec]) -> None:
    """Check that the model takes this many samples in one run; 0 and 1 are always fine.

    A model of a fixed batch takes one sample a run, which holds all its rows.

    Raises:
        BadData: It does not.
    """
    if batch <= 1:
        return
    if count_sample_rows(inputs) is None:
        raise BadData(
            f"batch {batch}: the inputs {', '.join(spec.name for spec in inputs)} share no "
            "batch dimension",
            fix="leave --batch out",
        )
    for spec in inputs:
        first = spec.shape[0] if spec.shape else None
        if first == batch:
            raise BadData(
                f"the batch of input '{spec.name}' is fixed: "
                f"a sample has its {wording.format_count(first, 'row')} already",
                fix="leave --batch out",
            )
        if isinstance(first, int):
            raise BadData(
                f"the batch of input '{spec.name}' is fixed: Got {batch}, expected {first}",
                fix="leave --batch out, or export the model with a dynamic batch",
            )


def split_block(
    block: NamedArrays,
    inputs: Sequence[TensorSpec],
    *,
    splits: bool,
    optional: Collection[str] = (),
) -> Iterator[Unit]:
    """Check a block against the inputs and cut it into rows, where its inputs share them.

    Args:
        splits: The inputs share a batch dimension.
        optional: Inputs that the block may leave out.

    Raises:
        BadData: It does not fit the inputs, or its labels or groups do not fit it.
    """
    specs = checks.specs_by_name(inputs)
    extras = {n: c for n, c in block.columns.items() if n in (LABEL, GROUP) and n not in specs}
    checks.check_input_names(
        block.where, [n for n in block.columns if n not in extras], inputs, optional
    )
    inputs = [spec for spec in inputs if spec.name in block.columns]
    columns = {spec.name: block.columns[spec.name] for spec in inputs}
    label, group = extras.get(LABEL), extras.get(GROUP)
    lengths = {column.shape[0] if column.shape else None for column in columns.values()}
    shared = splits and len(lengths) == 1 and None not in lengths
    shared = shared and (label is None or label.shape != ())
    for spec in inputs:
        checks.check_shape(block.where, columns[spec.name].shape, spec, batch=shared)
        checks.check_dtype(block.where, columns[spec.name].dtype, spec)
    layouts = [((1, *c.shape[1:]) if shared else c.shape, c.dtype) for c in columns.values()]
    sizes.require_memory(sum(sizes.array_bytes(*layout) for layout in layouts), block.where)
    if shared:
        count = next(iter(columns.values())).shape[0]
        if label is not None and label.shape[0] != count:
            raise BadData(
                f"{block.where}: wrong number of labels: Got {label.shape[0]}, expected {count}",
                fix="give one label a row",
            )
        single = group is None or not group.shape or group.shape[0] != count
        named = None if group is None or not single else _read_group(block.where, group)
        streams = [column.rows(0) for column in columns.values()]
        labels = itertools.repeat(None) if label is None else label.rows(0)
        groups = itertools.repeat(None) if group is None or single else group.rows(0)
        for at, (parts, row_label, member) in enumerate(
            zip(zip(*streams, strict=True), labels, groups, strict=False), block.first or 0
        ):
            yield Unit(
                block.where if count == 1 and block.first is None else f"{block.where} row {at}",
                dict(zip(columns, parts, strict=True)),
                True,
                None if row_label is None else to_plain_label(row_label[0]),
                named if member is None else str(to_plain_label(member)),
            )
        return
    tensors = {name: column.read() for name, column in columns.items()}
    spelled = None if group is None else _read_group(block.where, group)
    plain = None if label is None else to_plain_label(label.read())
    yield Unit(block.where, tensors, False, plain, spelled)


def stack_rows(units: Iterable[Unit], size: int, note: Note) -> Iterator[Unit]:
    """Join rows of one group to samples of `size` rows; what is left over is dropped and noted."""
    waiting: list[Unit] = []
    dropped = 0
    for unit in units:
        if size == 1 or not unit.row:
            yield unit
            continue
        same = not waiting or waiting[0].tensors.keys() == unit.tensors.keys()
        if waiting and (waiting[0].group != unit.group or not same):
            dropped, waiting = dropped + len(waiting), []
        waiting.append(unit)
        if len(waiting) == size:
            first = waiting[0]
            for name, array in first.tensors.items():
                for part in waiting:
                    if part.tensors[name].shape != array.shape:
                        raise BadData(
                            f"{part.where}: input '{name}' cannot be joined to a batch: "
                            f"Got {checks.format_shape(part.tensors[name].shape)}, "
                            f"expected {checks.format_shape(array.shape)}",
                            fix="pad the samples to one shape",
                        )
            tensors = {
                name: np.concatenate([p.tensors[name] for p in waiting]) for name in first.tensors
            }
            label = None if first.label is None else [part.label for part in waiting]
            yield Unit(f"{first.where} to {waiting[-1].where}", tensors, False, label, first.group)
            waiting = []
    if dropped := dropped + len(waiting):
        note(
            "the model takes "
            f"{wording.format_count(size, 'row')} at once: {dropped} left over and not used"
        )


def _read_group(where: str, group: Column) -> str:
    values = group.read()
    if values.size != 1:
        raise BadData(
            f"{where}: wrong number of groups: Got {values.size}, expected 1",
            fix="give one group a row, or one for the file",
        )
    return str(to_plain_label(values))
