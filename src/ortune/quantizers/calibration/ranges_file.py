"""Saved ranges, in a file: ortune's own JSON or a TensorRT calibration cache.

The JSON, version 1::

    {"format": "ortune-ranges", "version": 1, "ortune": "0.1.0",
     "model": {"name": "model.onnx", "digest": "..."},
     "quantizer": "int8-static", "observer": "min-max",
     "samples": {"count": 128, "digests": ["...", ...], "augment": ""},
     "tensors": [{"name": "x", "low": -1.0, "high": 1.0}, ...], "unanswered": ["y", ...]}

A tensor that another observer than the file's was asked about has ``observer``, and ``channels``
[[low, high], ...] where it observed them one by one. ``unanswered`` were asked for and held no
value, such as those of a branch that was never taken. Numbers are read back exactly.

TensorRT's cache is text, one line a tensor, as its int8 calibrators write it. The first line is
``TRT-<version>-EntropyCalibration2``; after it stands ``name: hex``, the bits of a float32 in
big-endian order, without leading zeros. The number is the step of a symmetric grid,
``max(|low|, |high|) / 127``: onnxruntime's TensorRT provider multiplies it by 127 for the dynamic
range (``ReadDynamicRange`` in tensorrt_execution_provider.cc). The table that onnxruntime's own
``write_calibration_table`` writes is another format, a FlatBuffer of largest magnitudes.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortune.core import regular_file
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.observer import Probe, Range, Ranges
from ortune.core.plugins import codec, stored
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer
from ortune.core.wording import join_names
from ortune.graph.io import file, names
from ortune.graph.ir import edit
from ortune.transforms.common.simplify.clamps import read_clamp

FORMAT, VERSION = "ortune-ranges", 1
_FIX = "write it with `ortune calibrate M --data D -o FILE`"


@dataclass(frozen=True)
class Entry:
    """A tensor's range in the file; the observer's spelling is empty when it is the file's."""

    name: str
    low: float
    high: float
    observer: str = ""
    channels: tuple[tuple[float, float], ...] = ()

    @property
    def range(self) -> Range:
        """The range as an observer would have answered."""
        return Range(self.low, self.high, self.channels)


@dataclass(frozen=True)
class Samples:
    """What was observed; `count` includes augmented copies."""

    count: int = 0
    digests: tuple[str, ...] = ()
    augment: str = ""


@dataclass(frozen=True)
class SavedRanges:
    """A file of ranges."""

    source: str
    digest: str  # of its content: it is part of what a build depends on
    entries: Mapping[str, Entry] = field(repr=False)
    model: str = ""  # digest of the model file; empty when the file does not tell
    model_name: str = ""
    quantizer: str = ""  # whose probes these are; empty when the file does not tell
    observer: str = ""  # that answered; empty when the file does not tell
    samples: Samples = Samples()
    # Tensors that were asked for and that the samples gave no range.
    unanswered: tuple[str, ...] = ()
    symmetric: bool = False  # low is always -high: the tensor may be of one sign


def make_entries(ranges: Ranges, probes: Sequence[Probe], observer: str) -> tuple[Entry, ...]:
    """Return what is kept of answered probes: those that are known by their tensor's name.

    Moments are not kept: they are as large as the weights.
    """
    entries = []
    for probe in probes:
        seen = ranges.get(probe.key)
        if seen is None or probe.name or seen.moments is not None:
            continue
        observer_name = str(probe.observer)
        other = "" if observer_name == observer else observer_name
        entries.append(Entry(probe.tensor, seen.low, seen.high, other, seen.channels))
    return tuple(entries)


def build_document(
    entries: Sequence[Entry],
    *,
    model: Path,
    digest: str,
    quantizer: str,
    observer: str,
    samples: Samples,
    unanswered: Sequence[str] = (),
    version: str,
) -> dict[str, Any]:
    """Return the JSON object of a file; see the module's text."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "ortune": version,
        "model": {"name": model.name, "digest": digest},
        "quantizer": quantizer,
        "observer": observer,
        "samples": codec.encode(samples),
        "tensors": [
            {key: value for key, value in codec.encode(entry).items() if value not in ("", [])}
            for entry in entries
        ],
        "unanswered": list(unanswered),
    }


def read_ranges(path: Path) -> SavedRanges:
    """Read a file of either format.

    Raises:
        BadData: It is neither, is damaged, or is of a later version.
    """
    try:
        raw = regular_file.read_bytes(path)
        text = raw.decode("utf-8")
    except OSError as error:
        raise BadData(f"cannot read {path}: {error.strerror or error}", fix=_FIX) from None
    except UnicodeDecodeError:
        raise BadData(
            f"{path} is not a file of ranges: it is not text",
            fix="give JSON of `ortune calibrate -o`, or TensorRT's cache, not onnxruntime's table",
        ) from None
    digest = hashlib.sha256(raw).hexdigest()[:16]
    if text.startswith("TRT-"):
        ranges = parse_cache(text, str(path))
        entries = {name: Entry(name, seen.low, seen.high) for name, seen in ranges.items()}
        return SavedRanges(str(path), digest, entries, symmetric=True)
    return _decode_json(path, digest, text)


def _decode_json(path: Path, digest: str, text: str) -> SavedRanges:
    try:
        data = stored.parse_json(text)
    except ValueError as error:
        raise BadData(f"{path} is neither JSON nor a TensorRT cache: {error}", fix=_FIX) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadData(f"{path} is JSON of something else than ranges", fix=_FIX)
    if data.get("version") != VERSION:
        raise BadData(
            f"{path} is of version {data.get('version')} of the format; this ortune reads "
            f"{VERSION}",
            fix="calibrate again, or use the ortune that wrote it",
        )
    try:
        entries = [codec.decode(Entry, item) for item in data["tensors"]]
        return SavedRanges(
            str(path),
            digest,
            {entry.name: entry for entry in entries},
            model=str(data["model"]["digest"]),
            model_name=str(data["model"]["name"]),
            quantizer=str(data["quantizer"]),
            observer=str(data["observer"]),
            samples=codec.decode(Samples, data["samples"]),
            unanswered=tuple(map(str, data["unanswered"])),
        )
    except (KeyError, TypeError, OrtuneError) as error:
        reason = error.what if isinstance(error, OrtuneError) else f"{error} is missing"
        raise BadData(f"{path} is damaged: {reason}", fix=_FIX) from None


_HEADER = re.compile(r"TRT-(\d+)-(\w+)")
_LINE = re.compile(r"(.+?)\s*:\s*([0-9a-fA-F]{1,8})")
_STEPS = 127
_WITHOUT = 11
"""The first version without int8 calibrators (NVIDIA, migrating from TensorRT 10.x to 11.x)."""


def format_cache(ranges: Ranges, version: str) -> str:
    """Return the text of a cache of this version of TensorRT, which takes no other's."""
    steps = {n: np.float32(max(abs(r.low), abs(r.high)) / _STEPS) for n, r in ranges.items()}
    lines = [f"{name}: {int(step.view(np.uint32)):x}" for name, step in steps.items()]
    return "\n".join([f"TRT-{encode_version(version)}-EntropyCalibration2", *lines]) + "\n"


def parse_cache(text: str, where: str) -> Mapping[str, Range]:
    """Return tensor name -> symmetric range. Raises BadData: it is no such cache."""
    first, *lines = text.splitlines() or [""]
    if _HEADER.match(first) is None:
        raise BadData(
            f"{where} does not begin with TRT-<version>-<algorithm>",
            fix="give a calibration cache of TensorRT, or a file of `ortune calibrate -o`",
        )
    ranges = {}
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        step = float(np.uint32(int(match[2], 16)).view(np.float32)) if match else float("nan")
        if match is None or not np.isfinite(step) or step < 0:
            raise BadData(
                f"{where}, line {number}: '{line[:80]}' is not 'tensor: hex of a float32 step'",
                fix="write the cache again: `ortune calibrate M --data D --tensorrt-cache FILE`",
            )
        ranges[match[1]] = Range(-_STEPS * step, _STEPS * step)
    return ranges


def encode_version(version: str) -> int:
    """Return NV_TENSORRT_VERSION: 8.6.1 is 8601, 10.14.1 is 101401.

    Raises:
        BadSettings: It is no version, or one without calibration caches.
    """
    if re.fullmatch(r"\d+\.\d+(\.\d+)*", version) is None:
        raise BadSettings(f"'{version}' is not a version of TensorRT", fix="write 8.6.1 or 10.3.0")
    major, minor, *patch_parts = (int(part) for part in version.split("."))
    if major >= _WITHOUT:
        raise BadSettings(
            f"TensorRT {version} reads no calibration cache",
            fix="give it pairs: `ortune convert M OUT --precision int8 --target gpu --data D`",
        )
    patch = patch_parts[0] if patch_parts else 0
    return major * (10_000 if major >= 10 else 1_000) + minor * 100 + patch


SHOWN = 4
"""Tensors that are named."""


def load_ranges(path: Path, model: Path) -> tuple[SavedRanges, tuple[str, ...]]:
    """Read a file of ranges for a model; return it and what a person should know.

    A file that was made for another model file is taken only if the quantizer that it was made for
    asks of this model for exactly the same tensors.

    Raises:
        BadData: It cannot be read, holds nothing, or is of another model.
    """
    saved = read_ranges(path)
    if not saved.entries:
        raise BadData(f"{path} holds no tensors", fix="calibrate again")
    if not saved.model or saved.model == file.compute_digest(model):
        return saved, ()
    if other := _describe_mismatch(saved, model):
        raise BadData(
            f"{path} was made for another model ({saved.model_name}) and does not fit "
            f"{model.name}: {other}",
            fix=f"calibrate this one: `ortune calibrate {model.name} --data D -o FILE`",
        )
    note = (
        f"{path} was made for another file ({saved.model_name}) whose tensors have the same "
        "names: calibrate again if the weights have changed"
    )
    return saved, (note,)


def answer_probes(
    saved: SavedRanges, model: ir.Model, step: Quantizer, probes: Sequence[Probe]
) -> dict[str, Range]:
    """Return the ranges that the file has for these probes, by the probes' keys.

    A probe that carries the step's own ``observer`` wants a range, by whatever method; another one
    wants what that very observer says. Symmetric ranges are cut to what the operator behind which
    the tensor stands can give: without it a Relu in front of the grid would not be fused away.
    """
    bounds = dict(_list_bounds(model)) if saved.symmetric else {}
    ranges = {}
    for probe in probes:
        entry = saved.entries.get(probe.tensor)
        if entry is None or probe.name or not _can_answer(saved, entry, probe, step):
            continue
        low, high = bounds.get(probe.tensor, (-np.inf, np.inf))
        seen = entry.range
        if saved.symmetric:
            seen = Range(max(entry.low, low), min(entry.high, high))
        ranges[probe.key] = seen
    return ranges


def _can_answer(saved: SavedRanges, entry: Entry, probe: Probe, step: Quantizer) -> bool:
    if getattr(step, "observer", None) == probe.observer:
        return not entry.observer or bool(entry.channels)
    return str(probe.observer) == (entry.observer or saved.observer)


def _describe_mismatch(saved: SavedRanges, path: Path) -> str:
    """Return how the tensors differ from those that a model's quantizer asks for, or nothing."""
    model = file.load(path)
    names.make_names_unique(model)
    step = parse_plugin(Quantizer, saved.quantizer)
    probed_tensors = [probe.tensor for probe in step.probes(model)]
    saved_tensors = {*saved.entries, *saved.unanswered}
    if unexpected := [name for name in saved.entries if name not in set(probed_tensors)]:
        return f"it has no {join_names(unexpected, SHOWN)}"
    if missing := [name for name in probed_tensors if name not in saved_tensors]:
        return f"the file has no {join_names(missing, SHOWN)}"
    return ""


def _list_bounds(model: ir.Model) -> Iterator[tuple[str, tuple[float, float]]]:
    opset = model.opset_imports.get("", 0)
    for node in edit.walk_nodes(model):
        if node.domain or not node.outputs:
            continue
        name = str(node.outputs[0].name)
        if node.op_type in ("Sigmoid", "HardSigmoid", "Softmax"):
            yield name, (0.0, 1.0)
        elif (limits := read_clamp(node.outputs[0], opset)) is not None:
            yield name, (limits.low, limits.high)
