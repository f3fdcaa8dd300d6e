"""The search's memory: one JSON line a trial, append only, safe to kill and resume.

RUN/header.json says what was asked, RUN/ledger.jsonl holds the trials, RUN/ending.json what was
concluded; RUN/batches/N/ledger.jsonl has the trials at other batches. A line without its newline
was being written when the process died: it is cut off. A later line of the same key and part
replaces the former: it was concluded again by what the run learnt since.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ortune.core.atomic_write import held, sync_folder, write_text
from ortune.core.errors import BadData, OrtuneError
from ortune.core.plugins import codec
from ortune.core.study import Ending, Header, Study
from ortune.core.trial import Status, Trial
from ortune.core.version import __version__

T = TypeVar("T")


class Ledger:
    """The trials of one run's folder."""

    def __init__(self, root: Path) -> None:
        self._path = root / "ledger.jsonl"
        _cut(self._path)
        self.trials = _read(self._path)

    def find(self, key: str, part: str) -> Trial | None:
        """Return the recorded trial of a key on a part of the data."""
        return next((t for t in self.trials if t.key == key and t.part == part), None)

    def append(self, trial: Trial) -> None:
        """Record a trial in place of a former one; it is on disk when this returns."""
        line = json.dumps(codec.encode(trial), separators=(",", ":")) + "\n"
        first = not self._path.is_file()
        try:
            with self._path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
            if first:
                sync_folder(self._path.parent)
        except OSError as error:
            raise OrtuneError(
                f"cannot write {self._path}: {error.strerror}", fix="free space, then run again"
            ) from error
        self.trials = _last([*self.trials, trial])


def locked(root: Path) -> AbstractContextManager[None]:
    """Hold a run's folder for one search.

    Raises:
        BadData: Another search is at work in it, when the context is entered.
    """
    fix = "wait for it, or choose another -o folder"
    return held(root / "lock", BadData(f"another search is running in {root}", fix=fix))


def _cut(path: Path) -> None:
    """Cut off a torn last line: its writer died."""
    if not path.is_file():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)


def _read(path: Path) -> list[Trial]:
    """Read whole lines; a last one that is being written is left out."""
    if not path.is_file():
        return []
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    try:
        lines = [json.loads(line) for line in data[:whole].splitlines()]
    except json.JSONDecodeError as error:
        raise BadData(f"{path} cannot be read: {error}", fix="choose another -o folder") from None
    return _last(_decode(Trial, line, path) for line in lines)


def _last(trials: Iterable[Trial]) -> list[Trial]:
    """Return one trial a key and part, the last, in the place of the first."""
    return list({(trial.key, trial.part): trial for trial in trials}.values())


def _decode(kind: type[T], data: object, path: Path) -> T:
    """Rebuild a record.

    Raises:
        BadData: It is of another version's form, or names a plugin that is gone.
    """
    try:
        return codec.decode(kind, data)
    except OrtuneError as error:
        wrote = _wrote(path.parent)
        raise BadData(
            f"{path}, written by ortune {wrote}, cannot be read by {__version__}: {error.what}",
            fix=f"read it with ortune {wrote}, or search again into another -o folder",
        ) from None


def _wrote(root: Path) -> str:
    """Return the version that wrote a run, as its header says."""
    with suppress(BadData, KeyError, TypeError):
        return str((_load(root / "header.json") or {})["job"]["versions"]["ortune"])
    return "of an unknown version"


def write_header(root: Path, header: Header) -> None:
    """Write what was asked."""
    write_text(root / "header.json", json.dumps(codec.encode(header), indent=1))


def read_header(root: Path) -> Header | None:
    """Return what a run was started with, or None when the folder holds no run."""
    data = _load(root / "header.json")
    return None if data is None else _decode(Header, data, root / "header.json")


def write_ending(root: Path, ending: Ending) -> None:
    """Write what was concluded."""
    write_text(root / "ending.json", json.dumps(codec.encode(ending), indent=1))


def ended(root: Path) -> bool:
    """Say whether a run came to its end: it was neither killed nor interrupted."""
    data = _load(root / "ending.json")
    return data is not None and data.get("finished") != "interrupted"


def read_study(root: str | Path) -> Study:
    """Rebuild a study from its folder, finished or not.

    Raises:
        BadData: The folder holds no run, or its baseline was not measured.
    """
    root = Path(root)
    header = read_header(root)
    trials = _read(root / "ledger.jsonl")
    if header is None or not trials:
        raise BadData(f"no run in {root}", fix="give the -o folder of an `ortune optimize`")
    data = _load(root / "ending.json")
    ending = Ending() if data is None else _decode(Ending, data, root / "ending.json")
    found = tuple(t for t in trials if t.status is not Status.UNCHANGED)
    files = root.glob("batches/*/ledger.jsonl")
    batches = {int(path.parent.name): path for path in files if path.parent.name.isdecimal()}
    timed = {batch: tuple(_read(batches[batch])) for batch in sorted(batches)}
    return Study(str(root), header, found, ending, {b: held for b, held in timed.items() if held})


def _load(path: Path) -> Any | None:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise BadData(f"{path} cannot be read: {error}", fix="choose another -o folder") from None
