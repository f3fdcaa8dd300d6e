"""Files of installed distributions, and what to install when one is missing."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def place(name: str, relative: str) -> Path:
    """Return the path of a file that a distribution installed."""
    return Path(str(distribution(name).locate_file(relative)))


def missing(bare: tuple[str, ...], full: tuple[str, ...]) -> str | None:
    """Return the pip lines for what is not installed, or None.

    Args:
        bare: Requirements, ``name==version``, of which only the files are needed: their own
            dependencies are large and unused.
        full: Packages that are imported, by their distribution's name.
    """
    lines = []
    if wanted := [item for item in bare if not _there(item.partition("==")[0])]:
        lines.append(f"pip install --no-deps {' '.join(wanted)}")
    if wanted := [item for item in full if not _there(item)]:
        lines.append(f"pip install {' '.join(wanted)}")
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


def _there(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
