"""Package targets: what writes a bundle's plan as somebody else's runtime takes it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from ortune.bundle.source import Source
from ortune.core.plugins.bounds import Bounds
from ortune.core.plugins.plugin import Plugin


@dataclass(frozen=True)
class Replay:
    """What running a package again has shown.

    Attributes:
        by: What ran it, such as ``onnxruntime 1.24.4``.
        difference_db: Signal-to-noise ratio of the worst output against the golden answers.
        overhead: Packaged time over the engine's, paired, with the ends of its interval; None
            where it was not timed.
    """

    by: str
    difference_db: float
    overhead: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Target(Plugin):
    """Where a package goes; the fields are what a person may choose of it.

    Attributes:
        replayed: Open what was written and run the golden samples on it, where that can be done
            here; false only writes, and says so.
        limit: Share by which the package may be slower than the bundle before packing fails.
    """

    folder: ClassVar[str] = "targets"
    backend: ClassVar[str] = "cpu"
    """Backend whose plans it takes: what to search with where no plan that was found can run."""
    places: ClassVar[tuple[str, ...]] = ()
    """Fields that name a place on this machine: a package does not tell them."""

    replayed: bool = True
    limit: Annotated[float, Bounds(high=100)] = 0.1

    def missing(self) -> str | None:
        """Return what must be installed to write or replay it, as a fix; None when nothing."""
        return None

    def refuses(self, source: Source) -> str:
        """Return why a plan cannot run there as it was measured; empty when it can.

        Another confirmed plan is taken then, so that a setting which would be lost is a reason.
        """
        return ""

    @abstractmethod
    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write the package into an empty folder and return lines that say how to use it.

        The same source gives the same bytes: no dates, no machine's paths.

        Raises:
            OrtuneError: It cannot be written.
        """

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Open what `write` wrote and run the golden samples; None where nothing here can.

        What is compared and timed are the package's files, once they say what was tuned.

        Raises:
            OrtuneError: It does not open or does not run.
        """
        return None

    def unrun(self, replay: Replay | None) -> str:
        """Say what of the package was not run here; empty when nothing was left out."""
        return "" if replay else f"the package for {self.name()}"
