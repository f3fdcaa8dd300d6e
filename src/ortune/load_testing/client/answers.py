"""Answers kept for a comparison: one of each kind, counted, so that every answer is judged."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_KINDS = 64
"""Different answers to one request that are kept: of a batch that rounds there are a few."""


@dataclass
class KeptAnswers:
    """Different answers to every request; alike are those of equal checksum and length."""

    _seen: dict[tuple[int, int, int], list[Any]] = field(default_factory=dict)
    _kinds: dict[int, int] = field(default_factory=dict)
    left: int = 0

    def add(self, sample: int, body: bytes, head: int) -> None:
        """Take one in.

        Args:
            sample: Which request it answers.
            head: Bytes of JSON at its beginning; -1 where there is no such split.
        """
        key = (sample, zlib.crc32(body), len(body))
        if (found := self._seen.get(key)) is not None:
            found[0] += 1
        elif self._kinds.get(sample, 0) >= _KINDS:
            self.left += 1
        else:
            self._kinds[sample] = self._kinds.get(sample, 0) + 1
            self._seen[key] = [1, body, head]

    def write(self, folder: Path) -> Sequence[tuple[int, int, int, str]]:
        """Write each kind to a file and return (sample, count, head, file); forget them all."""
        made = []
        folder.mkdir(exist_ok=True)
        for number, ((sample, _, _), (count, body, head)) in enumerate(self._seen.items()):
            path = folder / f"{number}.bin"
            path.write_bytes(body)
            made.append((sample, count, head, str(path)))
        self._seen.clear()
        self._kinds.clear()
        return made
