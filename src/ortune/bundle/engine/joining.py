"""Samples of equal shapes computed together, along what is proved to be a batch dimension."""

import threading
import warnings
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.backends.bucketed import Bucketed
from ortune.bundle.engine.golden import snr_db
from ortune.bundle.engine.manifest import Signature
from ortune.core.backend import Backend
from ortune.core.facts import TensorSpec
from ortune.core.session import Tensors
from ortune.core.termination import RunTerminated
from ortune.data.stream import NO_DTYPE

Outputs: TypeAlias = dict[str, NDArray[Any]]
Answer: TypeAlias = Outputs | Exception
"""Outputs by name, or why there are none."""
Form: TypeAlias = tuple[tuple[int, ...], ...]
"""The shape of every input behind its first dimension, without the padding that is cut."""
SAME_DB = 60.0
"""Answers that differ by more depend on what they are computed with. Real models in float32 give
the same bits joined as alone; integers whose range is taken over the batch left 14 to 48 dB."""


class Joint:
    """Which samples of a model may be computed together, and their answers.

    They are joined along the first dimension where it is free in all inputs and outputs, under one
    name that no other dimension has. That name may still be no batch, such as the tokens of one
    text, so two samples are computed both ways before the first is joined; where answers disagree,
    samples of this model run one by one.

    A backend with length buckets would cut a run to the longest sample in it. So samples are cut
    before they are joined, each to its own bucket: those of one bucket have one shape whatever
    their padding was, and each gets what it gets alone.

    Every batch is filled up to `fill` rows, by repeating its last one; 0 fills none.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        run: Callable[[Tensors], Outputs],
        backend: Backend | None = None,
        *,
        fill: int = 0,
    ) -> None:
        self._name, self._run, self._fill = name, run, fill
        self._compared: Callable[[Tensors, Tensors], Tensors] = (
            backend.compared if backend else lambda feeds, outputs: outputs
        )
        self._buckets = backend if isinstance(backend, Bucketed) else None
        self._inputs = [spec.name for spec in signature.inputs]
        self._joins = has_free_batch(signature)
        self._proved = False
        self._proving = threading.Lock()

    def find_form(self, feeds: Tensors) -> tuple[Form | None, int]:
        """Return what samples to be joined share, and this one's rows; None, 1 for one alone."""
        if not self._joins:
            return None, 1
        feeds = self._cut_to_bucket(feeds)
        shapes = [feeds[name].shape for name in self._inputs]
        rows = shapes[0][0]
        if not rows or any(shape[0] != rows for shape in shapes):
            return None, 1
        return tuple(shape[1:] for shape in shapes), rows

    def group_samples(self, samples: Sequence[Tensors], most: int) -> list[list[int]]:
        """Return the places of samples computed together, `most` rows a group where they fit."""
        groups: list[list[int]] = []
        last: dict[Form | None, tuple[list[int], int]] = {}
        for place, feeds in enumerate(samples):
            form, rows = self.find_form(feeds)
            group, group_rows = last.get(form, ([], most))
            if group_rows + rows > most:
                group, group_rows = [], 0
                groups.append(group)
            group.append(place)
            if form is not None:
                last[form] = group, group_rows + rows
        return groups

    def compute_answers(self, samples: Sequence[Tensors]) -> Sequence[Answer]:
        """Return each sample's answer; none fails for another's sake. Raises RunTerminated."""
        if (len(samples) > 1 or self._fill) and self.prove_joinable(samples):
            together = self._compute_together(samples)
            if together is not None:
                return together
        return [self._compute_alone(sample) for sample in samples]

    def prove_joinable(self, samples: Sequence[Tensors]) -> bool:
        """Say whether samples may be joined; asked for the first time, two are computed both ways.

        The second is one that differs from the first, or the first with its values in reverse
        order. The question stays open where a sample is refused, or all values are equal.
        """
        if self._proved or not self._joins:
            return self._proved
        with self._proving:
            if self._joins and not self._proved:
                first = self._cut_to_bucket(samples[0])
                reverse = {  # the same values: ids stay ids, masks stay masks
                    name: np.ascontiguousarray(array.ravel()[::-1]).reshape(array.shape)
                    for name, array in first.items()
                }
                candidates = (*map(self._cut_to_bucket, samples[1:]), reverse)
                other = next(
                    (candidate for candidate in candidates if not _are_equal(candidate, first)),
                    None,
                )
                if other is not None:
                    self._compare_pair(first, other)
        return self._proved

    def fill_up(self, feeds: Tensors) -> Tensors:
        """Return inputs with as many rows as every batch has; more, and no rows, stay so."""
        form, rows = self.find_form(feeds)
        if form is None or (missing := self._fill - rows) <= 0:
            return feeds
        return {
            name: np.concatenate([array, np.repeat(array[-1:], missing, 0)])
            for name, array in feeds.items()
        }

    def _cut_to_bucket(self, feeds: Tensors) -> Tensors:
        """Return a sample as its bucket has it."""
        length = self._buckets.choose_bucket(feeds) if self._buckets else 0
        return self._buckets.cut_feeds(feeds, length) if self._buckets and length else feeds

    def _compare_pair(self, *pair: Tensors) -> None:
        """Join two samples and find out whether each is answered as alone."""
        alone = [
            expected
            for expected in map(self._compute_alone, pair)
            if not isinstance(expected, Exception)
        ]
        if len(alone) < len(pair):
            return
        together = self._compute_together(pair)
        agreement_db = min(
            (
                snr_db(self._compared(feeds, expected), self._compared(feeds, actual))
                for feeds, expected, actual in zip(pair, alone, together or (), strict=False)
            ),
            default=float("-inf"),
        )
        self._proved = self._joins = agreement_db >= SAME_DB
        if not self._joins:
            warnings.warn(
                f"{self._name}: outputs change when samples are batched (SNR {agreement_db:.0f} "
                "dB), so each sample is computed alone",
                RuntimeWarning,
                stacklevel=2,
            )

    def _compute_alone(self, feeds: Tensors) -> Answer:
        try:
            return self._run(feeds)
        except RunTerminated:
            raise
        except Exception as error:
            return error

    def _compute_together(self, samples: Sequence[Tensors]) -> list[Outputs] | None:
        """Return the parts of one run's outputs; None where it fails or gives other rows."""
        rows = [sample[self._inputs[0]].shape[0] for sample in samples]
        ends = list(accumulate(rows))
        try:
            cut = [self._cut_to_bucket(sample) for sample in samples]
            feeds = self.fill_up(
                {n: np.concatenate([sample[n] for sample in cut]) for n in self._inputs}
            )
            outputs = self._run(feeds)
        except RunTerminated:
            raise
        except Exception:
            return None
        total = len(feeds[self._inputs[0]])
        if any(array.shape[:1] != (total,) for array in outputs.values()):
            return None
        parts = [
            {name: array[end - count : end].copy() for name, array in outputs.items()}
            for count, end in zip(rows, ends, strict=True)
        ]
        if (buckets := self._buckets) is None:
            return parts
        return [  # what was cut gets the length of its inputs again
            part if short is whole else buckets.pad_outputs(part, whole[buckets.mask].shape[1])
            for part, whole, short in zip(parts, samples, cut, strict=True)
        ]


def _are_equal(first: Tensors, second: Tensors) -> bool:
    return all(np.array_equal(array, second[name]) for name, array in first.items())


def has_free_batch(signature: Signature) -> bool:
    """Say whether inputs and outputs have one free first dimension, which is no other one too."""
    specs = (*signature.inputs, *signature.outputs)
    shapes = [spec.shape for spec in specs if spec.shape]
    if not signature.inputs or len(shapes) < len(specs) or not all(map(_is_dense, specs)):
        return False
    first = shapes[0][0]
    return isinstance(first, str) and all(
        shape[0] == first and first not in shape[1:] for shape in shapes
    )


def _is_dense(spec: TensorSpec) -> bool:
    """Whether values are numbers in an array: no text, no sequence."""
    try:
        return np.dtype(spec.dtype).kind not in "OUST" if spec.dtype else False
    except NO_DTYPE:
        return False
