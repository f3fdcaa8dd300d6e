"""What a run writes down of regions: its journal, and how far each survey came.

``RUN/regions.jsonl`` has a line a survey and a line a mixture that followed, ``{"survey": {...}}``
or ``{"mixture": {...}}``; ``RUN/surveys/KEY.jsonl`` has a line a measured region, so that a survey
that was killed goes on. Each is on disk before the search goes on; a torn last line is cut off
when a file is opened.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ortune.core.atomic_write import append_line, cut_torn, reported, whole_lines
from ortune.core.errors import BadData, OrtuneError
from ortune.core.plugins import codec, stored
from ortune.core.trial import Interval
from ortune.regions.costs import AccuracyCost
from ortune.regions.survey import MixtureTried, SharedCost, Survey

NAME = "regions.jsonl"
FOLDER = "surveys"
"""In a run's folder, with a file ``KEY.jsonl`` a survey."""
_RECORDS: dict[str, type[Survey | MixtureTried]] = {"survey": Survey, "mixture": MixtureTried}
_FORMER = {"mixture": ("correction", "stored")}
"""Fields that older versions wrote, by kind of record; nothing reads them any more."""


class RegionJournal:
    """What a run knows of regions.

    Attributes:
        known: Surveys, in order.
        mixtures: Those that were tried, in order.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / NAME
        cut_torn(self._path)
        self.known: list[Survey] = []
        self.mixtures: list[MixtureTried] = []
        for record in read(root):
            self._keep(record)

    def add(self, record: Survey | MixtureTried) -> None:
        """Record it; it is on disk when this returns.

        Raises:
            OrtuneError: The file cannot be written.
        """
        kind = next(name for name, cls in _RECORDS.items() if isinstance(record, cls))
        line = {kind: codec.encode(record)}
        append_line(self._path, json.dumps(line, separators=(",", ":")))
        self._keep(record)

    def _keep(self, record: Survey | MixtureTried) -> None:
        if isinstance(record, Survey):
            self.known.append(record)
        else:
            self.mixtures.append(record)


def read(root: Path) -> list[Survey | MixtureTried]:
    """Return what a run's journal holds; a last line that is being written is left out.

    Raises:
        BadData: It cannot be read, or holds settings that a file may not set.
    """
    path = root / NAME
    return [_record(line, path) for line in whole_lines(path)]


def _record(line: bytes, path: Path) -> Survey | MixtureTried:
    try:
        content = stored.loads(line)
        (kind, fields), *more = content.items()
        if more or kind not in _RECORDS:
            raise ValueError(f"'{kind}' is no record of regions")
        stored.demand(fields, kind, fix=stored.DISTRUST, signed=True)
        for name in _FORMER.get(kind, ()):
            fields.pop(name, None)
        return codec.decode(_RECORDS[kind], fields)
    except OrtuneError as error:
        raise BadData(f"{path} cannot be read: {error.what}", fix=error.fix) from None
    except (ValueError, AttributeError) as error:
        raise BadData(f"{path} cannot be read: {error}", fix="choose another -o folder") from None


# --- progress of one survey ---------------------------------------------------------------------


@dataclass(frozen=True)
class Begun:
    """How a survey takes its costs.

    Attributes:
        samples: That each region is run on: places among those of the search.
        whole: What all regions cost together.
    """

    samples: tuple[int, ...]
    whole: Interval


@dataclass(frozen=True)
class Compared:
    """The plan's latency over the original's, where no trial tells."""

    ratio: Interval


Entry: TypeAlias = Begun | Compared | AccuracyCost | SharedCost
_ENTRIES: dict[str, type[Entry]] = {
    "begun": Begun,
    "compared": Compared,
    "cost": AccuracyCost,
    "shared": SharedCost,
}


class SurveyProgress:
    """The measured parts of one survey.

    Attributes:
        begun: None before its first run.
        compared: None where the plan was not timed for it.
        costs: Region -> what it costs.
        shared: Two regions -> what of their costs is the same.
        seconds: That they took, those of a survey that was killed too.
    """

    def __init__(self, root: Path, key: str) -> None:
        """Read what there is; a torn last line is cut off.

        Raises:
            BadData: The file cannot be read, or an older version wrote it.
        """
        self._path = root / FOLDER / f"{key}.jsonl"
        self.begun: Begun | None = None
        self.compared: Compared | None = None
        self.costs: dict[str, AccuracyCost] = {}
        self.shared: dict[tuple[str, str], SharedCost] = {}
        self.seconds = 0.0
        cut_torn(self._path)
        for line in whole_lines(self._path):
            self._keep(*_entry(line, self._path))

    def add(self, entry: Entry, seconds: float) -> None:
        """Record a part that took so long; it is on disk when this returns.

        Raises:
            OrtuneError: The file cannot be written.
        """
        kind = next(name for name, cls in _ENTRIES.items() if isinstance(entry, cls))
        line = {kind: codec.encode(entry), "seconds": seconds}
        with reported(self._path):
            self._path.parent.mkdir(exist_ok=True)
        append_line(self._path, json.dumps(line, separators=(",", ":")))
        self._keep(entry, seconds)

    def _keep(self, entry: Entry, seconds: float) -> None:
        self.seconds += seconds
        match entry:
            case Begun():
                self.begun = entry
            case Compared():
                self.compared = entry
            case AccuracyCost():
                self.costs[entry.region] = entry
            case SharedCost():
                self.shared[entry.one, entry.two] = entry


def unfinished_s(root: Path, finished: Collection[str]) -> float:
    """Return the seconds that went into surveys which were killed, of a run.

    Args:
        finished: Keys of the others.
    """
    keys = (path.stem for path in sorted((root / FOLDER).glob("*.jsonl")))
    return sum(SurveyProgress(root, key).seconds for key in keys if key not in finished)


def _entry(line: bytes, path: Path) -> tuple[Entry, float]:
    try:
        content = stored.loads(line)
        seconds = float(content.pop("seconds"))
        ((kind, fields),) = content.items()
        return codec.decode(_ENTRIES[kind], fields), seconds
    except (OrtuneError, ValueError, KeyError, AttributeError, TypeError) as error:
        why = error.what if isinstance(error, OrtuneError) else error
        raise BadData(f"{path} cannot be read: {why}", fix=f"remove {path}") from None
