"""Samples: real models with labelled data that the demo and the tests run on."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ortune.core.plugins.plugin import Plugin


@dataclass(frozen=True)
class Sample(Plugin):
    """A real model and its data, made from installed packages without a network.

    Attributes:
        budget: The accuracy budget it is judged by, in the command line's spelling.
        licence: Of model and data.
    """

    folder: ClassVar[str] = "samples"
    budget: ClassVar[str]
    licence: ClassVar[str]

    def missing(self) -> str | None:
        """Return what to install, or None when everything is there."""
        return None

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write ``model.onnx`` and ``data/*.npz`` (and ``calibration/*.npz``) into the folder."""
