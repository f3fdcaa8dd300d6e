"""A profile as files: CSV, JSON and a trace for Perfetto."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ortune.analysis.profiling.roofline import verdicts
from ortune.analysis.profiling.trace import trace
from ortune.core.errors import BadData, OrtuneError
from ortune.core.plugins import codec
from ortune.core.profile import Action, Profile

TRACE, TABLE, WHOLE = "trace.json", "kernels.csv", "profile.json"
_DERIVED = ("inside", "coverage", "attributed", "overhead", "mapped")


def whole(profile: Profile, actions: Sequence[Action] = ()) -> dict[str, Any]:
    """Return a profile and its actions as plain JSON values, what is derived included."""
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
        "actions": codec.encode(actions),
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
        listed = profile.records()
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
