"""What became of a module's edits so far: a run that was stopped goes on where it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.mutants import plan
from tools.mutants.edit import Mutant

FOLDER = plan.ROOT / "build" / "mutants"


class Journal:
    """The outcomes of one module's edits, a line each.

    Args:
        digest: Of all that the outcomes depend on: another one begins anew.
        module: The module.
        folder: Where the file is.

    Attributes:
        near: File with what the near tests run, which is measured once.
    """

    def __init__(self, digest: str, module: plan.Module, folder: Path = FOLDER) -> None:
        self.module, self.path = module, folder / f"{digest}.jsonl"
        self.near = self.path.with_suffix(".near.json")
        self.known: dict[str, str] = {}
        if self.path.is_file():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                self.known |= json.loads(line)

    def of(self, edit: Mutant) -> str | None:
        """Return what became of an edit; None when it was not tried."""
        return self.known.get(_name(edit))

    def add(self, edit: Mutant, word: str) -> None:
        """Write down what became of an edit."""
        self.known[_name(edit)] = word
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({_name(edit): word}) + "\n")

    def take_over(self, last: Mapping[str, Any]) -> None:
        """Take what died in the last run as dead: tests were only added since.

        Args:
            last: The module's results.
        """
        if last.get("source") != self.module.source_digest():
            return
        rows = {(row["where"], row["was"], row["becomes"]) for row in last["survivors"]}
        for edit in plan.edits(self.module):
            if self.of(edit) is None and (edit.where, edit.was, edit.becomes) not in rows:
                self.add(edit, "killed")

    def close(self) -> None:
        """Drop it: the results hold it now."""
        for path in (self.path, self.near):
            path.unlink(missing_ok=True)


def _name(edit: Mutant) -> str:
    return f"{edit.span[0]}-{edit.span[1]}: {edit.text}"
