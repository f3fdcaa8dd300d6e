"""What is fuzzed: known cases, a way to draw more, and the reader that is given them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random


@dataclass(frozen=True)
class Case:
    """One input.

    Attributes:
        name: What is odd about it.
        files: Path below a folder -> content.
        words: A command line, or what else the reader is asked.
    """

    name: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all that is given."""
        texts = sum(len(word.encode("utf-8", "replace")) for word in self.words)
        return texts + sum(map(len, self.files.values()))

    def write(self, folder: Path) -> Path:
        """Write the files below a folder and return it."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder


class Broken(Exception):
    """A reader kept its word about exceptions and broke another: the text says which."""


@dataclass(frozen=True)
class Target:
    """A reader under test.

    Attributes:
        corpus: Cases that were seen to break something once, or are kin of such.
        draw: Makes one more case.
        read: Gives a case, written into a folder, to the readers. An `OrtuneError` is a fine
            answer, every other exception a finding.
        patience: Seconds without processor time after which an input is taken to wait for ever.
    """

    name: str
    corpus: Callable[[], Sequence[Callable[[], Case]]]
    draw: Callable[[Random], Case]
    read: Callable[[Case, Path], None]
    patience: float = 15.0

    def case(self, seed: int, index: int) -> Case:
        """Return one input: those of the corpus come first."""
        known = self.corpus()
        if index < len(known):
            return known[index]()
        return self.draw(Random(f"{seed}/{self.name}/{index}"))
