"""A profile as files: CSV, JSON and a trace for Perfetto."""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ortune.analysis.profiling.roofline import verdicts
from ortune.core import regular_file
from ortune.core.atomic_write import write_text
from ortune.core.errors import BadData, OrtuneError, escape_control_chars
from ortune.core.plugins import codec, stored
from ortune.core.profile import Profile

_PROCESS, _REGIONS, _KERNELS = 1, 1, 2
_CLOCK_NS = 2_000
"""Starts and durations are whole microseconds: a body may seem to end that much late."""


def build_trace(profile: Profile) -> dict[str, Any]:
    """Return one run as JSON objects of the Trace Event Format.

    Regions are complete events ("X") on one track, kernels on another; the bodies of control flow
    lie inside the kernels that hold them. Nodes that ran side by side get a track each, and then
    there is none of regions. Times are those of the profiled run, microseconds.
    """
    events = [
        _make_metadata("process_name", 0, f"{Path(profile.model).name} on {profile.backend}")
    ]
    if not profile.parallel:
        events += [
            _make_metadata("thread_name", _REGIONS, "regions"),
            *_list_region_events(profile),
        ]
    # Give each slice a track on which slices only nest or follow each other.
    tracks: list[list[float]] = []
    slices = []
    for call in sorted(profile.timeline, key=lambda call: (call.start_ns, -call.kernel_ns)):
        end = call.start_ns + call.kernel_ns
        for ends in tracks:
            while ends and ends[-1] <= call.start_ns:
                ends.pop()
        fit = (n for n, ends in enumerate(tracks) if not ends or end <= ends[-1] + _CLOCK_NS)
        track = next(fit, len(tracks))
        if track == len(tracks):
            tracks.append([])
        ends = tracks[track]
        end = min([end, *ends[-1:]])
        ends.append(end)
        slices.append((call, end - call.start_ns, track))
    placed = list(slices)
    for track in range(1 + max((track for _, _, track in placed), default=0)):
        name = f"kernels, {track + 1}" if track else "kernels"
        events.append(_make_metadata("thread_name", _KERNELS + track, name))
    for call, taken_ns, track in placed:
        kernel = profile.kernels[call.index]
        row, omitted_fields = kernel.record(1.0), ("name", "share", "op_type")
        details = {k: v for k, v in row.items() if v not in ("", None) and k not in omitted_fields}
        place = _KERNELS + track
        events.append(
            _make_slice(place, kernel.name, kernel.op_type, call.start_ns, taken_ns, details)
        )
    other = {"plain_ns": profile.plain_ns, "profiled_ns": profile.profiled_ns}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def _list_region_events(profile: Profile) -> list[dict[str, Any]]:
    """Join neighbours of one region into one slice; what is inside a control-flow node stays."""
    spans: list[tuple[str, float, float]] = []
    for call in sorted(profile.timeline, key=lambda call: call.start_ns):
        kernel = profile.kernels[call.index]
        end = call.start_ns + call.kernel_ns
        if kernel.kind == "control":
            continue
        if spans and spans[-1][0] == kernel.region:
            spans[-1] = (kernel.region, spans[-1][1], max(end, spans[-1][2]))
        else:
            spans.append((kernel.region, call.start_ns, end))
    return [
        _make_slice(_REGIONS, name, "region", start, end - start, {}) for name, start, end in spans
    ]


def _make_metadata(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _make_slice(
    thread: int, name: str, kind: str, start_ns: float, taken_ns: float, details: Mapping[str, Any]
) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "cat": kind, "pid": _PROCESS, "tid": thread}
    return event | {"ts": start_ns / 1e3, "dur": taken_ns / 1e3, "args": dict(details)}


TRACE, TABLE, WHOLE = "trace.json", "kernels.csv", "profile.json"
NODE_DATA = "node_data.json"
_DERIVED = ("inside", "coverage", "attributed", "overhead", "mapped")


def encode_profile(profile: Profile) -> dict[str, Any]:
    """Return a profile as plain JSON values, what is derived included."""
    return {
        **codec.encode(profile),
        **{name: getattr(profile, name) for name in _DERIVED},
        "by_op_type": codec.encode(profile.by("op_type")),
        "by_region": codec.encode(profile.by("region")),
        "by_kind": codec.encode(profile.by("kind")),
        "by_provider": codec.encode(profile.by("provider")),
        "verdicts": [
            {"kernel": v.kernel.name, "bound": v.bound, "share": v.share, "gain_ns": v.gain_ns}
            for v in verdicts(profile)
        ],
    }


def write_profile(profile: Profile, folder: Path) -> tuple[Path, ...]:
    """Write trace, table, the whole profile and node data into a folder, made if need be.

    Raises:
        OrtuneError: It cannot be written.
    """
    paths = tuple(folder / name for name in (TRACE, TABLE, WHOLE, NODE_DATA))
    listed, table = profile.records(), io.StringIO()
    writer = csv.DictWriter(table, list(listed[0]) if listed else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    times_ms: defaultdict[str, float] = defaultdict(float)
    for kernel in profile.kernels:
        if kernel.sources:
            times_ms[kernel.main or kernel.sources[0]] += kernel.time_ns / 1e6
    colours = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#d1483f"}]
    results = {name: {"value": ms} for name, ms in times_ms.items()}
    node_data = {profile.graph or "<main>": {"results": results, "gradient": colours}}
    texts = (
        json.dumps(build_trace(profile), allow_nan=False),
        escape_control_chars(table.getvalue()),
        json.dumps(codec.make_jsonable(encode_profile(profile)), indent=1),
        json.dumps(node_data, allow_nan=False),
    )
    for path, text in zip(paths, texts, strict=True):
        write_text(path, text)
    return paths


def read_profile(folder: Path) -> Profile:
    """Read back what `write_profile` wrote.

    Raises:
        BadData: The file is not there or cannot be read.
    """
    path = folder / WHOLE
    try:
        values = stored.parse_json(regular_file.read_text(path))
        kept_fields = {
            field.name: values[field.name] for field in fields(Profile) if field.name in values
        }
        return codec.decode(Profile, kept_fields)
    except (OSError, ValueError, KeyError, TypeError, OrtuneError) as error:
        text = str(error).splitlines()[0]
        raise BadData(f"{path} cannot be read: {text}", fix="write it again") from None
