"""Cut a part of a model out, with its real inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortune.analysis.verification.requests import Extract
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, say, size, specs
from ortune.core import wording

if TYPE_CHECKING:
    from ortune.analysis.verification.extract import Extracted

_WAYS = 6


@verb(Extract)
def command(asked: Extract) -> None:
    """Show the piece's inputs and outputs."""
    from ortune.analysis.verification.extract import run

    found = run(asked)
    result = {"model": asked.model, "output": found.path, **vars(found)}
    del result["path"]
    answer(result, lambda: _show(found))


def _show(found: Extracted) -> None:
    specs("input", found.inputs)
    specs("output", found.outputs)
    if found.added:
        say(f"also takes {', '.join(found.added)}: paths around the named tensors lead there")
        words = " ".join(f"--from {name}" for name in found.ways[:_WAYS])
        if found.ways:
            say(f"to leave them out: {words}{' ...' if len(found.ways) > _WAYS else ''}")
    weights = size(found.weight_bytes)
    say(
        f"{found.path}: {found.nodes} of "
        f"{wording.count(found.of_nodes, 'node')}, {weights} of weights"
    )
    if found.samples is not None:
        count = f"{found.count} sample{'' if found.count == 1 else 's'}"
        say(f"{found.samples}: {count}; its outputs are those of the whole model")
