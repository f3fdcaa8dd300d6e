"""Buckets of lengths that cut the padding off calls: chosen by data, proved and timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.analysis.benchmark.bench import race
from ortune.analysis.padding.requests import BucketsRequest
from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings
from ortune.core.event import Note, Progress
from ortune.core.plugins.spelling import parse
from ortune.core.request import verb
from ortune.data import feeds
from ortune.data.padding import Padding, find
from ortune.data.stream import Stream
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.process import WorkerFailed, demand
from ortune.search.padding import Buckets, Proof, chosen, prove, timed


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
    model: Path, backend: Backend, padding: Padding, samples: Path, folder: Path, least_db: float
) -> Proof:
    """Prove it on the backend; one that rounds on its own is no judge of the model."""
    judge = Cpu(custom_ops=backend.custom_ops) if backend.lossy else backend
    proof = prove(model, judge, padding, samples, folder, least_db=least_db)
    return replace(proof, cut=proof.cut.around(backend))
