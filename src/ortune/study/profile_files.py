"""A profile as rows, as a DataFrame, and as files: CSV, JSON and a trace for Perfetto."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortune.core import codec
from ortune.core.action import Action
from ortune.core.errors import BadData, OrtuneError
from ortune.core.profile import Kernel, Operand, Profile
from ortune.study.roofline import verdicts

if TYPE_CHECKING:
    import pandas

TRACE, TABLE, WHOLE = "trace.json", "kernels.csv", "profile.json"
_PROCESS, _REGIONS, _KERNELS = 1, 1, 2


def rows(profile: Profile) -> list[dict[str, Any]]:
    """Return one flat row a kernel, in order of execution; times in microseconds."""
    total = max(1.0, sum(kernel.time_ns for kernel in profile.kernels))
    return [_row(kernel, total) for kernel in profile.kernels]


def _row(kernel: Kernel, total: float) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "op_type": kernel.op_type,
        "domain": kernel.domain,
        "provider": kernel.provider,
        "kind": kernel.kind,
        "region": kernel.region,
        "sources": " ".join(kernel.sources),
        "calls": kernel.calls,
        "time_us": kernel.time_ns / 1e3,
        "share": kernel.time_ns / total,
        "span_us": kernel.span_ns / 1e3,
        "kernel_us": kernel.kernel_ns / 1e3,
        "flops": kernel.flops,
        "bytes": kernel.traffic,
        "inputs": _shapes(kernel.inputs),
        "outputs": _shapes(kernel.outputs),
        "note": kernel.note,
    }


def _shapes(operands: Sequence[Operand]) -> str:
    return ", ".join(f"{one.dtype}[{'x'.join(map(str, one.shape))}]" for one in operands)


def to_dataframe(profile: Profile) -> pandas.DataFrame:
    """Return `rows` as a pandas DataFrame.

    Raises:
        OrtuneError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise OrtuneError(
            "pandas is not installed", fix='pip install "ortune[dataframe]"'
        ) from None
    return pandas.DataFrame(rows(profile))


def whole(profile: Profile, actions: Sequence[Action] = ()) -> dict[str, Any]:
    """Return a profile and its actions as plain JSON values, what is derived included."""
    return {
        **codec.encode(profile),
        "inside": profile.inside,
        "coverage": profile.coverage,
        "attributed": profile.attributed,
        "overhead": profile.overhead,
        "mapped": profile.mapped,
        "by_op_type": codec.encode(profile.by("op_type")),
        "by_region": codec.encode(profile.by("region")),
        "by_kind": codec.encode(profile.by("kind")),
        "by_provider": codec.encode(profile.by("provider")),
        "verdicts": [
            {"kernel": v.kernel.name, "bound": v.bound, "share": v.share, "gain_ns": v.gain_ns}
            for v in verdicts(profile)
        ],
        "actions": codec.encode(actions),
    }


def trace(profile: Profile) -> dict[str, Any]:
    """Return one run as JSON objects of the Trace Event Format, which Perfetto and Chrome open.

    Regions are complete events ("X") on one track, kernels on another; the bodies of control flow
    lie inside the kernels that hold them. Times are those of the profiled run, microseconds.
    """
    events = [
        _named("process_name", 0, f"{Path(profile.model).name} on {profile.backend}"),
        _named("thread_name", _REGIONS, "regions"),
        _named("thread_name", _KERNELS, "kernels"),
    ]
    events += _region_events(profile)
    for one in profile.timeline:
        kernel = profile.kernels[one.index]
        said = {key: value for key, value in _row(kernel, 1.0).items() if value not in ("", None)}
        for key in ("name", "share", "op_type"):
            said.pop(key, None)
        events.append(
            _slice(_KERNELS, kernel.name, kernel.op_type, one.start_ns, one.kernel_ns, said)
        )
    other = {"plain_ns": profile.plain_ns, "profiled_ns": profile.profiled_ns}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}


def _region_events(profile: Profile) -> list[dict[str, Any]]:
    """Join neighbours of one region into one slice; what is inside a control-flow node stays."""
    found: list[tuple[str, float, float]] = []
    for one in sorted(profile.timeline, key=lambda one: one.start_ns):
        kernel = profile.kernels[one.index]
        end = one.start_ns + one.kernel_ns
        if kernel.kind == "control":
            continue
        if found and found[-1][0] == kernel.region:
            found[-1] = (kernel.region, found[-1][1], max(end, found[-1][2]))
        else:
            found.append((kernel.region, one.start_ns, end))
    return [_slice(_REGIONS, name, "region", start, end - start, {}) for name, start, end in found]


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _slice(
    thread: int, name: str, kind: str, start_ns: float, taken_ns: float, said: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": _PROCESS,
        "tid": thread,
        "ts": start_ns / 1e3,
        "dur": taken_ns / 1e3,
        "args": dict(said),
    }


def write(profile: Profile, folder: Path, actions: Sequence[Action] = ()) -> tuple[Path, ...]:
    """Write trace, table and the whole profile into a folder, made if need be.

    Raises:
        OrtuneError: It cannot be written.
    """
    made = tuple(folder / name for name in (TRACE, TABLE, WHOLE))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made[0].write_text(json.dumps(trace(profile), allow_nan=False), encoding="utf-8")
        listed = rows(profile)
        with made[1].open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(listed[0]) if listed else [])
            writer.writeheader()
            writer.writerows(listed)
        made[2].write_text(
            json.dumps(_finite(whole(profile, actions)), indent=1), encoding="utf-8"
        )
    except OSError as error:
        raise OrtuneError(
            f"cannot write into {folder}: {error.strerror}", fix="give another folder with -o"
        ) from None
    return made


def read(folder: Path) -> tuple[Profile, tuple[Action, ...]]:
    """Read back what `write` wrote: the profile and its actions.

    Raises:
        BadData: The file is not there or cannot be read.
    """
    path = folder / WHOLE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known = {one.name: found[one.name] for one in fields(Profile)}
        actions = tuple(codec.decode(Action, one) for one in found["actions"])
        return codec.decode(Profile, known), actions
    except (OSError, ValueError, KeyError, TypeError, OrtuneError) as error:
        text = str(error).splitlines()[0]
        raise BadData(f"{path} cannot be read: {text}", fix="write it again") from None


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
