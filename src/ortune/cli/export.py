"""Write a PyTorch module as ONNX, proved to answer alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ortune.cli.terminal.command import verb, verbose
from ortune.cli.terminal.output import answer, remark, say, table
from ortune.core import wording
from ortune.exporters.request import Export

if TYPE_CHECKING:
    from ortune.exporters.export import Exported


@verb(Export)
def command(asked: Export) -> None:
    """Show what became of every exporter, and at which sizes the file was compared."""
    from ortune.cli.terminal import progress
    from ortune.exporters.export import run

    with progress.held(asked.sink, verbose=verbose()) as sink:
        found = run(replace(asked, sink=sink))
    answer(found, lambda: _show(found))


def _show(found: Exported) -> None:
    table(
        ("exporter", "kept", "sizes>", "error>", "nodes>", "seconds>", "why"),
        [
            (
                one.exporter,
                "kept" if one.kept else "",
                str(one.sizes),
                "-" if one.error is None else f"{one.error:.2g}",
                str(one.nodes or "-"),
                f"{one.seconds:.0f}",
                one.why,
            )
            for one in found.attempts
        ],
    )
    samples = wording.count(found.samples, "input")
    told = "; ".join(
        ", ".join(f"{dim}={size}" for dim, size in one.items()) for one in found.sizes
    )
    say(
        f"{found.path}: by {found.exporter}, within {found.error:.2g} of PyTorch's answers "
        f"({found.tolerance:.2g} allowed), {samples} each at "
        f"{told or 'the shapes given: nothing is --dynamic'}"
    )
    for text in found.refused:
        remark(f"PyTorch itself does not run {text}")
