"""Everything that is fixed before the first candidate is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.errors import BadData
from ortune.core.facts import Facts
from ortune.core.metric import Metric, stack_records
from ortune.core.plugins import codec
from ortune.core.self_agreement import SelfAgreement
from ortune.core.session import Tensors
from ortune.core.study import Job
from ortune.data.stream import Stream
from ortune.measurement.accuracy import ERROR
from ortune.measurement.job import WorkerJob
from ortune.measurement.timing.turns import Deadlines
from ortune.search.experiment.experiment import worker_environment
from ortune.search.recipe.ahead import BuildsAhead
from ortune.search.recipe.build import Material
from ortune.search.recipe.shared import SharedCache


@dataclass(frozen=True)
class ScoredPart:
    """Samples that are scored together.

    Attributes:
        name: ``search`` or ``final``.
        indices: Into the feeds, or into the records of an evaluate function.
        expected: Stream of the baseline's outputs on them; None with an evaluate function.
        records: The baseline's records [samples, k].
        proof: Places in `indices` on which a proof may rest: different samples that nothing was
            chosen by.
        different: Places of samples that equal none before them; None takes all.
    """

    name: str
    indices: tuple[int, ...]
    expected: Path | None
    records: NDArray[np.float64]
    labels: tuple[Any, ...] | None = None
    groups: tuple[str, ...] | None = None
    proof: tuple[int, ...] = ()
    different: tuple[int, ...] | None = None

    def take_first(self, count: int) -> ScoredPart:
        """Return its first samples alone."""
        different = self.different
        return replace(
            self,
            indices=self.indices[:count],
            records=self.records[:count],
            labels=None if self.labels is None else self.labels[:count],
            groups=None if self.groups is None else self.groups[:count],
            proof=tuple(place for place in self.proof if place < count),
            different=None if different is None else tuple(p for p in different if p < count),
        )


@dataclass(frozen=True)
class Context:
    """The fixed surroundings of a search.

    Attributes:
        models: Name -> original file; one model is named "".
        feeds: Name -> stream that timing runs on.
        materials: Name -> what builds of this model may use.
        parts: ``search`` and ``final``; ``search`` alone where nothing is chosen.
        evaluate: The user's scoring function, or empty.
        finalists: Plans that may be judged on samples that no choice has read.
        watched: What outputs that the budget does not read should keep: named, never decisive.
        doubt: What is to be said before anything else of labels or of the original's score.
        provable: Something can be proved against the original.
        agreement: Whether the original agrees with itself.
        yielded: The group of each sample of an evaluate function; None of one without groups.
        by_operator: Operator -> its share of the original's time, from the run's header.
        by_region: Whether plans may differ in precision by region, from there too.
        deadlines: Of a plan's requests, by what the original took.
        shared: Where measurements of like machines may be.
        ahead: What other nodes build meanwhile; None without a cluster.
    """

    root: Path
    job: Job
    facts: Facts
    models: Mapping[str, Path]
    feeds: Mapping[str, Path]
    materials: Mapping[str, Material]
    parts: Mapping[str, ScoredPart]
    evaluate: str
    timeout_s: float
    memory_limit: int | None = None
    verbose: bool = False
    finalists: int = 1
    watched: tuple[Budget, ...] = ()
    doubt: str = ""
    provable: bool = True
    yielded: tuple[str | None, ...] | None = None
    by_operator: Mapping[str, float] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    by_region: bool = True
    agreement: SelfAgreement = field(default_factory=SelfAgreement)
    shared: SharedCache | None = None
    ahead: BuildsAhead | None = None

    @property
    def error(self) -> float:
        """The chance of a false proof that one plan may take: all of them together 5 %."""
        return ERROR / self.finalists

    @property
    def seed(self) -> int:
        """Orders samples for the bounds that depend on an order: by the data alone."""
        return int(codec.digest(self.job.data_digest), 16)

    @property
    def budget(self) -> Budget:
        """The accuracy budget."""
        return self.job.budget

    def scoring_s(self, part: ScoredPart, run_ns: int = 0) -> float:
        """Return the seconds that scoring a part may take of a plan whose runs take `run_ns`."""
        usual = max(self.timeout_s, 20 * len(part.indices) * self.deadlines.run_ns / 1e9)
        return self.deadlines.score_s(run_ns, usual)

    def evaluation_parts(self) -> tuple[ScoredPart, ...]:
        """Return what finalists are judged on: the search's part and the part held out from it."""
        return list_evaluation_parts(self.parts)

    def worker_job(self, models: Mapping[str, Path], backend: Backend, folder: Path) -> WorkerJob:
        """Return the job that opens these models on a backend."""
        return WorkerJob(
            {name: path.absolute() for name, path in models.items()},
            backend,
            {name: path.resolve() for name, path in self.feeds.items()},
            folder.resolve(),
            self.job.workload,
            verbose=self.verbose,
            environment=worker_environment(self.job, backend),
        )


def list_evaluation_parts(parts: Mapping[str, ScoredPart]) -> tuple[ScoredPart, ...]:
    """Return the search's part, and the final one unless it is of the same samples."""
    search, final = parts["search"], parts.get("final")
    held_out = final is not None and set(final.indices).isdisjoint(search.indices)
    return (search, final) if final is not None and held_out else (search,)


def list_shown_metrics(budget: Budget) -> list[Metric]:
    """Return the metrics that are scored beside the budget's, where they can be."""
    from ortune.metrics.agreement import Agreement
    from ortune.metrics.perplexity import Perplexity
    from ortune.metrics.sentence_cosine import SentenceCosine
    from ortune.metrics.snr import Snr
    from ortune.metrics.spearman import Spearman

    logits = budget.metric.output if isinstance(budget.metric, Perplexity) else ""
    metrics: list[Metric] = [Snr(), Agreement(logits)]
    if isinstance(budget.metric, SentenceCosine):
        metrics.append(Spearman(budget.metric.output, budget.metric.pooling))
    if isinstance(budget.metric, Spearman):
        metrics.append(SentenceCosine(budget.metric.output, pooling=budget.metric.pooling))
    if budget.metric == Agreement("logits"):
        metrics.append(Perplexity())
    return [metric for metric in metrics if metric.name() != budget.metric.name()]


def to_record_array(
    rows: Sequence[Sequence[float]], count: int | None = None
) -> NDArray[np.float64]:
    """Return per-sample records as an array [samples, k].

    Args:
        count: How many there must be; None takes any number.

    Raises:
        BadData: Rows differ in length, or there are more or fewer than `count`.
    """
    if count is not None and len(rows) != count:
        raise BadData(
            f"{wording.format_count(len(rows), 'record')} came back, {count} from the original",
            fix="return one record a sample, whatever the outputs are",
        )
    if len({len(row) for row in rows}) > 1:
        raise BadData("records differ in length", fix="return the same numbers for every sample")
    return np.asarray(rows, np.float64).reshape(len(rows), len(rows[0]) if rows else 1)


def make_scored_part(
    name: str,
    indices: Sequence[int],
    outputs: Stream,
    metric: Metric,
    *,
    labels: Sequence[Any] | None = None,
    groups: Sequence[str] | None = None,
    inputs: Callable[[int], Tensors] | None = None,
) -> ScoredPart:
    """Put a part of the data together with the original's records on it.

    Of the original are the outputs; a metric that reads inputs gets them by a sample's index.
    """
    part_labels = None if labels is None else tuple(labels[i] for i in indices)
    fed = inputs if metric.reads_inputs else None
    rows = [
        metric.records(
            [out],
            [out],
            None if part_labels is None else [part_labels[i]],
            None if fed is None else [fed(indices[i])],
        )
        for i, out in enumerate(outputs)
    ]
    records = stack_records(rows)
    grouped = None if groups is None else tuple(groups[i] for i in indices)
    return ScoredPart(name, tuple(indices), outputs.path, records, part_labels, grouped)
