"""Instances of a model by device, as a person writes them: ``2``, ``2@gpu0,2@gpu1``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ortune.core.errors import BadSettings

_GROUP = re.compile(r"(\d{1,4})(?:@([a-z]+)(\d{0,3}))?")
_KINDS = ("cpu", "gpu", "npu")


@dataclass(frozen=True)
class InstanceGroup:
    """Instances on one device."""

    count: int
    kind: str = ""  # ``cpu``, ``gpu`` or ``npu``; empty leaves the device to the backend
    index: int = 0  # which one of its kind

    @property
    def device(self) -> str:
        """Such as ``gpu1``, ``cpu``; empty where the backend decides."""
        return f"{self.kind}{self.index}" if self.kind in ("gpu", "npu") else self.kind

    def __str__(self) -> str:
        return f"{self.count}@{self.device}" if self.kind else str(self.count)


def read_instances(spelling: int | str, device: str = "") -> tuple[InstanceGroup, ...]:
    """Read a number, or groups with commas between: ``2@gpu0,2@gpu1``.

    Args:
        spelling: At least one instance.
        device: Of groups that name none.

    Raises:
        BadSettings: It cannot be read, or names a device of no known kind.
    """
    groups = []
    for text in str(spelling).split(","):
        match = _GROUP.fullmatch(text.strip())
        if match is None or not int(match[1]):
            raise BadSettings(
                f"instances={spelling!r} cannot be read", fix="give 2, or 2@gpu0,2@gpu1"
            )
        group = InstanceGroup(int(match[1]), match[2] or "", int(match[3] or 0))
        if group.kind:
            _demand_known(group, f"instances='{spelling}'")
        elif device:
            group = replace(read_device(device), count=group.count)
        groups.append(group)
    return tuple(groups)


def read_device(text: str) -> InstanceGroup:
    """Read the name of a device, such as ``cpu`` or ``gpu1``, as a group of one instance.

    Raises:
        BadSettings: It is none.
    """
    match = re.fullmatch(r"([a-z]+)(\d{0,3})", text)
    group = InstanceGroup(1, match[1] if match else text, int((match and match[2]) or 0))
    _demand_known(group, f"device='{text}'")
    return group


def count_instances(groups: Sequence[InstanceGroup]) -> int:
    """Return the instances of all groups."""
    return sum(group.count for group in groups)


def _demand_known(group: InstanceGroup, setting: str) -> None:
    if group.kind not in _KINDS or (group.kind == "cpu" and group.index):
        name = f"{group.kind}{group.index or ''}"
        raise BadSettings(
            f"{setting}: no device is called '{name}'", fix="name cpu, gpu0, gpu1, ... or npu0"
        )
