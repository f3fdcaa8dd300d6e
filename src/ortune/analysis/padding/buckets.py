"""Buckets of lengths that cut the padding off calls: chosen by data, proved and timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ortune.analysis.benchmark.bench import race
from ortune.analysis.padding import lengths as bucketing
from ortune.analysis.padding.proof import Proof, prove
from ortune.analysis.padding.requests import BucketsRequest
from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.errors import BadData, BadModel, BadSettings, Refused
from ortune.core.event import Note, Progress, Sink, silent
from ortune.core.plugins.spelling import parse
from ortune.core.request import verb
from ortune.core.result import Result
from ortune.core.trial import Interval
from ortune.core.workload import spread
from ortune.data import feeds, stream
from ortune.data.padding import Padding, find
from ortune.data.stream import Stream
from ortune.measurement.capabilities import demand
from ortune.measurement.process import Worker, WorkerFailed, lone
from ortune.model.analysis import facts as model_facts
from ortune.model.io import file

COUNT = 4
MULTIPLE = 8
_TIMED = 6
_ROUNDS = 15
_WORTH = 0.98
"""Buckets that leave more than this of the time are not worth having."""


@dataclass(frozen=True, repr=False)
class Buckets(Result):
    """Buckets for a model and its data, and what they are worth.

    Attributes:
        backend: What to give to ``--on`` and ``ot.load``: it cuts, and runs as asked.
        padding: What the data say.
        proof: That padding is without effect.
        latency_ns: Length -> measured latency of a call of that length.
        positions: Share of the padded calls' positions that is computed in buckets.
        least: The same without any padding: as many buckets as lengths.
        predicted: Ratio of latencies, from `latency_ns`.
        measured: The same timed in pairs, with its 99 % interval; None where nobody asked.
    """

    headline = ("backend", "positions", "predicted", "measured")

    backend: Bucketed
    padding: Padding
    proof: Proof
    latency_ns: Mapping[int, int]
    positions: float
    least: float
    predicted: float
    measured: Interval | None = None


def run(asked: BucketsRequest) -> Buckets:
    """Find the padding, prove that it can be cut, choose lengths, time them."""
    path, backend = Path(asked.model), parse(Backend, asked.backends)
    data = asked.data
    if data is None:
        raise BadSettings(
            "buckets are chosen from data, and there is none",
            fix="give --data: samples, padded as they are served",
        )
    demand(backend)
    facts = model_facts.facts(file.load(path))
    with TemporaryDirectory(prefix="ortune-") as name:
        folder = Path(name)
        fed = feeds.load(data, facts.inputs, folder, sink=asked.sink)
        for text in fed.notes:
            asked.sink(Note(text))
        padding = find(facts.inputs, Stream(fed.stream), asked.mask)
        try:
            asked.sink(Progress("comparing with and without padding"))
            proof = _proof(path, backend, padding, fed.stream, folder, asked.least_db)
            asked.sink(Note(f"padding is without effect: {min(proof.snr_db.values()):.0f} dB"))
            latency = timed(
                *(path, backend, proof.cut, padding, fed.stream, folder, asked.multiple),
                sink=asked.sink,
            )
        except WorkerFailed as error:
            raise error.as_bad_model(path, backend) from None
    found = chosen(proof, padding, asked.count, asked.multiple, latency)
    if asked.seconds <= 0:
        return found
    sides = [(path, backend), (path, found.backend)]
    ran = race(sides, data=data, seconds=max(0.1, asked.seconds), sink=asked.sink)
    if ran.ratios[1] is None:
        raise BadModel(f"{found.backend}: {ran.rows[1]['error']}", fix="run with -v")
    return replace(found, measured=ran.ratios[1])


buckets = verb(BucketsRequest, run)


def _proof(
    model: Path,
    backend: Backend,
    padding: Padding,
    samples: Path,
    folder: Path,
    least_db: float,
) -> Proof:
    """Prove it on the backend; one that rounds on its own is no judge of the model."""
    judge = Cpu(custom_ops=backend.custom_ops) if backend.lossy else backend
    proof = prove(model, judge, padding, samples, folder, least_db=least_db)
    return replace(proof, cut=proof.cut.around(backend))


def chosen(
    proof: Proof, padding: Padding, count: int, multiple: int, latency_ns: Mapping[int, int]
) -> Buckets:
    """Choose the lengths by measured latencies; by the number of positions where there are none.

    Raises:
        Refused: They gain next to nothing.
    """
    cost = bucketing.between(latency_ns) if latency_ns else float
    width = max(padding.widths)
    lengths = bucketing.choose(padding.lengths, width, count, cost, multiple)
    predicted = bucketing.share(padding.lengths, padding.widths, lengths, cost)
    if predicted > _WORTH:
        raise Refused(
            f"{100 * padding.share:.1f} % of the positions are padding, and without them a call "
            f"takes {100 * predicted:.0f} % of its time: nothing to gain",
            fix="leave the calls padded",
        )
    return Buckets(
        replace(proof.cut, lengths=lengths),
        padding,
        proof,
        latency_ns,
        bucketing.share(padding.lengths, padding.widths, lengths),
        sum(padding.lengths) / sum(padding.widths),
        predicted,
    )


def proposed(
    model: Path,
    backend: Backend,
    samples: Path,
    folder: Path,
    indices: Sequence[int],
) -> Buckets:
    """Return buckets for a search: by positions alone, so that the same data give the same.

    Args:
        backend: Where padding is proved to be without effect.
        indices: Samples that the proof may use.

    Raises:
        BadData: The data show no padding that could be cut.
        Refused: An answer changes without it, or nothing is gained.
        WorkerFailed: The model does not run.
    """
    padding = find(model_facts.facts(file.load(model)).inputs, Stream(samples))
    proof = prove(model, backend, padding, samples, folder, indices)
    return chosen(proof, padding, COUNT, MULTIPLE, {})


def timed(
    model: Path,
    backend: Backend,
    cut: Bucketed,
    padding: Padding,
    samples: Path,
    folder: Path,
    multiple: int,
    sink: Sink = silent,
) -> dict[int, int]:
    """Return length -> median latency in nanoseconds, at a few lengths that occur.

    Each is timed on a sample cut to it, with all positions marked real. All take turns.
    """
    width = max(padding.widths)
    occur = sorted({min(width, -(-n // multiple) * multiple) for n in padding.lengths} | {width})
    lengths = [occur[k] for k in spread(len(occur), _TIMED)]
    if lengths[-1] != width:
        lengths[-1] = width
    whole = Stream(samples)[padding.widths.index(width)]
    made = folder / "lengths.stream"
    stream.write(made, (_full(cut.cut(whole, n), cut.mask) for n in lengths))
    taken: dict[int, list[int]] = {n: [] for n in lengths}
    with Worker(lone(model, backend, made, folder, "lengths")) as worker:
        worker.ask("load")
        for turn in range(_ROUNDS + 1):
            sink(Progress("timing lengths", turn, _ROUNDS + 1))
            for place, length in enumerate(lengths):
                answer = worker.ask("burst", at=place, runs=1)
                if turn:  # the first run at a length allocates, and may compile
                    taken[length] += answer["latency_ns"]
    if not all(taken.values()):
        raise BadData("no run could be timed", fix="try another backend")
    return {n: int(median(found)) for n, found in taken.items()}


def _full(sample: Mapping[str, Any], mask: str) -> dict[str, Any]:
    return {**sample, mask: np.ones_like(sample[mask])}
