"""What a survey has measured so far: a line a region and a pattern, so that it can go on."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ortune.core.atomic_write import append_line, cut_torn, reported, whole_lines
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.plugins import codec, stored
from ortune.core.trial import Interval
from ortune.regions.costs import AccuracyCost
from ortune.regions.gains import Gain
from ortune.regions.sampling import Subset
from ortune.regions.survey import SharedCost

FOLDER = "surveys"
"""In a run's folder, with a file ``KEY.jsonl`` a survey."""


@dataclass(frozen=True)
class Begun:
    """How a survey takes its costs.

    Attributes:
        drawn: Samples that each region is run on, among those of the search.
        whole: What all regions cost together.
    """

    drawn: Subset
    whole: Interval


@dataclass(frozen=True)
class Compared:
    """The plan against the original.

    Attributes:
        ratio: Of its latency.
    """

    ratio: Interval


Entry: TypeAlias = Begun | AccuracyCost | SharedCost | Compared | Gain
_KINDS: dict[str, type[Entry]] = {
    "begun": Begun,
    "cost": AccuracyCost,
    "shared": SharedCost,
    "compared": Compared,
    "gain": Gain,
}


class SurveyProgress:
    """The measured parts of one survey.

    Attributes:
        begun: None before its first run.
        costs: Region -> what it costs.
        shared: Two regions -> what of their costs is the same.
        gains: Pattern -> what a region of it saves.
        seconds: That they took, those of a survey that was killed too.
    """

    def __init__(self, root: Path, key: str) -> None:
        """Read what there is; a torn last line is cut off.

        Raises:
            BadData: The file cannot be read.
        """
        self._path = root / FOLDER / f"{key}.jsonl"
        self.begun: Begun | None = None
        self.compared: Compared | None = None
        self.costs: dict[str, AccuracyCost] = {}
        self.shared: dict[tuple[str, str], SharedCost] = {}
        self.gains: dict[str, Gain] = {}
        self.seconds = 0.0
        cut_torn(self._path)
        for line in whole_lines(self._path):
            self._keep(*_read(line, self._path))

    def add(self, entry: Entry, seconds: float) -> None:
        """Record a part that took so long; it is on disk when this returns.

        Raises:
            OrtuneError: The file cannot be written.
        """
        kind = next(name for name, cls in _KINDS.items() if isinstance(entry, cls))
        record = {kind: codec.encode(entry), "seconds": seconds}
        with reported(self._path):
            self._path.parent.mkdir(exist_ok=True)
        append_line(self._path, json.dumps(record, separators=(",", ":")))
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
            case Gain():
                self.gains[entry.pattern] = entry


def unfinished_s(root: Path, finished: Collection[str]) -> float:
    """Return the seconds that went into surveys which were killed, of a run.

    Args:
        finished: Keys of the others.
    """
    keys = (path.stem for path in sorted((root / FOLDER).glob("*.jsonl")))
    return sum(SurveyProgress(root, key).seconds for key in keys if key not in finished)


def _read(line: bytes, path: Path) -> tuple[Entry, float]:
    try:
        found = stored.loads(line)
        seconds = float(found.pop("seconds"))
        ((name, held),) = found.items()
        return codec.decode(_KINDS[name], held), seconds
    except (BadSettings, OrtuneError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise BadData(f"{path} cannot be read: {error}", fix=f"remove {path}") from None
