"""What each region costs in accuracy alone, by forward runs, and what it saves in time.

All regions are switched one at a time in one session, so that a pass over the samples a region is
all that its cost takes. Its time is its part of the profile.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import OrtuneError, Refused, find_interruption
from ortune.core.metric import Kind, Metric
from ortune.core.trial import Interval
from ortune.core.workload import spread_indices
from ortune.graph.analysis.node_costs import node_flops
from ortune.graph.io import names
from ortune.graph.ir import edit
from ortune.graph.shapes.infer import infer_copy
from ortune.measurement.process import Worker, WorkerFailed
from ortune.measurement.statistics import bootstrap
from ortune.measurement.timing.operators import operator_of_kernel
from ortune.metrics.snr import Snr
from ortune.search.mixed_precision.grouping import PrecisionRegion
from ortune.search.mixed_precision.switched import SWITCHES, QuantizedRegion, QuantizedRegions
from ortune.search.recipe.compare import EXACT_DB

Floats: TypeAlias = NDArray[np.float64]
Start: TypeAlias = Callable[[Path, str], Worker]
"""Starts a worker on a model, with a label for its folder."""
NOISE = "output error (1/SNR), mean over samples"
POOLED = "output error (1/SNR)"
MOST, FEWEST = 32, 4
"""Samples that each region is run on: more tell little more of a mean, and fewer tell nothing
whatever little time there is."""
NONE = Interval(0.0, 0.0, 0.0)
UNKNOWN = Interval(math.nan, math.nan, math.nan)
_PAIRED = 1.3  # runs a region, with those of neighbours that lose much: a dozen for fifty regions
_ERROR = 0.025  # at each end of an interval: 95 % between them
_KINDS = {
    "Gemm": "MatMul",
    "FusedGemm": "MatMul",
    "FusedMatMul": "MatMul",
    "Attention": "MatMul",
    "MultiHeadAttention": "MatMul",
    "FusedConv": "Conv",
}
"""Operators whose kernels runtimes put in each other's place -> the one that stands for all."""


@dataclass(frozen=True)
class Loss:
    """How a loss is taken from records: in a unit that adds up over regions.

    Attributes:
        in_metric_unit: The loss is in the metric's own unit; else it is the noise at the outputs.
    """

    metric: Metric
    in_metric_unit: bool

    @classmethod
    def for_metric(cls, metric: Metric) -> Loss:
        """Return how a metric's loss is taken.

        A mean of records whose bounds are unknown is taken as it is. What is right or wrong or the
        share of something moves in steps, and decibels, angles or largest differences do not add
        up over regions, where the power of small independent errors nearly does.
        """
        return cls(metric, metric.kind() is Kind.MEAN and metric.bounds is None)

    @property
    def unit(self) -> str:
        """The unit in words."""
        if self.in_metric_unit:
            return f"{self.metric} lost, mean over samples"
        return POOLED if self.is_pooled else NOISE

    @property
    def is_pooled(self) -> bool:
        """Whether noise is taken over the signal of a mean sample: where a metric looks at each
        sample by itself a quiet one counts as much as the others, else it would outweigh them."""
        return not self.in_metric_unit and self.metric.kind() is not Kind.SHARE

    def per_sample(self, records: Floats, powers: Floats, base: Floats) -> Floats:
        """Return the loss of every sample, shape [samples]; infinite where outputs are broken.

        Args:
            records: Of the metric [samples, k].
            powers: Signal and noise of the outputs [samples, 2].
            base: The metric's records of the float model.
        """
        if self.in_metric_unit:
            sign = 1.0 if self.metric.higher_is_better else -1.0
            losses = sign * (base[:, 0] - records[:, 0])
        else:
            signal, noise = powers[:, 0], powers[:, 1]
            if self.is_pooled:
                measured = signal[~np.isnan(signal)]
                signal = np.where(
                    np.isnan(signal), np.nan, measured.mean() if len(measured) else np.nan
                )
            with np.errstate(divide="ignore", invalid="ignore"):
                losses = np.where(noise == 0, 0.0, noise / signal)
        return np.where(np.isnan(losses), math.inf, losses)


def mean_interval(losses: Floats) -> Interval:
    """Return the mean loss with the ends of its 95 % interval over samples."""
    value = float(np.mean(losses))
    if not math.isfinite(value):
        return Interval(math.inf, math.inf, math.inf)
    members = [np.array([at], np.int64) for at in range(len(losses))]
    low, high = bootstrap.compute_interval(
        lambda rows: float(np.mean(losses[rows])), members, _ERROR
    )
    return Interval(value, min(low, value), max(high, value))


@dataclass(frozen=True)
class ScoredSamples:
    """The samples that costs are taken on.

    Attributes:
        indices: Into the stream that workers have.
    """

    indices: tuple[int, ...]
    labels: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class AccuracyCost:
    """What a region costs alone.

    Attributes:
        error: Why it could not be run; empty where it was.
    """

    region: str
    cost: Interval
    saved: int = 0
    error: str = ""


class AccuracyRuns:
    """The forms of regions at work: one session for all that stand in the joint model.

    Use as a context manager; `start_runs` or `resume_runs` comes first.
    """

    def __init__(
        self,
        forms: QuantizedRegions,
        scored: ScoredSamples,
        metric: Metric,
        folder: Path,
        start: Start,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loss = Loss.for_metric(metric)
        self._forms, self._all, self._folder = forms, scored, folder
        self._scored = scored
        self._start, self._clock = start, clock
        self._stack = ExitStack()
        self._expected = (folder / "float.stream").resolve()

    def __enter__(self) -> Self:
        self._worker = self._stack.enter_context(self._start(self._forms.joint, "regions"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_runs(self, seconds: float, whole: Path) -> tuple[tuple[int, ...], Interval]:
        """Run the float model and the whole plan on as many samples as the time suffices for.

        Args:
            seconds: That all regions may take.

        Returns:
            The places of the samples, evenly taken, and what the whole costs on them.

        Raises:
            WorkerFailed: A model does not run.
        """
        self._worker.ask("load")
        first = self._all.indices[:2]
        self._save_outputs(first[:1])  # a first run takes longer
        began = self._clock()
        self._save_outputs(first)
        each = max(1e-6, self._clock() - began) / len(first)
        count = int(seconds / (each * (2 + _PAIRED * len(self._forms.all))))
        places = spread_indices(len(self._all.indices), max(FEWEST, min(MOST, count)))
        self._run_float(places)
        with self._start(whole, "whole") as worker:
            worker.ask("load")
            return places, mean_interval(self._measure_losses(worker))

    def resume_runs(self, places: Sequence[int]) -> None:
        """Run the float model on the samples that were taken before.

        Raises:
            WorkerFailed: The model does not run.
        """
        self._worker.ask("load")
        self._run_float(places)

    def check_joint(self, plain: Path) -> None:
        """Compare the joint model without a switch on with the float model that it was made of.

        Raises:
            Refused: They differ.
            WorkerFailed: One does not run.
        """
        indices = self._scored.indices[:2]
        kept = (self._folder / "plain.stream").resolve()
        with self._start(plain, "float") as worker:
            worker.ask("load")
            worker.ask("score", indices=indices, metrics=[], save=kept)
        answer = self._worker.ask(
            "score",
            indices=indices,
            metrics=[Snr(share=0)],
            expected=kept,
            switches=self._switch_inputs(),
        )
        same = Snr(share=0).aggregate(np.asarray(answer["records"][0], np.float64))
        if not same >= EXACT_DB:
            raise Refused(
                f"with all switches off the model answers {same:.0f} dB off",
                fix="build the regions one by one",
            )

    def measure_alone(self, form: QuantizedRegion) -> AccuracyCost:
        """Return what a region costs with all others in float."""
        name = form.region.name
        if form.error or not form.changes:
            return AccuracyCost(name, NONE, 0, form.error)
        try:
            if form.switch is not None:
                losses = self._measure_losses(self._worker, form.switch)
            else:
                assert form.path is not None
                with self._start(form.path, "alone") as worker:
                    worker.ask("load")
                    losses = self._measure_losses(worker)
        except WorkerFailed as error:
            if error.interruption or not self._worker.alive:
                raise
            return AccuracyCost(name, NONE, form.saved, error.failure.reason)
        except OrtuneError as error:
            if find_interruption(error):
                raise
            return AccuracyCost(name, NONE, form.saved, error.what)
        return AccuracyCost(name, mean_interval(losses), form.saved)

    def measure_together(self, forms: Sequence[QuantizedRegion]) -> Interval:
        """Return what regions of the joint model cost together, all others in float."""
        return mean_interval(
            self._measure_losses(
                self._worker, *(form.switch for form in forms if form.switch is not None)
            )
        )

    def _run_float(self, places: Sequence[int]) -> None:
        """Run the float model: its outputs are what all others are compared with."""
        labels = self._all.labels and tuple(self._all.labels[at] for at in places)
        self._scored = ScoredSamples(tuple(self._all.indices[at] for at in places), labels)
        self._save_outputs(self._scored.indices)
        if self.loss.in_metric_unit:
            self._base = self._measure_records(self._worker)[0]
        else:  # noise is taken over the signal alone
            self._base = np.zeros((len(self._scored.indices), 1))

    def _measure_losses(self, worker: Worker, *on: int) -> Floats:
        records, powers = self._measure_records(worker, *on)
        return self.loss.per_sample(records, powers, self._base)

    def _measure_records(self, worker: Worker, *on: int) -> tuple[Floats, Floats]:
        metrics, labels = [self.loss.metric] if self.loss.in_metric_unit else [], None
        if metrics and self._scored.labels is not None:
            arrays = (np.ndarray, np.generic)
            labels = [x.tolist() if isinstance(x, arrays) else x for x in self._scored.labels]
        answer = worker.ask(
            "score",
            indices=self._scored.indices,
            metrics=[Snr(), *metrics],
            expected=self._expected,
            labels=labels,
            switches=self._switch_inputs(*on) if worker is self._worker else {},
        )
        powers, *more = (np.asarray(rows, np.float64) for rows in answer["records"])
        return (more[0] if more else powers), powers

    def _save_outputs(self, indices: Sequence[int]) -> None:
        self._worker.ask(
            "score",
            indices=indices,
            metrics=[],
            save=self._expected,
            switches=self._switch_inputs(),
        )

    def _switch_inputs(self, *on: int) -> dict[str, list[bool]]:
        count = self._forms.switches
        return {SWITCHES: [at in on for at in range(count)]} if count else {}


def time_shares(
    model: ir.Model, regions: Iterable[PrecisionRegion], by_operator: Mapping[str, float]
) -> dict[str, float]:
    """Return region -> its share of the original's time, by that of each operator.

    The profile tells operators apart; layers of one operator share its time by floating-point
    operations, or by bytes of weights where shapes are not known. Where it does not name a
    region's operator, all layers share all of the time.
    """
    spent: defaultdict[str, float] = defaultdict(float)
    for name, part in by_operator.items():
        spent[_operator_kind(name)] += part
    regions = list(regions)
    copy = model.clone()
    names.make_names_unique(copy)
    copy, _ = infer_copy(copy)
    names.make_names_unique(copy)
    operations: dict[str, tuple[str, int | None, int]] = {}
    for node in edit.walk_nodes(copy):
        tensors = [edit.const_tensor(value) for value in node.inputs]
        size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        operations[str(node.name)] = _operator_kind(node.op_type), node_flops(node), size
    unknown = {kind for kind, count, size in operations.values() if count is None}
    work = {
        name: (kind, float(size if kind in unknown or count is None else count))
        for name, (kind, count, size) in operations.items()
    }
    layers = {name for region in regions for name in region.layers if name in work}
    if any(work[name][0] not in spent for name in layers):
        work, spent = {name: ("", work[name][1]) for name in layers}, defaultdict(lambda: 1.0)
    total: defaultdict[str, float] = defaultdict(float)
    for kind, amount in work.values():
        total[kind] += amount
    return {
        region.name: sum(
            spent[kind] * amount / max(total[kind], 1.0)
            for kind, amount in (work[name] for name in region.layers if name in work)
        )
        for region in regions
    }


def time_gained(share: float, plan: float) -> Interval:
    """Return what a region probably saves: its layers as much of their time as the plan of its.

    The ends are none the nearer for it. The plan's latency over the original's is NaN where it
    is not known.
    """
    if math.isnan(plan):
        return UNKNOWN
    return Interval(min(share, max(-share, share * (1 - plan))), -share, share)


def _operator_kind(op: str) -> str:
    plain = operator_of_kernel(op.rpartition("::")[2])
    return _KINDS.get(plain, plain)
