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
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortune.core import regular_file
from ortune.core.errors import BadData, OrtuneError
from ortune.core.observer import Probe, Range, Ranges
from ortune.core.plugins import codec, stored
from ortune.quantizers.calibration import tensorrt_cache

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
        ranges = tensorrt_cache.parse_cache(text, str(path))
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
