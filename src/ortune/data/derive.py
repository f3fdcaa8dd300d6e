"""The accuracy budget where none is given, from the baseline's outputs and the labels.

Derived before anything is measured and printed with the rule that fired. The first that fits:

1. **Labels that are class numbers**, and a float output [..., classes] with one row a label and
   more columns than the highest label, of which the baseline gets at least half as many right as
   guessing among the classes seen (at least two) would: ``top1>=base-0.01``, of all inputs at
   most one in a hundred may be lost, those won being set against them.
2. **Every output decides**: integers, booleans, text, or class scores: ``agreement>=0.99``. Of
   inputs with one decision each 99 % must keep it; of inputs with several, 95 % must keep 99 % of
   theirs. With class scores no probability may change by more than 0.2, or a decision is not
   kept: it may be kept by chance where all that stands behind it has changed.
   Class scores are floats of rank 2 or 3 with 2 to 100,000 columns whose rows sum to 1, or whose
   name contains logit or prob (at rank 2 also score or class) and that do not all lie within 0
   and 1: those are probabilities, each by itself.
3. **Masks by class**: floats [inputs, classes, height, width], or with the classes last, whose
   classes sum to 1 at each place or whose name says scores. They are used by the class that is
   highest at each place: 95 % of inputs must keep that of 99 % of their places.
4. **Every float output is an embedding**: rank 2 with rows of length 1, rank 3 with a length that
   differs between inputs or a name that says so (hidden states), or rank 2 as wide as the hidden
   states beside it: ``cosine>=0.999``, which 95 % of inputs must keep.
5. **Boxes and scores of a detector**, together in one output or each in its own, with at least
   one detection a sample: ``detections>=0.9``. 95 % of inputs must keep 90 % of what is detected.
6. **Anything else**: ``parity>=30`` (dB), that is 3 % of error in amplitude of the worst output;
   95 % of inputs must keep it. Of a state that the model takes at its next step 20 dB are enough:
   what it is for shows in the outputs beside it.

In 2 to 6 every *group* must besides follow the original (`metrics.common.fidelity`): each column
of class scores, embeddings and rows, each channel of a map, each place along the axis of a
detection head that is clearly the shorter one. Where that is not clear, each along either: that is
stricter, and the rule says so.

With several outputs a rule must fit all of them (the first: one), so that none goes unwatched.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.budget import Budget
from ortune.core.errors import BadData
from ortune.core.metric import UNIT_TOLERANCE, Metric, sums_to_one
from ortune.core.plugins import catalog, codec

Arrays = Sequence[NDArray[Any]]
_WIDEST = 100_000
_MOST_GROUPS = 1024
"""Groups along an axis; a longer one is of places, or of a vocabulary's words."""
_CLEARLY = 4
"""An axis this many times shorter than another is that of the channels."""
_MOVED = 0.2
"""What a probability may change by where a class is decided; docs/accuracy.md says why."""
_IMAGE = 4
"""Axes of a batch of pictures."""
_BOX, _DETECTIONS_KEPT = 4, 0.9
_BOXES = re.compile(r"box|loc|rect|coord", re.IGNORECASE)
_SCORES = re.compile(r"logit|prob", re.IGNORECASE)
_FLAT_SCORES = re.compile(r"logit|prob|score|class", re.IGNORECASE)
_MASKS = re.compile(r"logit|prob|seg|class|semantic", re.IGNORECASE)
_HIDDEN = re.compile(r"hidden|embed|encod|feature|context", re.IGNORECASE)


def derive_budget(
    outputs: Mapping[str, Arrays],
    labels: Sequence[Any] | None = None,
    states: Collection[str] = (),
) -> tuple[Budget, str]:
    """Return the budget and the rule that gave it, in one line.

    Args:
        outputs: The baseline's outputs: name -> one array a sample.
        labels: One a sample, or None.
        states: Outputs that the model takes at its next step.

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
    deciding = {name for name in outputs if _is_deciding(name, outputs[name])}
    if len(deciding) == len(outputs):
        return _derive_decisions(outputs, deciding, shown)
    floats = {name: arrays for name, arrays in outputs.items() if not _is_discrete(arrays)}
    # Rows of attention sum to 1 along the last axis too, so that classes that come last must be
    # few beside height and width, and named.
    mask_axes = [k for k in (1, 3) if all(_is_mask(name, floats[name], k) for name in floats)]
    if mask_axes:
        axis = mask_axes[0]
        groups = tuple(f"{axis}:{name}" for name in floats)
        requirement = "95 % of inputs must keep the class of 99 % of their places"
        budget = _make_budget("agreement", 0.99, groups=groups, axis=axis)
        return budget, f"masks of classes ({shown}): {requirement}, and each class must follow"
    hidden = {name for name, arrays in floats.items() if _is_hidden(name, arrays)}
    widths = {outputs[name][0].shape[-1] for name in hidden}
    flat = [arrays for name, arrays in floats.items() if name not in hidden]
    if all(a[0].ndim == 2 and (a[0].shape[-1] in widths or _has_unit_rows(a)) for a in flat):
        groups, judged = _choose_groups(outputs, set(outputs))
        requirement = "95 % of inputs must keep cosine 0.999"
        budget = _make_budget("cosine", 0.999, groups=groups)
        return budget, f"embeddings ({shown}): {requirement}{judged}"
    if (detections := _find_detections(outputs)) is not None:
        requirement = (
            f"95 % of inputs must keep {100 * detections.limit:g} % of what is detected, as boxes "
            "with a score over 0.25 that overlap the original's by 0.75, and no box number and no "
            "class may be dead"
        )
        return detections, f"a detector's boxes and scores ({shown}): {requirement}"
    groups, judged = _choose_groups(outputs, deciding | hidden)
    scores = [name for name in deciding if name in floats]
    undecided = [name for name in floats if name not in deciding]
    probabilities = [name for name in undecided if _is_probable(floats[name])]
    requirement = "95 % of inputs must keep 30 dB" + " of each output" * (len(outputs) > 1)
    rolled = [name for name in floats if name in states and name not in probabilities]
    if rolled and len(outputs) > len(rolled):
        requirement += f", 20 of the state {', '.join(map(repr, rolled))}"
    else:
        rolled = []
    budget = _make_budget(
        "parity", 30, groups=groups, decisions=[name for name in scores if name not in rolled],
        probabilities=probabilities, states=rolled,
    )  # fmt: skip
    return budget, f"outputs of no special kind ({shown}): {requirement}{judged}"


def _derive_decisions(
    outputs: Mapping[str, Arrays], deciding: Collection[str], shown: str
) -> tuple[Budget, str]:
    """Return the budget and the rule where every output decides."""
    requirement = "99 % of inputs must keep their decision"
    if any(
        (array.size if _is_discrete([array]) else array.size // max(1, array.shape[-1])) > 1
        for arrays in outputs.values()
        for array in arrays
    ):
        requirement = "95 % of inputs must keep 99 % of their decisions"
    groups, judged = _choose_groups(outputs, deciding)
    bounded: dict[str, float] = {}
    if not all(map(_is_discrete, outputs.values())):
        bounded = {"change": _MOVED}
        requirement += f", none with a probability that changes by more than {_MOVED:g}"
    budget = _make_budget("agreement", 0.99, groups=groups, **bounded)
    return budget, f"outputs that decide ({shown}): {requirement}{judged}"


def _is_mask(name: str, arrays: Arrays, axis: int) -> bool:
    """Say whether an output is a map whose axis holds the scores of the classes of each place."""
    shapes = {array.shape for array in arrays}
    if any(len(shape) != _IMAGE for shape in shapes) or len({shape[axis] for shape in shapes}) > 1:
        return False
    is_named = bool(_MASKS.search(name))
    last_is_short = all(_CLEARLY * shape[3] <= min(shape[1:3]) for shape in shapes)
    if not 2 <= arrays[0].shape[axis] <= _MOST_GROUPS:
        return False
    if axis == 3 and not (is_named and last_is_short):
        return False
    if all(bool((array >= 0).all() and (array <= 1).all()) for array in arrays):
        return all(sums_to_one(array, axis) for array in arrays)
    return is_named and last_is_short == (axis == 3)


def _find_detections(outputs: Mapping[str, Arrays]) -> Budget | None:
    """Return the budget where all outputs are a detector's, else None.

    Its boxes and scores are known by their shapes and names; scores lie between 0 and 1, or are
    logits whose first or last column, that nothing is there, is the highest in most rows.
    """
    fields = _find_head(outputs) if len(outputs) == 1 else _find_boxes(outputs)
    if fields is None:
        return None
    groups = [
        f"{_find_columns_axis(arrays[0]) if name == fields.get('head') else -1}:{name}"
        for name, arrays in outputs.items()
        if arrays[0].dtype.kind == "f"
    ]
    budget = _make_budget("detections", _DETECTIONS_KEPT, groups=groups, **fields)
    counts = []
    for at in range(len(next(iter(outputs.values())))):
        sample = {name: arrays[at] for name, arrays in outputs.items()}
        try:
            counts.append(np.atleast_1d(budget.metric.record(sample, sample, None))[1])
        except BadData:
            return None
    return budget if np.mean(counts) >= 1 else None


def _find_head(outputs: Mapping[str, Arrays]) -> dict[str, Any] | None:
    ((name, arrays),) = outputs.items()
    first = arrays[0]
    if _is_discrete(arrays) or first.ndim != 3 or first.shape[0] != 1:
        return None
    rows = [np.moveaxis(array[0], _find_columns_axis(array) - 1, 1) for array in arrays]
    if not all(row.shape[1] > _BOX and len(row) > row.shape[1] for row in rows):
        return None
    if rows[0].shape[1] == _BOX + 2 and all(bool((row[:, -1] % 1 == 0).all()) for row in rows):
        rows = [row[:, :-1] for row in rows]  # the last column is the class, by its number
        layout = {"layout": "xyxy"}
    else:
        layout = {}
    fits = all(
        _is_probable([row[:, _BOX:]])
        and bool((row[:, 2:_BOX] >= 0).all())
        and np.mean(row[:, :_BOX] > 1) > 0.5  # pixels: other values may lie between 0 and 1 too
        for row in rows
    )
    return {"head": name, **layout} if fits else None


def _find_columns_axis(head: NDArray[Any]) -> int:
    """Return the axis along which a head [1, n, m] says what there is of one box: the shorter."""
    return 1 if head.shape[1] < head.shape[2] else 2


def _find_boxes(outputs: Mapping[str, Arrays]) -> dict[str, Any] | None:
    floats = {name: arrays for name, arrays in outputs.items() if not _is_discrete(arrays)}
    boxes = [name for name, arrays in floats.items() if arrays[0].shape[-1:] == (_BOX,)]
    if len(boxes) != 1 or len(floats) != 2 or not _BOXES.search(boxes[0]):
        return None
    (scores,) = set(floats) - set(boxes)
    fields: dict[str, Any] = {"boxes": boxes[0], "scores": scores}
    classes = [name for name in outputs if name not in floats]
    if len(classes) > 1 or (classes and outputs[classes[0]][0].dtype.kind not in "iu"):
        return None
    fields |= {"classes": classes[0]} if classes else {}
    corners = np.concatenate([array.reshape(-1, _BOX) for array in outputs[boxes[0]]])
    if (corners[:, 2:] >= corners[:, :2]).all():
        fields["layout"] = "xyxy"
    if _is_probable(floats[scores]):
        return fields
    width = _count_columns(floats[scores])
    if not width:
        return None
    highest = np.concatenate([a.reshape(-1, width).argmax(1) for a in floats[scores]])
    column = next((at for at in (width - 1, 0) if 2 * (highest == at).sum() > len(highest)), None)
    return None if column is None else fields | {"background": column}


def _make_budget(name: str, limit: float, **fields: Any) -> Budget:
    return Budget(codec.build_dataclass(catalog.load_plugin(Metric, name), fields), limit)


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


def _choose_groups(
    outputs: Mapping[str, Arrays], columns: Collection[str]
) -> tuple[tuple[str, ...], str]:
    """Return the groups that must each follow the original, and what is to be said of them.

    Args:
        columns: Outputs whose last axis is the one that counts.
    """
    entries: list[str] = []
    notes: list[str] = []
    for name, arrays in outputs.items():
        if arrays[0].dtype.kind in "USO":
            continue
        axes = [] if arrays[0].dtype.kind in "iu" else _find_channel_axes(arrays, name in columns)
        scale = "%" if arrays[0].dtype.kind == "f" and _is_probable(arrays) else ""
        entries += [f"{axis}{scale}:{name}" for axis in axes] or [f"all{scale}:{name}"]
        if not axes and arrays[0].dtype.kind in "fc" and max(arrays[0].shape, default=1) > 1:
            most = f"{_MOST_GROUPS:,}"
            notes.append(f"'{name}' as a whole: it has no axis of 2 to {most} channels")
        if len(axes) > 1:
            which = " and ".join(map(str, axes))
            notes.append(f"'{name}' by each place along axes {which}, as either may hold channels")
    if not entries:
        return (), ""
    return tuple(entries), "; ".join([", and each group must follow the original", *notes])


def _find_channel_axes(arrays: Arrays, columns: bool) -> list[int]:
    """Return the axes along which an output's places may mean something by themselves."""
    ranks = {array.ndim for array in arrays}
    rank = ranks.pop()
    if ranks:
        return []
    lengths = [{array.shape[axis] for array in arrays} for axis in range(rank)]
    lengths_by_axis = {
        axis: next(iter(seen)) for axis, seen in enumerate(lengths) if len(seen) == 1
    }
    fixed = {
        axis: length for axis, length in lengths_by_axis.items() if 1 < length <= _MOST_GROUPS
    }
    if columns:
        return [rank - 1] if rank - 1 in fixed else []
    if rank >= 4:
        ends = [axis for axis in (1, rank - 1) if axis in fixed]
        return [min(ends, key=fixed.__getitem__)] if len(ends) == 2 or 1 in fixed else []
    inner = {axis: length for axis, length in fixed.items() if axis or rank == 1}
    near = [axis for axis in inner if inner[axis] < _CLEARLY * min(inner.values())]
    return ([0] if 0 in fixed and rank > 1 else []) + near


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
    if not width or all_labels.min() < 0 or all_labels.max() >= width:
        return None
    if len(arrays) != len(labels):
        return None
    pairs = list(zip(arrays, labels, strict=True))
    if any(array.size != label.size * width for array, label in pairs):
        return None
    best = [array.reshape(-1, width).astype(np.float64).argmax(1) for array in arrays]
    return sum(int(np.sum(top == label)) for top, label in zip(best, labels, strict=True))


def _count_columns(arrays: Arrays) -> int:
    """Return the columns of a float output [..., columns], 0 if it is none."""
    widths = {array.shape[-1] if array.ndim >= 2 else 0 for array in arrays}
    width = int(widths.pop()) if len(widths) == 1 else 0
    return width if width >= 2 and not _is_discrete(arrays) else 0


def _is_discrete(arrays: Arrays) -> bool:
    return arrays[0].dtype.kind in "iubUSO"


def _is_deciding(name: str, arrays: Arrays) -> bool:
    return _is_discrete(arrays) or _is_score_output(name, arrays)


def _is_hidden(name: str, arrays: Arrays) -> bool:
    """Say whether an output [inputs, positions, width] is of hidden states."""
    ranks = {array.ndim for array in arrays}
    is_one_a_word = len({array.shape[1:2] for array in arrays}) > 1
    return ranks == {3} and (is_one_a_word or bool(_HIDDEN.search(name)))


def _is_probable(arrays: Arrays) -> bool:
    """Say whether all elements of an output of rank 3 at most lie between 0 and 1."""
    return arrays[0].ndim <= 3 and all(
        bool((array >= 0).all() and (array <= 1).all()) for array in arrays
    )


def _is_score_output(name: str, arrays: Arrays) -> bool:
    rank = arrays[0].ndim
    if not 2 <= _count_columns(arrays) <= _WIDEST or rank not in (2, 3):
        return False
    if _is_probable(arrays):
        return all(map(sums_to_one, arrays))
    return bool((_FLAT_SCORES if rank == 2 else _SCORES).search(name))


def _has_unit_rows(arrays: Arrays) -> bool:
    """Say whether all rows have length 1; rows of one element say nothing."""
    if arrays[0].shape[-1] < 2:
        return False
    norms = [np.linalg.norm(array.astype(np.float64), axis=-1) for array in arrays]
    return all(np.allclose(norm, 1, rtol=0, atol=UNIT_TOLERANCE) for norm in norms)


def _format_dims(arrays: Arrays) -> str:
    """Write the shape; dimensions that differ between samples as ?."""
    shapes = {array.shape for array in arrays}
    if len({len(shape) for shape in shapes}) > 1:
        return "[...]"
    parts = [str(dims[0]) if len(set(dims)) == 1 else "?" for dims in zip(*shapes, strict=True)]
    return f"[{', '.join(parts)}]"
