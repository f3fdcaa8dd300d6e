"""Metrics of fidelity: each sample's outputs, and groups of them, against the original's.

Groups are parts of the outputs that mean something by themselves.

A detector's boxes are pixels and its class scores lie near 0, so that summed over an output the
boxes alone decide; and a class that is seldom seen hardly weighs in its samples. So every group is
measured against what it does itself: the noise of all samples together against how far the
original's values lie from their own mean over the samples. A group that always answers the same
has at least as much noise as that, for nothing constant lies nearer than the mean.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadSettings
from ortune.core.metric import Kind, Metric
from ortune.core.plugins import bounds
from ortune.core.session import Tensors
from ortune.metrics.common import outputs
from ortune.metrics.common.outputs import Floats

SHARE = 0.95  # of the inputs that must keep the limit, where a metric is given none

FOLLOWS_DB = 6.0
"""What the original's own variation is above the noise of a group, at least. Dead and swapped
groups have 0 or less; ``docs/accuracy.md`` has what bfloat16 and int8 leave of good models."""
_RESTING = 1e-5  # of a mean value: what differs by less does not vary, but was rounded
_SILENT = 0.1
"""A probability that never lies farther from its mean decides nothing in these samples."""
_ENTRY = re.compile(r"(all|-?\d)(%?):(.+)", re.DOTALL)


@dataclass(frozen=True)
class Fidelity(Metric):
    """Each sample has a score of its own, and a share of the samples must keep the limit.

    Attributes:
        output: The only output that counts; empty takes all.
        share: Of the samples (of the groups, where there are some) that must keep the limit;
            0 takes the one figure over all samples, which no number of samples proves.
        groups: Parts of the outputs that must each follow the original over all samples,
            ``AXIS:OUTPUT`` each: every place along the axis is one; ``all:OUTPUT`` is one.
            With ``%:`` they are probabilities, judged where they move by more than 0.1.
    """

    added: ClassVar[frozenset[str]] = frozenset({"groups"})
    follows_db: ClassVar[float] = FOLLOWS_DB
    """What a group varies above its noise, at least."""

    output: str = ""
    share: Annotated[float, bounds.SHARE] = SHARE
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_share(self.share, self.name())
        for entry in self.groups:
            parse_group(entry)

    def __str__(self) -> str:
        """Return the command-line spelling, which says ``share=0``."""
        return super().__str__().replace("share=0.0)", "share=0)")

    @property
    def kept_by(self) -> float:
        return self.share

    def kind(self, baseline: NDArray[np.float64] | None = None) -> Kind:
        """Return share, or figure where `share` is 0."""
        return Kind.SHARE if self.share else Kind.FIGURE

    def average_expected(self, expected: Iterable[Tensors]) -> Tensors | None:
        """Return the mean of the outputs where groups are compared with it."""
        if not self.groups:
            return None
        averages: dict[str, Average] = {}
        dropped: set[str] = set()  # text, and what changes its rank
        for tensors in expected:
            for name, array in tensors.items():
                values = _read_numbers(array)
                average = averages.get(name)
                if values is None or (average and average.rank != values.ndim):
                    dropped.add(name)
                elif name not in dropped:
                    averages.setdefault(name, Average(values)).add(values)
        return {name: average.mean() for name, average in averages.items() if name not in dropped}

    def record_about(
        self, expected: Tensors, actual: Tensors, label: Any, inputs: Tensors, mean: Tensors | None
    ) -> float | Sequence[float]:
        """Return the metric's own numbers, those of the groups, and how many those are."""
        record = self.record_with(expected, actual, label, inputs)
        if not self.groups:
            return record
        row = [] if mean is None else measure_groups(self.groups, expected, actual, mean)
        return [*np.atleast_1d(record).tolist(), *row, float(len(row))]

    def find_objection(self, records: NDArray[np.float64]) -> str:
        """Say which group does not follow the original, whatever share of the samples is alike."""
        if not self.groups or not len(records) or not (length := int(records[0, -1])):
            return ""
        decibels, group = find_worst_group(self.groups, records[:, -1 - length : -1])
        if decibels >= self.follows_db:
            return ""
        return (
            f"{group} does not follow the original: SNR {decibels:.1f} dB (of its variation), at "
            f"least {self.follows_db:g} dB needed"
        )

    def select_outputs(self, expected: Tensors) -> list[str]:
        """Return the names of the outputs that count. Raises BadData: there is no such output."""
        return outputs.select_outputs(expected, self.output)


def check_share(share: float, owner: str) -> float:
    """Return a share that is one.

    Raises:
        BadSettings: It is not within 0 and 1, or is 1, which no number of samples proves.
    """
    if not 0 <= share < 1:
        raise BadSettings(
            f"{owner}: share is {share:g}", fix="give a share of samples from 0 to below 1"
        )
    return share


def parse_group(entry: str) -> tuple[str, int | None, bool]:
    """Return an entry's output, the axis whose places are groups (None: it is one), and its scale.

    Returns:
        The last is whether values are probabilities.

    Raises:
        BadSettings: The entry is not ``AXIS:OUTPUT`` or ``all:OUTPUT``, or with ``%:`` for ``:``.
    """
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise BadSettings(
            f"groups: '{entry}' names no axis of an output",
            fix='write "AXIS:OUTPUT", such as "1:boxes", or "all:boxes" for one group',
        )
    return match[3], None if match[1] == "all" else int(match[1]), bool(match[2])


class Average:
    """The running mean of an output over samples.

    Axes whose length differs between samples are added up: what is constant along them is then
    one number, as an answer of the same words to any number of them would be.
    """

    def __init__(self, values: Floats) -> None:
        self._total = np.zeros_like(values)
        self._count = np.zeros_like(values)
        self._summed: tuple[int, ...] = ()
        self._shape = values.shape
        self.rank = values.ndim

    def add(self, values: Floats) -> None:
        """Take in the values of one more sample, of the same rank."""
        differing = tuple(
            axis
            for axis, lengths in enumerate(zip(self._shape, values.shape, strict=True))
            if len(set(lengths)) > 1 and axis not in self._summed
        )
        self._summed += differing
        self._total = self._total.sum(axis=differing, keepdims=True)
        self._count = self._count.sum(axis=differing, keepdims=True)
        finite = np.isfinite(values)
        self._total += np.where(finite, values, 0.0).sum(axis=self._summed, keepdims=True)
        self._count += finite.sum(axis=self._summed, keepdims=True)

    def mean(self) -> Floats:
        """Return the mean, of length 1 along axes that differ."""
        return np.asarray(self._total / np.maximum(self._count, 1), np.float64)


def measure_groups(
    entries: Sequence[str], expected: Tensors, actual: Tensors, mean: Tensors
) -> list[float]:
    """Return what one sample adds to each group, for `find_worst_group`.

    Of each entry: the number of its groups, then for each how far the original lies from `mean`,
    then for each the noise, both as powers, then for each whether it is loud enough to be judged.
    An output in another shape than the original's is all noise.

    The entries are `parse_group`'s, the mean is `Fidelity.average_expected`'s.
    """
    row: list[float] = []
    for name, axis, is_probable in map(parse_group, entries):
        reference = _read_numbers(expected[name]) if name in mean else None
        if reference is None:
            row.append(0.0)
            continue
        middle = np.broadcast_to(mean[name], reference.shape)
        candidate = _read_numbers(actual[name]) if name in actual else None
        if candidate is None or candidate.shape != reference.shape:
            candidate = middle
        finite = np.isfinite(reference) & np.isfinite(candidate)
        varied = np.subtract(reference, middle, out=np.zeros_like(reference), where=finite)
        varied[np.abs(varied) <= _RESTING * np.abs(middle)] = 0.0
        noise = np.subtract(reference, candidate, out=np.zeros_like(reference), where=finite)
        whole = axis is None or mean[name].shape[axis] == 1
        rows = 1 if whole else reference.shape[axis or 0]
        by_group = [
            (part if axis is None or whole else np.moveaxis(part, axis, 0)).reshape(rows, -1)
            for part in (varied, noise)
        ]
        farthest = np.maximum(*(np.abs(part).max(axis=1, initial=0.0) for part in by_group))
        row.append(rows)
        for part in by_group:
            row += np.square(part).sum(axis=1).tolist()
        row += (farthest > (_SILENT if is_probable else 0.0)).astype(np.float64).tolist()
    return row


def find_worst_group(entries: Sequence[str], records: Floats) -> tuple[float, str]:
    """Return how far the worst group's noise lies below its range, dB; infinity for none.

    Records are rows of `measure_groups`, one a sample.
    """
    totals, at = np.nansum(records, axis=0), 0
    worst, place = math.inf, ""
    for entry in entries:
        count = int(records[0, at])
        varied, noise, loud = totals[at + 1 : at + 1 + 3 * count].reshape(3, count)
        at += 1 + 3 * count
        for group in np.flatnonzero((varied > 0) & (noise > 0) & (loud > 0)).tolist():
            decibels = 10 * float(np.log10(varied[group]) - np.log10(noise[group]))
            if decibels < worst:
                worst, (name, axis, _) = decibels, parse_group(entry)
                where = "" if count == 1 else f"place {group} of {count} along axis {axis} of "
                place = f"{where}output '{name}'"
    return worst, place


def _read_numbers(array: NDArray[np.generic]) -> Floats | None:
    """Return numbers as float64, complex ones by real and imaginary part; None for text."""
    if array.dtype.kind in "USOTM":
        return None
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1).astype(np.float64)
    return array.astype(np.float64)
