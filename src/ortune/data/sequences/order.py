"""Which samples are the steps of one sequence, and which sequences belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median
from typing import Any

from ortune.core.errors import BadData
from ortune.core.wording import count as counted
from ortune.data.sequences.request import FILE, GROUP

_SHOWN = 8


def sequences(
    form: str, count: int, groups: Sequence[str] | None, lengths: Sequence[int] = ()
) -> list[tuple[int, ...]]:
    """Return the samples of every sequence, in order.

    Args:
        form: ``file``, ``group`` or a number of samples.
        count: Samples.
        groups: One a sample. Samples of one group need not be neighbours to be its steps; a
            number of samples does not reach from one group into the next.
        lengths: Steps of every file.

    Raises:
        BadData: There are no groups, or no sequence has two steps.
    """
    if form == FILE:
        ends = [sum(lengths[: at + 1]) for at in range(len(lengths))]
        found = [tuple(range(end - n, end)) for end, n in zip(ends, lengths, strict=True)]
    elif form == GROUP:
        found = _grouped(count, groups)
    else:
        runs = groupby(range(count), key=lambda at: groups[at] if groups else "")
        found = [part for _, run in runs for part in _chunks(tuple(run), int(form))]
    if max(map(len, found), default=0) < 2:
        raise BadData(
            f"--sequence {form}: every sequence has a single step ({counted(count, 'sample')})",
            fix="give sequences of two steps or more; samples without order need no --sequence",
        )
    return found


def named(
    found: Sequence[Sequence[int]], groups: Sequence[str] | None
) -> tuple[tuple[str, ...], ...]:
    """Return for every sequence the groups of its steps: those given, or one of its own."""
    if groups is None:
        return tuple((f"sequence {at}",) * len(one) for at, one in enumerate(found))
    return tuple(tuple(groups[at] for at in one) for one in found)


def told(found: Sequence[Sequence[int]], pairs: Sequence[Any]) -> str:
    """Say what is rolled through what."""
    lengths = sorted(map(len, found))
    steps = f"{lengths[0]} to {counted(lengths[-1], 'step')}, {median(lengths):g} in the middle"
    if lengths[0] == lengths[-1]:
        steps = counted(lengths[0], "step")
    return (
        f"rolled through {counted(len(found), 'sequence')} of {steps}: "
        + ", ".join(map(str, pairs[:_SHOWN]))
        + (f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else "")
    )


def _chunks(run: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
    return (run[at : at + size] for at in range(0, len(run), size))


def _grouped(count: int, groups: Sequence[str] | None) -> list[tuple[int, ...]]:
    if groups is None:
        raise BadData(
            "--sequence group: the samples have no group",
            fix="add 'group' to every sample, or give --sequence file or a number of samples",
        )
    found: dict[str, list[int]] = {}
    for at in range(count):
        found.setdefault(groups[at], []).append(at)
    return [tuple(one) for one in found.values()]
