"""A profile as files: CSV, JSON and a trace for Perfetto."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from ortune.analysis.profiling.roofline import verdicts
from ortune.analysis.profiling.trace import trace
from ortune.core.atomic_write import write_text
from ortune.core.errors import BadData, OrtuneError
from ortune.core.plugins import codec
from ortune.core.profile import Profile

TRACE, TABLE, WHOLE = "trace.json", "kernels.csv", "profile.json"
_DERIVED = ("inside", "coverage", "attributed", "overhead", "mapped")


def whole(profile: Profile) -> dict[str, Any]:
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


def write(profile: Profile, folder: Path) -> tuple[Path, ...]:
    """Write trace, table and the whole profile into a folder, made if need be.

    Raises:
        OrtuneError: It cannot be written.
    """
    made = tuple(folder / name for name in (TRACE, TABLE, WHOLE))
    listed, table = profile.records(), io.StringIO()
    writer = csv.DictWriter(table, list(listed[0]) if listed else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    texts = (
        json.dumps(trace(profile), allow_nan=False),
        table.getvalue(),
        json.dumps(codec.jsonable(whole(profile)), indent=1),
    )
    for path, text in zip(made, texts, strict=True):
        write_text(path, text)
    return made


def read(folder: Path) -> Profile:
    """Read back what `write` wrote.

    Raises:
        BadData: The file is not there or cannot be read.
    """
    path = folder / WHOLE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return codec.decode(Profile, {one.name: found[one.name] for one in fields(Profile)})
    except (OSError, ValueError, KeyError, TypeError, OrtuneError) as error:
        text = str(error).splitlines()[0]
        raise BadData(f"{path} cannot be read: {text}", fix="write it again") from None
