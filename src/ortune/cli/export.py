"""Export a PyTorch module to ONNX, and compare their outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortune.cli.terminal.command import make_command, run_before_notes
from ortune.cli.terminal.output import print_result, print_table, print_text, write_remark
from ortune.core import wording
from ortune.exporters.request import Export

if TYPE_CHECKING:
    from ortune.exporters.export import ExportedModel


@make_command(Export)
def command(request: Export) -> None:
    """Show what became of every exporter, and at which sizes the file was compared."""
    from ortune.exporters.export import run

    result = run_before_notes(run, request)
    print_result(result, lambda: _print_attempts(result))


def _print_attempts(result: ExportedModel) -> None:
    print_table(
        ("exporter", "kept", "sizes>", "error>", "nodes>", "seconds>", "why"),
        [
            (
                entry.exporter,
                "kept" if entry.kept else "",
                str(entry.sizes),
                "-" if entry.error is None else f"{entry.error:.2g}",
                str(entry.nodes or "-"),
                f"{entry.seconds:.0f}",
                entry.why,
            )
            for entry in result.attempts
        ],
    )
    samples = wording.format_count(result.samples, "input")
    sizes = "; ".join(
        ", ".join(f"{dim}={size}" for dim, size in entry.items()) for entry in result.sizes
    )
    print_text(
        f"{result.path}: by {result.exporter}, within {result.error:.2g} of PyTorch's answers "
        f"({result.tolerance:.2g} allowed), {samples} each at "
        f"{sizes or 'the shapes given: no --dynamic dimension'}"
    )
    for text in result.refused:
        write_remark(f"PyTorch itself does not run {text}")
