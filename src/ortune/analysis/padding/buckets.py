"""Buckets of lengths that cut the padding off calls: chosen by data, proved and timed."""

from dataclasses import replace
from pathlib import Path

from ortune.analysis.benchmark.bench import race_contestants
from ortune.analysis.padding.requests import BucketsRequest
from ortune.backends.cpu import Cpu
from ortune.core import hub
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings
from ortune.core.event import Note, Progress
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.request import make_verb
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data import feeds
from ortune.data.padding import find_padding
from ortune.data.stream import Stream
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.process import require_backend, translate_failures
from ortune.search.padding import Buckets, choose_buckets, prove, time_lengths


def run(request: BucketsRequest) -> Buckets:
    """Find the padding, prove that it can be cut, choose lengths, time them."""
    path, backend = Path(request.model), parse_plugin(Backend, request.backends)
    data = request.data
    if data is None:
        raise BadSettings(
            "buckets are chosen from data, and there is none",
            fix="give --data: samples, padded as they are served",
        )
    require_backend(backend)
    facts = model_facts.read_facts(file.load(path))
    with open_temporary_folder() as folder:
        settings = hub.find_folder(path)
        fed = feeds.load_feeds(data, facts.inputs, folder, settings=settings, sink=request.sink)
        for text in fed.notes:
            request.sink(Note(text))
        padding = find_padding(facts.inputs, Stream(fed.stream), request.mask)
        with translate_failures(f"{path} does not run on {backend}"):
            request.sink(Progress("comparing with and without padding"))
            # A backend that rounds on its own is no judge of the model.
            judge = Cpu(custom_ops=backend.custom_ops) if backend.lossy else backend
            proof = prove(path, judge, padding, fed.stream, folder, least_db=request.least_db)
            proof = replace(proof, cut=proof.cut.wrap_backend(backend))
            snr_db = min(proof.snr_db.values())
            request.sink(Note(f"padding does not change the outputs: SNR {snr_db:.0f} dB"))
            files = (fed.stream, folder)
            how = (path, backend, proof.cut, padding, *files)
            latency = time_lengths(*how, multiple=request.multiple, sink=request.sink)
    result = choose_buckets(proof, padding, request.count, request.multiple, latency)
    if request.seconds <= 0:
        return result
    sides = [(path, backend), (path, result.backend)]
    ran = race_contestants(sides, data=data, time=max(0.1, request.seconds), sink=request.sink)
    if ran.ratios[1] is None:
        raise BadModel(
            f"{result.backend}: {ran.rows[1]['error']}", fix="run again with -v for the log"
        )
    return replace(result, measured=ran.ratios[1])


buckets = make_verb(BucketsRequest, run)
