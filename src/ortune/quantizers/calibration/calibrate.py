"""Answer every probe over the calibration samples, in worker runs of bounded memory.

`calibrate_groups` answers probes over several lists of samples at once, each list with observers
of its own. Lists may overlap; a sample is run once a pass, however many lists it is in.

Tensors and channels are inactive that are at zero on every sample, or of a branch never taken: put
`make_activity_probes` beside other probes, then read `find_inactive` off the answers.

Answers are keyed by `Probe.key`. A probe has no answer, and a note says why, when its tensor
cannot be exposed (it is a constant, or in a body that cannot hand it out) or when it never held a
value on the samples (the branch of an If that was never taken).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortune.backends.cpu import Cpu
from ortune.core.atomic_write import write_text
from ortune.core.errors import BadData, BadModel
from ortune.core.event import Sink, ignore_event
from ortune.core.hardware.memory import count_allowed_bytes
from ortune.core.observer import Probe, Ranges
from ortune.core.plugins import catalog, codec
from ortune.core.wording import join_names
from ortune.graph.ir import edit
from ortune.graph.parts.probed import ModelProbe, open_probe
from ortune.measurement.allowance import process_allowance
from ortune.measurement.process import Worker, WorkerFailed, single_model_job
from ortune.measurement.worker.observers import decode_range
from ortune.quantizers.observers.activity import Activity

MOST, SHARE = 4_000_000_000, 1 / 6
"""Bytes that the observed tensors of one worker run, and what is kept of them, may take: this
share of what a worker may have. Each run goes through the model anew, so that fewer are faster."""

_TIMEOUT_S, _RUN_S = 1800, 30
_COPIES = 2
"""The runtime hands outputs over as copies: for a moment there are two."""
_LISTED = 3
RANGES = "ranges.json"
"""In the folder of a model and its samples: what was observed so far."""


@dataclass(frozen=True)
class CalibrationResult:
    """What `calibrate_groups` found."""

    ranges: tuple[Ranges, ...]  # one mapping a group of samples, in the order given
    notes: tuple[str, ...] = ()
    seconds: float = 0.0  # wall time; 0 when every answer was known before
    peak_rss: int = 0
    parts: int = 0  # worker runs that the probes were split into to stay within the memory


def compute_ranges(
    model: ir.Model,
    probes: Sequence[Probe],
    stream: Path,
    indices: Sequence[int],
    folder: Path,
    *,
    custom_ops: tuple[str, ...] = (),
    sink: Sink = ignore_event,
) -> Ranges:
    """Observe each probed tensor over the samples; memory does not depend on their number.

    Notes on probes without an answer are left with the model (`edit.note`); see
    `calibrate_groups`, which this is for one group.
    """
    result = calibrate_groups(
        model, probes, stream, [indices], folder, custom_ops=custom_ops, sink=sink
    )
    for text in result.notes:
        edit.add_note(model, text)
    return result.ranges[0]


def calibrate_groups(
    model: ir.Model,
    probes: Sequence[Probe],
    stream: Path,
    groups: Sequence[Sequence[int]],
    folder: Path,
    *,
    memory: int | None = None,
    custom_ops: tuple[str, ...] = (),
    sink: Sink = ignore_event,
) -> CalibrationResult:
    """Observe each probed tensor over each group of samples.

    Args:
        model: Left unchanged.
        groups: Lists of sample indices; they may overlap.
        folder: For the watched model, for files of moments and for ``ranges.json``, from which
            later calls for the same model and stream are answered.
        memory: Bytes that one worker run may hold; None takes a sixth of what it may have, 4 GB
            at most. Probes are split into runs by the tensors' sizes on the largest sample; a
            single tensor that takes more is observed alone.

    Raises:
        BadData: A tensor is not finite on the data; the text names it.
        BadModel: The model does not run.
    """
    started = time.monotonic()
    groups = [list(indices) for indices in groups]
    cache = RangeCache(folder, groups)
    missing = cache.list_missing(probes)
    peak = parts = 0
    if missing:
        if memory is None:
            allowed = count_allowed_bytes(process_allowance().count_bytes())
            memory = int(min(MOST, SHARE * allowed))
        run = _CalibrationRun(model, missing, stream, groups, folder, memory, custom_ops, sink)
        for answer in run.collect_answers(cache):
            peak, parts = int(answer["peak_rss"]), parts + 1
        cache.store()
    ranges = tuple(
        {
            probe.key: decode_range(data)
            for probe in probes
            if (data := cache.get(group, probe)) is not None
        }
        for group in range(len(groups))
    )
    seconds = time.monotonic() - started if missing else 0.0
    return CalibrationResult(ranges, _make_notes(cache, probes, ranges), seconds, peak, parts)


@dataclass(frozen=True)
class _CalibrationRun:
    """What one worker is asked."""

    model: ir.Model
    probes: Sequence[Probe]
    stream: Path
    groups: Sequence[Sequence[int]]
    folder: Path
    memory: int
    custom_ops: tuple[str, ...]
    sink: Sink

    def collect_answers(self, cache: RangeCache) -> Iterator[Mapping[str, Any]]:
        """Put the answers of each part into `cache`; yield the worker's own, with what it took."""
        with open_probe(self.model, self.folder) as files:
            tensors = self._list_tensors(self.probes)
            shapes, watches, hidden = files.write_probe(tensors, shapes=True)
            cache.hidden |= hidden
            seen = [probe for probe in self.probes if probe.tensor in watches]
            backend = replace(_BACKEND, custom_ops=self.custom_ops)
            job = single_model_job(shapes, backend, self.stream, self.folder, "observe")
            runs = sum(len(group) for group in self.groups) + 1
            passes = max((probe.observer.passes for probe in seen), default=0)
            limit = _TIMEOUT_S + _RUN_S * runs * passes
            if not seen:
                return
            with Worker(job, timeout_s=limit, sink=self.sink) as worker:
                indices = sorted({index for group in self.groups for index in group})
                command: dict[str, Any] = {"indices": indices, "watches": [*watches.values()]}
                try:
                    sizes = worker.ask("extents", model=str(shapes), **command)["extents"]
                except WorkerFailed:  # observing meets it too, or it was the shapes alone
                    sizes = {}
                for part in _split_probes(seen, sizes, len(self.groups), self.memory):
                    answer = self._observe_part(worker, files, part)
                    for group, answers in enumerate(answer["answers"]):
                        for probe, data in zip(part, answers, strict=True):
                            cache.put(group, probe, data)
                    yield answer

    def _observe_part(
        self, worker: Worker, files: ModelProbe, part: Sequence[Probe]
    ) -> Mapping[str, Any]:
        path, watches, _ = files.write_probe(self._list_tensors(part))
        keep = self.folder.resolve() / "moments" / codec.digest([list(part), self.groups])
        command: dict[str, Any] = {
            "model": str(path),
            "groups": self.groups,
            "watches": [watches[probe.tensor] for probe in part],
            "probes": list(part),
            "keep": str(keep),
        }
        try:
            return worker.ask("observe", **command)
        except WorkerFailed as error:
            failure = error.failure
            if failure.reason.startswith("tensor '"):
                raise BadData(failure.reason, fix=failure.fix) from None
            why = f"the calibration run failed: {failure.reason}"
            raise BadModel(why, fix=failure.fix or failure.reproduce) from None
        finally:
            path.unlink(missing_ok=True)

    @staticmethod
    def _list_tensors(probes: Sequence[Probe]) -> list[str]:
        return list(dict.fromkeys(probe.tensor for probe in probes))


_BACKEND = Cpu(level="basic")


def _split_probes(
    probes: Sequence[Probe], sizes: Mapping[str, Any], groups: int, memory: int
) -> list[list[Probe]]:
    """Split probes, in their order, so that each part's tensors and states fit the memory.

    A tensor counts once a part, as float32; its accumulators count once a group of samples.
    """
    parts: list[list[Probe]] = []
    used = 0
    tensors: set[str] = set()
    for probe in probes:
        extent = sizes.get(probe.tensor, {"elements": 0, "shape": ()})
        state_size = groups * probe.observer.state_bytes(tuple(extent["shape"]))
        size = _COPIES * 4 * int(extent["elements"])
        more = state_size + (0 if probe.tensor in tensors else size)
        if not parts or used + more > memory:
            parts.append([])
            used, tensors, more = 0, set(), state_size + size
        parts[-1].append(probe)
        tensors.add(probe.tensor)
        used += more
    return parts


def _make_notes(
    cache: RangeCache, probes: Sequence[Probe], ranges: Sequence[Ranges]
) -> tuple[str, ...]:
    reasons: dict[str, list[str]] = {}
    for probe in probes:
        why = cache.hidden.get(probe.tensor)
        if why is None and not any(probe.key in answers for answers in ranges):
            why = "held no value on the samples"
        if why is not None:
            reasons.setdefault(why, []).append(f"'{probe.tensor}'")
    return tuple(
        f"no range: {join_names(list(dict.fromkeys(names)), _LISTED)} {why}"
        for why, names in reasons.items()
    )


class RangeCache:
    """Answers by samples, observer and tensor; read at the start, written by `store`.

    All of a folder are of one model and one stream of samples. An answer is what `packed` made,
    or None for a tensor that held no value.
    """

    def __init__(self, folder: Path, groups: Sequence[Sequence[int]]) -> None:
        self._path = folder / RANGES
        stored = json.loads(self._path.read_text("utf-8")) if self._path.is_file() else {}
        self._answers: dict[str, dict[str, Any]] = stored.get("answers", {})
        self.hidden: dict[str, str] = stored.get("hidden", {})  # tensor -> why it is not watched
        keys = (codec.digest(list(group)) for group in groups)
        self._groups = [self._answers.setdefault(key, {}) for key in keys]

    def list_missing(self, probes: Sequence[Probe]) -> list[Probe]:
        """Return the probes, one of each observer and tensor, that a group has no answer for."""
        missing = {
            _make_cache_key(probe): probe
            for probe in probes
            if probe.tensor not in self.hidden
            and any(_make_cache_key(probe) not in group for group in self._groups)
        }
        return list(missing.values())

    def get(self, group: int, probe: Probe) -> Mapping[str, Any] | None:
        """Return the answer for a group, by its number."""
        answer: Mapping[str, Any] | None = self._groups[group].get(_make_cache_key(probe))
        return answer

    def put(self, group: int, probe: Probe, data: Mapping[str, Any] | None) -> None:
        """Take an answer in."""
        self._groups[group][_make_cache_key(probe)] = data

    def store(self) -> None:
        """Write all answers."""
        text = json.dumps({"answers": self._answers, "hidden": self.hidden})
        write_text(self._path, text, durable=False)


def _make_cache_key(probe: Probe) -> str:
    return f"{probe.observer}|{probe.tensor}|{catalog.source_digest(probe.observer)}"


@dataclass(frozen=True)
class Inactive:
    """A tensor that the samples left inactive, all of it or some of its channels."""

    tensor: str
    op: str  # operator that makes it; empty for an input
    # The only value it ever had, 0 for most; None when it never held a value at all (a branch that
    # was never taken) or when only `channels` of it are inactive.
    value: float | None
    # Those that were never anything but zero; empty when all of it is inactive.
    channels: tuple[int, ...] = ()
    of: int = 0  # number of its channels; 0 where they were not observed one by one
    seen: bool = True


def make_activity_probes(model: ir.Model, tensors: Sequence[str]) -> list[Probe]:
    """Return one probe a tensor; its answer's key is the tensor's name and ``|activity``.

    Channels are the second axis of what flows between convolutions, the last one of all else.
    """
    values = _index_values(model)
    return [
        Probe(name, Activity(axis=_find_channel_axis(values.get(name))), name=f"{name}{_KEY}")
        for name in dict.fromkeys(tensors)
    ]


def find_inactive(model: ir.Model, answers: Ranges, tensors: Sequence[str] = ()) -> list[Inactive]:
    """Return what is inactive by the answers to `make_activity_probes`, where it has one."""
    values = _index_values(model)
    observed = [key.removesuffix(_KEY) for key in answers if key.endswith(_KEY)]
    inactive_tensors = []
    for name in dict.fromkeys((*observed, *tensors)):
        value = values.get(name)
        node = value.producer() if value is not None else None
        op = node.op_type if node is not None else ""
        seen = answers.get(f"{name}{_KEY}")
        if seen is None:
            inactive_tensors.append(Inactive(name, op, None, seen=False))
            continue
        if seen.low == seen.high:
            inactive_tensors.append(Inactive(name, op, seen.low, of=len(seen.channels)))
            continue
        zero = tuple(i for i, ends in enumerate(seen.channels) if ends == (0.0, 0.0))
        if zero:
            inactive_tensors.append(Inactive(name, op, None, zero, len(seen.channels)))
    return inactive_tensors


_KEY = "|activity"
_THROUGH = frozenset(
    ("Add", "BatchNormalization", "Clip", "HardSwish", "LeakyRelu", "Mul", "Relu", "Sigmoid")
)


def _index_values(model: ir.Model) -> dict[str, ir.Value]:
    outputs = (value for node in edit.walk_nodes(model) for value in node.outputs)
    inputs = (value for graph in edit.walk_graphs(model) for value in graph.inputs)
    return {str(value.name): value for value in (*inputs, *outputs)}


def _find_channel_axis(value: ir.Value | None) -> int:
    """Return 1 when convolutions are near, -1 otherwise."""
    for _ in range(8):
        if value is None:
            return -1
        if any("Conv" in use.node.op_type for use in value.uses()):
            return 1
        node = value.producer()
        if node is None:
            break
        if "Conv" in node.op_type or "Pool" in node.op_type:
            return 1
        if node.op_type not in _THROUGH:
            break
        value = node.inputs[0]
    return -1
