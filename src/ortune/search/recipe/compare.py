"""Do two model files compute the same? Asked of a worker, on real or made-up samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import onnx_ir as ir
import psutil

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.session import Tensors
from ortune.core.step import Bridge
from ortune.data import feeds
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream, write_stream
from ortune.graph.io import file
from ortune.measurement.job import WorkerJob
from ortune.measurement.process import WorkerFailed, ask_once, compute_outputs, single_model_job
from ortune.metrics.snr import Snr

EXACT_DB = 90.0
"""A rewrite that only changes the order of float32 operations stays well above this."""
_EXACT_DB = {ir.DataType.BFLOAT16: 27.0, ir.DataType.FLOAT16: 45.0}
"""The same of models that compute in 16 bits: one rounding of float16 leaves about 70 dB, and the
noise of a few hundred in a row 25 dB more; bfloat16 has three bits, 18 dB, less."""
_CONVERTING = frozenset({"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"})
_ORACLE = Cpu(level="disabled")
_COPIES = 2
_SPARE = 256 << 20  # bytes for the runtime itself and for what lies between nodes


@dataclass(frozen=True)
class ExpectedOutputs:
    """The outputs that every step of a build must keep.

    Attributes:
        indices: The few that are run.
        outputs: Stream of the source model's outputs on them.
        least_db: Signal-to-noise ratio of what counts as equal.
        job: What answered; None where outputs of chance are gone already.
    """

    stream: Path
    indices: tuple[int, ...]
    outputs: Path
    custom_ops: tuple[str, ...] = ()
    least_db: float = EXACT_DB
    job: WorkerJob | None = None


def find_exact_db(model: ir.Model) -> float:
    """Return the signal-to-noise ratio that a rewrite of a model keeps if it is exact.

    That depends on the coarsest type that it computes in: a rewrite may change the order of
    operations, and so where they round.
    """
    nodes = [node for node in model.graph.all_nodes() if node.op_type not in _CONVERTING]
    values = (value for node in nodes for value in (*node.inputs, *node.outputs))
    types = {value.dtype for value in values if value is not None}
    return min((db for dtype, db in _EXACT_DB.items() if dtype in types), default=EXACT_DB)


def run_reference(
    model: Path,
    stream: Path,
    indices: Sequence[int],
    folder: Path,
    name: str = "expected",
    *,
    custom_ops: tuple[str, ...] = (),
    backend: Backend | None = None,
    least_db: float = EXACT_DB,
) -> ExpectedOutputs:
    """Run the source model and keep its outputs, in ``FOLDER/NAME.stream``.

    Args:
        backend: By default the CPU's without optimizers.
        least_db: Of what counts as equal.

    Raises:
        WorkerFailed: The source model does not run on these samples.
    """
    path = folder.resolve() / f"{name}.stream"
    job = make_compare_job(model, stream, folder, custom_ops)
    job = job if backend is None else replace(job, backend=backend)
    compute_outputs(job, indices, path)
    return ExpectedOutputs(stream, tuple(indices), path, custom_ops, least_db, job)


def drop_random_outputs(expected: ExpectedOutputs, folder: Path) -> ExpectedOutputs | None:
    """Run the reference again and keep the outputs that it answers alike; None if there is none.

    Raises:
        WorkerFailed: It does not run any more.
    """
    if expected.job is None:
        return expected
    again, path = folder.resolve() / "again.stream", folder.resolve() / "steady.stream"
    compute_outputs(expected.job, expected.indices, again)
    first, second = list(Stream(expected.outputs)), list(Stream(again))
    steady = [
        name
        for name in first[0]
        if compute_snr_db(*([{name: run[name]} for run in runs] for runs in (first, second)))
        >= expected.least_db
    ]
    write_stream(path, [{name: run[name] for name in steady} for run in first])
    return replace(expected, outputs=path, job=None) if steady else None


def describe_odd_outputs(model: ir.Model) -> str | None:
    """Say that an output is no tensor, so that it cannot be compared; else None."""
    odd = (ir.SequenceType, ir.OptionalType)
    names = [str(value.name) for value in model.graph.outputs if isinstance(value.type, odd)]
    return f"outputs are not compared: output '{names[0]}' is not a tensor" if names else None


def describe_memory_lack(model: Path, available: int | None = None) -> str | None:
    """Say that memory does not suffice to run a model beside a person's other work; else None.

    Weights count twice: the runtime lays those of products out anew, and may still hold the first
    copy. Both models are never open at the same time. Available are so many bytes, by default what
    the machine has left now.
    """
    free_bytes = psutil.virtual_memory().available if available is None else available
    needed = _COPIES * file.count_file_bytes(model) + _SPARE
    if needed <= free_bytes:
        return None
    return (
        f"outputs are not compared: running the model may take {needed / 1e9:.1f} GB, "
        f"and {free_bytes / 1e9:.1f} GB are free"
    )


def find_difference(model: Path, expected: ExpectedOutputs, folder: Path) -> str | None:
    """Return why a rewritten model differs from the reference, or None when it does not.

    Raises:
        CutShort: The worker was ended from outside.
    """
    try:
        snr = measure_snr_db(model, expected, folder)
    except WorkerFailed as error:
        error.demand_verdict()
        return error.failure.reason
    least = expected.least_db
    return None if snr >= least else f"outputs differ: {snr:.1f} dB, {least:.0f} wanted"


def measure_snr_db(model: Path, expected: ExpectedOutputs, folder: Path) -> float:
    """Run a model and return its signal-to-noise ratio to the reference.

    NaN says that it answers with NaN or infinity where the reference does not.

    Raises:
        WorkerFailed: It does not run on the samples.
    """
    command = {
        "indices": list(expected.indices),
        "metrics": [Snr()],
        "expected": str(expected.outputs),
    }
    worker_job = make_compare_job(model, expected.stream, folder, expected.custom_ops)
    answer = ask_once(worker_job, ("score", command))[0]
    return Snr().aggregate(np.asarray(answer["records"][0], np.float64))


def compute_snr_db(expected: Sequence[Tensors], actual: Sequence[Tensors]) -> float:
    """Return the signal-to-noise ratio of answers."""
    return Snr().aggregate(Snr().records(expected, actual, None))


def make_compare_job(
    model: Path, stream: Path, folder: Path, custom_ops: tuple[str, ...]
) -> WorkerJob:
    """Return the job of running a model on samples as it is written, on the CPU."""
    return single_model_job(
        model, replace(_ORACLE, custom_ops=custom_ops), stream, folder, "compare"
    )


def carry_samples(bridge: Bridge, source: Feeds, path: Path) -> Feeds:
    """Return the samples as the new model takes them, one for one, written to `path`.

    Raises:
        BadData: A sample does not cross.
    """
    digests: list[str] = []

    def convert_samples() -> Iterator[Tensors]:
        for sample in Stream(source.stream):
            (first,) = islice(bridge.samples(sample), 1)
            digests.append(feeds.digest_sample(first))
            yield first

    write_stream(path, convert_samples())
    return replace(source, stream=path, digests=tuple(digests))


def compare_across(
    bridge: Bridge,
    before: Path,
    after: Path,
    source: Feeds,
    indices: Sequence[int],
    folder: Path,
    *,
    custom_ops: tuple[str, ...] = (),
    least_db: float = EXACT_DB,
) -> tuple[float, str | None]:
    """Compare a model with the one it was made from, across the step.

    Args:
        before: The model that takes the samples `source`.
        least_db: What a rewrite of it keeps (`find_exact_db`); no step is asked for more.

    Returns:
        Decibels, and why the models differ, or None when they do not. NaN decibels where only
        running could be asked.

    Raises:
        CutShort: A worker was ended from outside.
    """
    stream = Stream(source.stream)
    new = [sample for index in indices for sample in bridge.samples(stream[index])]
    runs = [list(bridge.runs(sample)) for sample in new]
    try:
        flat = [sample for old in runs for sample in old]
        old_answers = _run_samples(before, flat, folder, "before", custom_ops) if flat else []
        answers = iter(old_answers)
        expected = [bridge.joined(list(islice(answers, len(old)))) for old in runs if old]
    except WorkerFailed as error:
        error.demand_verdict()
        return float("nan"), f"the model before it does not run: {error.failure.reason}"
    try:
        actual = list(_run_samples(after, new, folder, "after", custom_ops))
    except WorkerFailed as error:
        error.demand_verdict()
        return float("nan"), error.failure.reason
    answered = [answer for answer, old in zip(actual, runs, strict=True) if old]
    if not expected:
        return float("nan"), None
    snr = compute_snr_db(expected, answered)
    if snr >= (limit := min(bridge.decibels, least_db)):
        return snr, None
    return snr, f"outputs differ: {snr:.1f} dB, {limit:.0f} wanted"


def _run_samples(
    model: Path, samples: Sequence[Tensors], folder: Path, label: str, custom_ops: tuple[str, ...]
) -> list[Tensors]:
    """Run a model on samples."""
    inputs = folder / f"{label}.stream"
    write_stream(inputs, samples)
    indices, name = range(len(samples)), f"{label}-outputs"
    result = run_reference(model, inputs, indices, folder, name, custom_ops=custom_ops)
    return list(Stream(result.outputs))
