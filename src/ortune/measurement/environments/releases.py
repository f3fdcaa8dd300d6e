"""The releases that environments are made for: a table, every distribution to its version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortune.core.errors import BadSettings, shortened

_WORKER = ("numpy==2.4.6", "psutil==7.2.2", "ml_dtypes==0.6.0")
"""What a worker imports beside the runtime."""


@dataclass(frozen=True)
class Family:
    """The releases of one runtime.

    Attributes:
        short: What the names of its environments begin with.
        beside: Version -> distributions that are installed beside it and the worker's own.
        backends: What the environment is for, and checked with.
    """

    short: str
    beside: Mapping[str, tuple[str, ...]]
    backends: tuple[str, ...]


_LATEST = ("onnxruntime==1.31.1", "openvino-telemetry==2025.2.0")

FAMILIES: Mapping[str, Family] = {
    "onnxruntime": Family(
        "ort",
        dict.fromkeys(
            (
                "1.23.2",
                "1.24.4",
                "1.25.1",
                "1.26.0",
                "1.27.0",
                "1.28.0",
                "1.29.0",
                "1.30.0",
                "1.31.0",
                "1.31.1",
                "1.32.0",
            ),
            (),
        ),
        ("cpu",),
    ),
    "openvino": Family(
        "openvino",
        {
            "2026.2.1": (*_LATEST, "onnxruntime-ep-openvino==1.6.1"),
            "2026.3.0": (*_LATEST, "onnxruntime-ep-openvino==1.7.0"),
            "2026.4.1": (*_LATEST, "onnxruntime-ep-openvino==1.8.1"),
        },
        ("cpu", "openvino"),
    ),
}
"""Distribution -> its releases: the last of every minor version, oldest first.

Nothing beyond this is installed: a release is tried with the same NumPy as every other. Wheels for
GPUs, distributions of their own such as ``onnxruntime-gpu``, become families beside these.
"""


@dataclass(frozen=True)
class Release:
    """One release of a runtime.

    Attributes:
        package: Its distribution.
        version: Of that distribution.
    """

    package: str
    version: str

    @property
    def family(self) -> Family:
        """What it is a release of."""
        return FAMILIES[self.package]

    @property
    def name(self) -> str:
        """What its environment is called unless a person says otherwise."""
        return f"{self.family.short}-{self.version}"

    @property
    def distributions(self) -> tuple[str, ...]:
        """All that is installed, each to its version."""
        return (str(self), *_WORKER, *self.family.beside[self.version])

    def __str__(self) -> str:
        return f"{self.package}=={self.version}"


def release(text: str) -> Release:
    """Read ``onnxruntime==1.24.4``.

    Raises:
        BadSettings: It is not in the table.
    """
    package, _, version = (part.strip() for part in text.partition("=="))
    if package not in FAMILIES:
        offered = ", ".join(f"{name}=={list(f.beside)[-1]}" for name, f in FAMILIES.items())
        raise BadSettings(
            f"'{shortened(text, 80)}' is no release that an environment can be made for",
            fix=f"write one such as {offered}",
        )
    if version not in FAMILIES[package].beside:
        raise BadSettings(
            f"no release '{shortened(version, 40)}' of {package} in the table",
            fix=f"use one of: {', '.join(FAMILIES[package].beside)}",
        )
    return Release(package, version)


def every() -> tuple[Release, ...]:
    """Return all releases of the table."""
    return tuple(Release(name, one) for name, family in FAMILIES.items() for one in family.beside)


def chosen(text: str, package: str = "onnxruntime") -> tuple[Release, ...]:
    """Return the releases of ``1.24..1.31``, ends included, or of ``1.24.4,1.31.1``, oldest first.

    Raises:
        BadSettings: The text is neither, or the table has none of them.
    """
    known = list(FAMILIES[package].beside)
    low, dots, high = (part.strip() for part in text.partition(".."))
    if dots:
        ends = [_numbers(low, text), _numbers(high, text)]
        found = [one for one in known if _between(one, *ends)]
        if not found:
            raise BadSettings(
                f"no release of {package} in the table lies in '{shortened(text, 40)}'",
                fix=f"it has {', '.join(known)}",
            )
        return tuple(Release(package, one) for one in found)
    words = [word.strip() for word in text.split(",") if word.strip()]
    made = {release(f"{package}=={word}") for word in words}
    if not made:
        raise BadSettings("no release is named", fix="write 1.24..1.31, or 1.24.4,1.31.1")
    return tuple(sorted(made, key=lambda one: known.index(one.version)))


def _between(version: str, low: Sequence[int], high: Sequence[int]) -> bool:
    """Whether a version lies between two, of which ``1.31`` holds all that begin like that."""
    own = _numbers(version, version)
    return own[: len(low)] >= tuple(low) and own[: len(high)] <= tuple(high)


def _numbers(text: str, given: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6}){0,3}", text):
        raise BadSettings(
            f"cannot read the releases '{shortened(given, 40)}'",
            fix="write 1.24..1.31, or 1.24.4,1.31.1",
        )
    return tuple(map(int, text.split(".")))
