"""The record of what paid on this machine: a small file for every kind of it.

It lies below the cache folder of the user, holds no name of a model, a file or a function, and is
never needed: what cannot be read or written is said once and left out. Whatever lies there is
checked before it is used: sizes, words and numbers are bounded, and it must name this very kind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ortune.core.atomic_write import held, remove, write_text
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadData, OrtuneError
from ortune.core.hardware.paid import Paid, PlanTally
from ortune.core.outputs import caches
from ortune.core.plugins.plugin import digest, encode
from ortune.core.step import AS_IS
from ortune.core.trial import Plan
from ortune.core.workload import Workload
from ortune.search.earlier import tallies
from ortune.search.expectation.features import chosen, latency_features

FORMAT = 1
_LARGEST = 1024 * 1024
"""Bytes of a file that is read."""
_FILES = 16
"""Kinds that are kept; the file that was written longest ago goes first."""
WAIT_S = 2.0
_RUNTIMES = ("ortune", "onnxruntime", "onnxruntime-ep-openvino", "openvino")
BOUNDS: Mapping[str, tuple[float, float]] = {
    "searches": (1, 1000),
    "mean": (-20.0, 20.0),
    "squares": (0.0, 1e6),
}


def folder() -> Path | None:
    """Return where the files lie, whether or not there are any; None without a home."""
    ours = caches()
    return None if ours is None else ours / "paid"


def kept() -> tuple[Path, ...]:
    """Return the files that there are, the newest first."""
    home = folder()
    found: list[tuple[float, Path]] = []
    if home is not None:
        with suppress(OSError):
            found = [(path.stat().st_mtime, path) for path in home.glob("*.json")]
    return tuple(path for _, path in sorted(found, reverse=True))


def machine_kind(
    baseline: Backend, workload: Workload, offered: Capabilities
) -> dict[str, str] | None:
    """Return what must agree for one search to learn from another.

    CPU, runtimes to their second number, what ratios are to, and what is measured. None where
    the baseline or the workload is a plugin of the user's: their names are not recorded.
    """
    if not tallies.ours(baseline, workload):
        return None
    versions = {
        name: ".".join(offered.versions[name].split(".")[:2])
        for name in _RUNTIMES
        if name in offered.versions
    }
    driven = " ".join((workload.name(), *chosen(workload, public=True)))
    ratio_to = " ".join(latency_features(Plan(AS_IS, baseline), public=True))
    return {**offered.machine, **versions, "baseline": ratio_to, "workload": driven}


@dataclass(frozen=True)
class MachineRecord:
    """The file of one kind of machine.

    Attributes:
        path: Of the file.
        kind: See `machine_kind`.
    """

    path: Path
    kind: Mapping[str, str]

    @classmethod
    def of(cls, kind: Mapping[str, str] | None) -> MachineRecord | None:
        """Return the record of a kind; None where there is none, or no place for it."""
        home = folder()
        if kind is None or home is None:
            return None
        return cls(home / f"{digest(dict(kind))}.json", kind)

    def read(self) -> Paid:
        """Return what is known; nothing where there is no file.

        Raises:
            BadData: The file cannot be read, or is not what `add` writes for this kind.
        """
        try:
            if not self.path.is_file():
                return Paid()
            with self.path.open("rb") as file:
                data = file.read(_LARGEST + 1)
        except OSError as error:
            raise self._strange(error.strerror or "it cannot be read") from None
        try:
            return parsed(data, self.kind)
        except ValueError as error:
            raise self._strange(str(error)) from None

    def add(self, found: Paid) -> None:
        """Add what a search found; a file that cannot be read is replaced.

        Raises:
            OrtuneError: It cannot be written.
        """
        if not found.tallies:
            return
        lock = self.path.with_name("lock")
        taken = OrtuneError(f"another process holds {lock}", fix="end it, or remove that file")
        with held(lock, taken, WAIT_S):
            try:
                known = self.read()
            except BadData:
                known = Paid()
            write_text(self.path, written(tallies.joined(known, found), self.kind), durable=False)
            for old in kept()[_FILES:]:
                remove(old)

    def _strange(self, why: str) -> BadData:
        return BadData(
            f"what paid on this machine before is not used: {self.path}: {why}",
            fix="remove that file; the next search writes it anew",
        )


def written(paid: Paid, kind: Mapping[str, str]) -> str:
    """Return the text of a file."""
    rows = [
        {name: round(v, 6) if isinstance(v, float) else v for name, v in encode(one).items()}
        for one in paid.tallies
    ]
    told = {"format": FORMAT, "kind": dict(kind), "tallies": rows}
    return json.dumps(told, separators=(",", ":")) + "\n"


def parsed(data: bytes, kind: Mapping[str, str]) -> Paid:
    """Read the content of a file that anybody may have written.

    Raises:
        ValueError: It is not what `written` gives for this kind; the text says why.
    """
    if len(data) > _LARGEST:
        raise ValueError("it is too large")
    try:
        told = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise ValueError("another version wrote it")
    if told.get("kind") != dict(kind):
        raise ValueError("it is of another machine")
    rows = told.get("tallies")
    if not isinstance(rows, list) or len(rows) > tallies.MOST:
        raise ValueError("its list of tallies is missing or too long")
    found = tuple(map(_tally, rows))
    if len({one.key for one in found}) < len(found):
        raise ValueError("two tallies are of the same plans")
    return Paid(found)


def _tally(row: Any) -> PlanTally:
    names = {field.name for field in fields(PlanTally)}
    if not isinstance(row, dict) or row.keys() != names:
        raise ValueError("a tally has other fields")
    model, made = row["model"], row["features"]
    if not isinstance(model, list) or len(model) != 2:
        raise ValueError("a tally is of no kind of model")
    if not isinstance(made, dict) or not 1 <= len(made) <= tallies.FEATURES:
        raise ValueError("a tally has no features, or too many")
    if not all(isinstance(one, str) and tallies.plain(one) for one in (*model, *made)):
        raise ValueError("a tally has features of another form")
    for weight in made.values():
        _demand_number("a weight", weight, (0.0, 1.0))
    for name, bounds in BOUNDS.items():
        _demand_number(name, row[name], bounds)
    return PlanTally(tuple(model), made, **{name: row[name] for name in BOUNDS})


def _demand_number(name: str, value: Any, bounds: tuple[float, float]) -> None:
    kinds = int if name == "searches" else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ValueError(f"{name} is not a number")
    if not (bounds[0] <= value <= bounds[1] and math.isfinite(value)):
        raise ValueError(f"{name} is out of bounds")
