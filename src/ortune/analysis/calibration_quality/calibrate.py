"""The ranges that a quantizer needs, and how far to trust them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx_ir as ir

from ortune.analysis.calibration_quality import stability
from ortune.analysis.calibration_quality.probes import QuantizerProbes, probes, settled
from ortune.analysis.calibration_quality.requests import Calibrate
from ortune.analysis.calibration_quality.stability import Stability
from ortune.backends.cpu import Cpu
from ortune.calibration import ranges_file, tensorrt_cache
from ortune.calibration.activity import Inactive, activity_probes, inactive
from ortune.calibration.calibrate import Calibrated, calibrate_groups
from ortune.core import wording
from ortune.core.atomic_write import write_text
from ortune.core.errors import BadSettings
from ortune.core.event import Note
from ortune.core.observer import Observer, Probe, Range, Ranges
from ortune.core.outputs import free
from ortune.core.plugins import codec
from ortune.core.request import verb
from ortune.core.result import TableResult
from ortune.core.step import Quantizer
from ortune.core.version import __version__
from ortune.core.workload import spread
from ortune.data import augment as augmenting
from ortune.data import feeds as feeds_module
from ortune.data.feeds import Feeds
from ortune.measurement.rolled import Sequenced
from ortune.model.analysis import facts as model_facts
from ortune.model.graph import edit
from ortune.model.io import file, names
from ortune.model.shapes.infer import infer

TENSORRT = "8.6.1"
"""Last release but one series whose caches are still asked for; 11 has none any more."""


@dataclass(frozen=True)
class TensorRange:
    """One range, and how sure it is.

    Attributes:
        op: Operator that makes it; empty for an input of the model.
        step: Of the 8-bit grid over the range and zero.
        apart: Disagreement of the halves of the data in steps; None where it is not known.
        halves: Their ranges [low, high].
    """

    name: str
    op: str
    low: float
    high: float
    step: float
    apart: float | None = None
    halves: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, repr=False)
class Calibration(TableResult):
    """What `calibrate` found.

    Attributes:
        document: What `save` writes.
        tensors: One a range, in the order of the graph.
        stability: Whether the data is enough.
        idle: Tensors and channels that stayed inactive on the samples, and constant ones.
        unanswered: Tensors that never held a value.
        every: Range of every float tensor of the file's own graph, if it was asked for.
        notes: What a person should know.
    """

    headline = ("model", "observer", "samples", "augment", "stability")
    table = "tensors"

    model: str
    quantizer: str
    observer: str
    samples: int
    augment: str
    document: Mapping[str, Any]
    tensors: tuple[TensorRange, ...]
    stability: Stability
    idle: tuple[Inactive, ...]
    unanswered: tuple[str, ...]
    every: Ranges
    seconds: float
    peak_rss: int
    notes: tuple[str, ...]

    def save(self, path: str | Path) -> Path:
        """Write the ranges as JSON; see `ortune.calibration.ranges_file`."""
        return write_text(Path(path), json.dumps(self.document, indent=1) + "\n")

    def save_tensorrt(self, path: str | Path, version: str = TENSORRT) -> Path:
        """Write a TensorRT calibration cache of every float tensor.

        Raises:
            BadSettings: They were not asked for, or the version cannot be read.
        """
        if not self.every:
            raise BadSettings(
                "only the quantizer's tensors were calibrated, TensorRT needs all",
                fix="calibrate with every=True",
            )
        return write_text(Path(path), tensorrt_cache.text(self.every, version))

    def result(self) -> dict[str, Any]:
        """Return what ``--json`` shows; see ``docs/cli.md``."""
        left = ("document", "every")
        return {k: codec.encode(v) for k, v in vars(self).items() if k not in left}


def run(asked: Calibrate) -> Calibration:
    """Observe the tensors that a quantizer asks for, over all samples and over parts of them."""
    step, files = settled(asked.quantizer, asked.observer), _files(asked)
    with TemporaryDirectory(prefix="ortune-") as name:
        folder = Path(name)
        seen, wanted = _samples(asked, folder), probes(Path(asked.model), step)
        sets = stability.sets(stability.quarters(seen.feeds, seen.indices), seen.independent)
        watched = activity_probes(wanted.model, [probe.tensor for probe in wanted.probes])
        found = calibrate_groups(
            wanted.model,
            [*wanted.probes, *watched],
            seen.feeds.stream,
            [seen.indices, *sets],
            folder / "own",
            custom_ops=asked.custom_ops,
            sink=asked.sink,
        )
        more = asked.every or asked.tensorrt_cache is not None
        every = _every(asked, wanted.observer, seen, folder / "every") if more else {}
    made = _calibration(asked, step, wanted, seen, found, every)
    if files.out is not None:
        made.save(files.out)
    if files.cache is not None:
        made.save_tensorrt(files.cache, asked.tensorrt_version)
    return made


calibrate = verb(Calibrate, run)


@dataclass(frozen=True)
class _Files:
    out: Path | None
    cache: Path | None


def _files(asked: Calibrate) -> _Files:
    """Return what will be written.

    Raises:
        OrtuneError: It may not be, both are one file, or the version has no cache.
    """
    tensorrt_cache.number(asked.tensorrt_version)
    out, cache = (
        None if path is None else free(path, asked.force, asked.model)
        for path in (asked.out, asked.tensorrt_cache)
    )
    if out is not None and cache is not None and out.resolve() == cache.resolve():
        raise BadSettings(f"-o and --tensorrt-cache both write {out}", fix="give two names")
    return _Files(out, cache)


@dataclass(frozen=True)
class _Seen:
    feeds: Feeds
    indices: tuple[int, ...]
    independent: int
    notes: tuple[str, ...]


def _samples(asked: Calibrate, folder: Path) -> _Seen:
    ways = augmenting.read(asked.augment) if asked.augment else ()
    samples, facts = asked.samples or 0, model_facts.facts(file.load(asked.model))
    if asked.sequence:
        model, cpu = Path(asked.model), Cpu(custom_ops=asked.custom_ops)
        rolled = Sequenced(model, file.digest(model), facts, asked, cpu, asked.shapes, folder)
        fed = rolled.load(asked.source, folder, sink=asked.sink)
    else:
        fed = feeds_module.load(asked.source, facts.inputs, folder)
    notes = list(fed.notes)
    if samples > fed.count:
        notes.append(f"{wording.count(samples, 'sample')} asked for, {fed.count} there")
    indices = tuple(spread(fed.count, samples or fed.count))
    if ways:
        fed = augmenting.augment(fed, indices, ways, folder)
        notes += fed.notes
        indices = tuple(range(fed.count))
    for text in notes:
        asked.sink(Note(text))
    return _Seen(fed, indices, stability.independent(fed, indices), tuple(notes))


def _every(asked: Calibrate, observer: Observer, seen: _Seen, folder: Path) -> Ranges:
    """Observe every float tensor of the main graph, named as in the file."""
    model = file.load(asked.model)
    names.unique(model)
    infer(model)
    held = [value for value in model.graph.inputs if not value.is_initializer()]
    made = [value for node in model.graph if node.op_type != "Constant" for value in node.outputs]
    wanted = [
        Probe(str(value.name), observer)
        for value in (*held, *made)
        if value.name and value.dtype == ir.DataType.FLOAT
    ]
    stream, libraries = seen.feeds.stream, asked.custom_ops
    found = calibrate_groups(
        *(model, wanted, stream, [seen.indices], folder), custom_ops=libraries, sink=asked.sink
    )
    return found.ranges[0]


def _calibration(
    asked: Calibrate,
    step: Quantizer,
    wanted: QuantizerProbes,
    seen: _Seen,
    found: Calibrated,
    every: Ranges,
) -> Calibration:
    first, tensors = found.ranges[0], [probe.tensor for probe in wanted.probes]
    whole = {p.key: first[p.key] for p in wanted.probes if p.key in first}
    unanswered = tuple(p.tensor for p in wanted.probes if p.key not in whole)
    digests = tuple(seen.feeds.digests[index] for index in seen.indices)
    observer, count = str(wanted.observer), len(digests)
    document = ranges_file.document(
        ranges_file.entries(whole, wanted.probes, observer),
        model=Path(asked.model),
        digest=file.digest(asked.model),
        quantizer=str(step),
        observer=observer,
        samples=ranges_file.Samples(count, digests, asked.augment),
        unanswered=unanswered,
        version=__version__,
    )
    return Calibration(
        model=str(asked.model),
        quantizer=str(step),
        observer=observer,
        samples=count,
        augment=asked.augment,
        document=document,
        tensors=tuple(_tensors(wanted.model, whole, found.ranges[1:3])),
        stability=stability.judge(whole, found.ranges[1:], seen.independent, count),
        idle=tuple(inactive(wanted.model, first, tensors)),
        unanswered=unanswered,
        every=every,
        seconds=found.seconds,
        peak_rss=found.peak_rss,
        notes=(*seen.notes, *found.notes),
    )


def _tensors(
    model: ir.Model, whole: Mapping[str, Range], halves: Sequence[Ranges]
) -> list[TensorRange]:
    ops = {
        str(value.name): node.op_type for node in edit.every_node(model) for value in node.outputs
    }
    made = []
    for name, seen in whole.items():
        both = [half.get(name) for half in halves]
        apart = stability.apart(seen, both[0], both[1]) if both else math.nan
        made.append(
            TensorRange(
                name,
                ops.get(name, ""),
                seen.low,
                seen.high,
                (max(seen.high, 0.0) - min(seen.low, 0.0)) / stability.STEPS,
                None if math.isnan(apart) else apart,
                tuple((half.low, half.high) for half in both if half is not None),
            )
        )
    return made
