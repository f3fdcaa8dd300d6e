"""Which models there are, by name and version, and what is said of those that are not."""

from __future__ import annotations

from collections.abc import Iterable

from ortune.core.errors import BadSettings
from ortune.protocol.status import Refused, Status
from ortune.server.repository.served import Served
from ortune.server.repository.slot import OpenFile, Slot
from ortune.server.repository.sources import NAME, ModelSource


class Catalog:
    """The sources of a server with what is open of them.

    Attributes:
        slots: Name of a source -> its place.
    """

    def __init__(self, given: Iterable[ModelSource]) -> None:
        self.slots = {source.name: Slot(source) for source in given}
        self._versions: dict[str, dict[str, Served]] = {}
        self._newest: dict[str, Served] = {}

    def model(self, name: str, version: str = "") -> Served:
        """Return a model; the highest version where none is named.

        Raises:
            Refused: There is none, or not yet, or not any more.
        """
        found = self._versions.get(name, {}).get(version) if version else self._newest.get(name)
        if found is None:
            raise self._unknown(name, version)
        return found

    def models(self) -> list[Served]:
        """Return all that is served, by name and version."""
        return [one for versions in self._versions.values() for one in versions.values()]

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model, the lowest first."""
        return sorted(self._versions.get(name, ()), key=int)

    def slot(self, name: str) -> Slot | None:
        """Return where a model comes from, by its name or by that of its source."""
        named = (slot for slot in self.slots.values() if name in slot.names)
        return self.slots.get(name) or next(named, None)

    def demand_free(self, name: str, slot: Slot) -> None:
        """Check that a model of a source may have a name.

        Raises:
            BadSettings: It is none that a URL takes, or another source has it.
        """
        if not NAME.fullmatch(name):
            raise BadSettings(
                f"a model cannot be served as '{name}'",
                fix="name its source with letters, digits, '.', '_', '-': net=PATH",
            )
        if self.slot(name) not in (None, slot):
            raise BadSettings(
                f"two models would be served as '{name}'", fix="give one source a name: net=PATH"
            )

    def place(self, slot: Slot, files: dict[str, OpenFile]) -> list[OpenFile]:
        """Let these files of a source answer from now on; return those that did until now."""
        gone = [file for file in slot.open.values() if file not in files.values()]
        slot.open = files
        if files:
            slot.names = tuple(dict.fromkeys(o.name for f in files.values() for o in f.served))
        found: dict[str, dict[str, Served]] = {}
        for file in (file for one in self.slots.values() for file in one.open.values()):
            for served in file.served:
                found.setdefault(served.name, {})[served.version] = served
        self._versions = found
        self._newest = {name: held[max(held, key=int)] for name, held in found.items()}
        return gone

    def _unknown(self, name: str, version: str) -> Refused:
        """Return Triton's words for why there is no such model."""
        if version and not (version.isascii() and version.isdecimal()):
            return Refused(
                f"failed to get model version from specified version string '{version}', "
                "version should be an integral value > 0"
            )
        said = f"Request for unknown model: '{name}'"
        slot = self.slot(name)
        if slot is None:
            return Refused(f"{said} is not found", Status.NOT_FOUND)
        if slot.open and name in slot.names:
            return Refused(f"{said} version {version} is not found", Status.NOT_FOUND)
        if slot.open:
            held = ", ".join(f"'{one}'" for one in slot.names)
            return Refused(f"{said} is not found", Status.NOT_FOUND, f"name one of {held}")
        if slot.wanted and not slot.reason:
            at = f" version {version}" if version else ""
            return Refused(f"{said}{at} is not at ready state", Status.UNAVAILABLE)
        return Refused(f"{said} has no available versions", Status.NOT_FOUND)
