"""Samples: real models with labelled data that the demo and the tests run on."""

import logging
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import ClassVar

from ortune.core.plugins.plugin import Plugin


@dataclass(frozen=True)
class Sample(Plugin):
    """A real model and its data, made from installed packages without a network.

    Attributes:
        purpose: What the model does, behind "a network that".
        budget: The accuracy budget it is judged by, in the command line's spelling.
        licence: Of model and data.
        batch: Samples that a run of the demo takes; 0 takes them as they come.
        threads: Threads of every backend in the demo; 0 leaves them open.
    """

    folder: ClassVar[str] = "samples"
    purpose: ClassVar[str]
    budget: ClassVar[str]
    licence: ClassVar[str]
    batch: ClassVar[int] = 0
    threads: ClassVar[int] = 0

    def missing(self) -> str | None:
        """Return what to install, or None when everything is there."""
        return None

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write ``model.onnx`` and ``data/*.npz`` (and ``calibration/*.npz``) into the folder."""


def locate_installed_file(name: str, relative: str) -> Path:
    """Return the path of a file that a distribution installed."""
    return Path(str(distribution(name).locate_file(relative)))


def pip_lines(bare: tuple[str, ...], full: tuple[str, ...]) -> str | None:
    """Return the pip lines for what is not installed, or None.

    Args:
        bare: Requirements, ``name==version``, of which only the files are needed: their own
            dependencies are large and unused.
        full: Packages that are imported, by their distribution's name.
    """
    lines = []
    if missing := [item for item in bare if not is_installed(item.partition("==")[0])]:
        lines.append(f"pip install --no-deps {' '.join(missing)}")
    if missing := [item for item in full if not is_installed(item)]:
        lines.append(f"pip install {' '.join(missing)}")
    return " && ".join(lines) or None


@contextmanager
def quiet_export() -> Iterator[None]:
    """Keep the exporter's warnings back: none is about something that a user could change."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def is_installed(name: str) -> bool:
    """Say whether a distribution is installed, by its name."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
