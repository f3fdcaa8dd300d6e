"""The accuracy budget where none is given, from the baseline's outputs and the labels.

Derived before anything is measured and printed with the rule that fired. The first that fits:

1. **Labels that are class numbers**, and a float output [..., classes] with one row a label and
   more columns than the highest label, of which the baseline gets at least half as many right as
   guessing among the classes seen (at least two) would: ``top1>=base-0.01``, of all inputs at
   most one in a hundred may be lost, those won being set against them.
2. **Every output decides**: integers, booleans, text, or class scores: ``agreement>=0.99``. Of
   inputs with one decision each 99 % must keep it; of inputs with several, 95 % must keep 99 % of
   theirs.
   Class scores are floats of rank 2 or 3 with 2 to 100,000 columns whose rows sum to 1, or whose
   name contains logit or prob (at rank 2 also score or class).
3. **Every float output is an embedding**: rank 2 with rows of length 1, rank 3 (hidden states), or
   rank 2 as wide as the hidden states beside it: ``cosine>=0.999``, which 95 % of inputs must
   keep.
4. **Anything else**: ``snr>=30`` (dB), that is 3 % of error in amplitude; 95 % of inputs must
   keep it.

With several outputs a rule must fit all of them (the first: one), so that none goes unwatched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.budget import Budget
from ortune.core.errors import BadData

Arrays = Sequence[NDArray[Any]]
_WIDEST = 100_000
_SCORES = re.compile(r"logit|prob", re.IGNORECASE)
_FLAT_SCORES = re.compile(r"logit|prob|score|class", re.IGNORECASE)
_TOLERANCE = 2e-3
"""For sums and lengths of 1: float16 has 11 bits."""


def derive_budget(
    outputs: Mapping[str, Arrays], labels: Sequence[Any] | None = None
) -> tuple[Budget, str]:
    """Return the budget and the rule that gave it, in one line.

    Args:
        outputs: The baseline's outputs: name -> one array a sample.
        labels: One a sample, or None.

    Raises:
        BadData: There are no outputs, or the baseline's own outputs hold NaN.
    """
    if not outputs or not all(outputs.values()):
        raise BadData("no outputs to derive a budget from", fix="give one with --budget")
    for name, arrays in outputs.items():
        for at, values in enumerate(arrays):
            if not _is_discrete(arrays) and np.isnan(values.astype(np.float64)).any():
                raise BadData(
                    f"the model's own output '{name}' holds NaN on sample {at}",
                    fix="check the samples, or give a budget on another output with --budget",
                )
    if labels is not None and (best := _find_classified_output(outputs, labels)):
        alone = len([name for name in outputs if _count_columns(outputs[name])]) == 1
        metric = "top1" if alone else f"top1(output={json.dumps(best)})"
        rule = f"labels are classes of output '{best}' {_format_dims(outputs[best])}"
        return Budget.parse(
            f"{metric}>=base-0.01"
        ), f"{rule}: top-1 of all inputs may fall by 1 point"
    shown = ", ".join(f"'{name}' {_format_dims(arrays)}" for name, arrays in outputs.items())
    if all(
        _is_discrete(arrays) or _is_score_output(name, arrays) for name, arrays in outputs.items()
    ):
        requirement = "99 % of inputs must keep their decision"
        if any(_count_decisions(array) > 1 for arrays in outputs.values() for array in arrays):
            requirement = "95 % of inputs must keep 99 % of their decisions"
        return Budget.parse("agreement>=0.99"), f"outputs that decide ({shown}): {requirement}"
    floats = {name: arrays for name, arrays in outputs.items() if not _is_discrete(arrays)}
    widths = {arrays[0].shape[-1] for arrays in floats.values() if arrays[0].ndim == 3}
    if all(
        arrays[0].ndim == 3
        or (arrays[0].ndim == 2 and (arrays[0].shape[-1] in widths or _has_unit_rows(arrays)))
        for arrays in floats.values()
    ):
        requirement = "95 % of inputs must keep cosine 0.999"
        return Budget.parse("cosine>=0.999"), f"embeddings ({shown}): {requirement}"
    requirement = "95 % of inputs must keep 30 dB"
    return Budget.parse("snr>=30"), f"outputs of no special kind ({shown}): {requirement}"


def describe_unused_labels(outputs: Mapping[str, Arrays], labels: Sequence[Any]) -> str:
    """Say why labels gave no budget, although they may be classes of an output; empty otherwise.

    Args:
        outputs: See `derive_budget`.
        labels: One a sample.
    """
    numbers = _read_numbers(labels)
    if numbers is None or _find_classified_output(outputs, labels):
        return ""
    names = sorted(outputs, key=lambda name: not _is_score_output(name, outputs[name]))
    for name in names:
        if (right := _count_right(outputs[name], numbers)) is not None:
            count = sum(label.size for label in numbers)
            return (
                f"the labels are not used: '{name}' {_format_dims(outputs[name])} gives the "
                f"labelled class {right} times of {count}, which guessing does too; check the "
                "order of the labels and how classes are numbered"
            )
    return ""


def _find_classified_output(outputs: Mapping[str, Arrays], labels: Sequence[Any]) -> str | None:
    """Return the output that the labels are classes of; one that looks like scores goes first."""
    label_arrays = _read_numbers(labels)
    if label_arrays is None:
        return None
    names = sorted(outputs, key=lambda name: not _is_score_output(name, outputs[name]))
    return next((name for name in names if _matches_labels(outputs[name], label_arrays)), None)


def _read_numbers(labels: Sequence[Any]) -> list[NDArray[Any]] | None:
    """Return labels that are class numbers, [positions] each; None where they are not."""
    try:
        label_arrays = [np.asarray(label).reshape(-1) for label in labels]
    except ValueError:
        return None
    whole = all(label.dtype.kind in "iub" and label.size for label in label_arrays)
    return label_arrays if whole else None


def _matches_labels(arrays: Arrays, labels: Sequence[NDArray[Any]]) -> bool:
    right = _count_right(arrays, labels)
    if right is None:
        return False
    all_labels = np.concatenate(labels)
    return 2 * max(2, len(np.unique(all_labels))) * right >= len(all_labels)


def _count_right(arrays: Arrays, labels: Sequence[NDArray[Any]]) -> int | None:
    """Return how often the highest column is the label; None where labels do not fit an output."""
    width = _count_columns(arrays)
    all_labels = np.concatenate(labels)
    if (
        not width
        or all_labels.min() < 0
        or all_labels.max() >= width
        or len(arrays) != len(labels)
    ):
        return None
    pairs = list(zip(arrays, labels, strict=True))
    if any(array.size != label.size * width for array, label in pairs):
        return None
    return sum(
        int(np.sum(array.reshape(-1, width).astype(np.float64).argmax(1) == label))
        for array, label in pairs
    )


def _count_columns(arrays: Arrays) -> int:
    """Return the columns of a float output [..., columns], 0 if it is none."""
    widths = {array.shape[-1] if array.ndim >= 2 else 0 for array in arrays}
    width = int(widths.pop()) if len(widths) == 1 else 0
    return width if width >= 2 and not _is_discrete(arrays) else 0


def _count_decisions(array: NDArray[Any]) -> int:
    return array.size if _is_discrete([array]) else array.size // max(1, array.shape[-1])


def _is_discrete(arrays: Arrays) -> bool:
    return arrays[0].dtype.kind in "iubUSO"


def _is_score_output(name: str, arrays: Arrays) -> bool:
    rank = arrays[0].ndim
    if not 2 <= _count_columns(arrays) <= _WIDEST or rank not in (2, 3):
        return False
    if (_FLAT_SCORES if rank == 2 else _SCORES).search(name):
        return True
    rows = (array.astype(np.float64) for array in arrays)
    return all(
        (scores >= 0).all() and np.allclose(scores.sum(axis=-1), 1, rtol=0, atol=_TOLERANCE)
        for scores in rows
    )


def _has_unit_rows(arrays: Arrays) -> bool:
    """Say whether all rows have length 1; rows of one element say nothing."""
    if arrays[0].shape[-1] < 2:
        return False
    norms = [np.linalg.norm(array.astype(np.float64), axis=-1) for array in arrays]
    return all(np.allclose(norm, 1, rtol=0, atol=_TOLERANCE) for norm in norms)


def _format_dims(arrays: Arrays) -> str:
    """Write the shape; dimensions that differ between samples as ?."""
    shapes = {array.shape for array in arrays}
    if len({len(shape) for shape in shapes}) > 1:
        return "[...]"
    parts = [str(dims[0]) if len(set(dims)) == 1 else "?" for dims in zip(*shapes, strict=True)]
    return f"[{', '.join(parts)}]"
