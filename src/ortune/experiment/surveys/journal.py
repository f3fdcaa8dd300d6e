"""The journal of a run's regions: surveys, and what came of the mixtures that followed.

One JSON line each, ``{"survey": {...}}`` or ``{"mixture": {...}}``, on disk before the search goes
on; a torn last line is cut off when the journal is opened.
"""

from __future__ import annotations

import json
from pathlib import Path

from ortune.core.atomic_write import append_line, cut_torn, whole_lines
from ortune.core.errors import BadData, OrtuneError
from ortune.core.plugins import codec, stored
from ortune.regions.survey import MixtureTried, Survey

NAME = "regions.jsonl"
_KINDS: dict[str, type[Survey | MixtureTried]] = {"survey": Survey, "mixture": MixtureTried}


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
        for one in read(root):
            self._keep(one)

    def add(self, one: Survey | MixtureTried) -> None:
        """Record it; it is on disk when this returns.

        Raises:
            OrtuneError: The file cannot be written.
        """
        kind = next(name for name, cls in _KINDS.items() if isinstance(one, cls))
        record = {kind: codec.encode(one)}
        append_line(self._path, json.dumps(record, separators=(",", ":")))
        self._keep(one)

    def _keep(self, one: Survey | MixtureTried) -> None:
        if isinstance(one, Survey):
            self.known.append(one)
        else:
            self.mixtures.append(one)


def read(root: Path) -> list[Survey | MixtureTried]:
    """Return what a run's journal holds; a last line that is being written is left out.

    Raises:
        BadData: It cannot be read, or holds settings that a file may not set.
    """
    path = root / NAME
    return [_record(line, path) for line in whole_lines(path)]


def _record(line: bytes, path: Path) -> Survey | MixtureTried:
    try:
        found = stored.loads(line)
        (name, held), *more = found.items()
        if more or name not in _KINDS:
            raise ValueError(f"'{name}' is no record of regions")
        stored.demand(held, name, fix=stored.DISTRUST, signed=True)
        return codec.decode(_KINDS[name], held)
    except OrtuneError as error:
        raise BadData(f"{path} cannot be read: {error.what}", fix=error.fix) from None
    except (ValueError, AttributeError) as error:
        raise BadData(f"{path} cannot be read: {error}", fix="choose another -o folder") from None
