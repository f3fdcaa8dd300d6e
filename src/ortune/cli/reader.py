"""Write the reader of bundles that needs no ortune."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from ortune.cli.main import DONE
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.figures import size
from ortune.cli.terminal.output import answer, say
from ortune.core.fields import Option
from ortune.core.request import Request, request


@request
class _Asked(Request):
    """Write the reader: one Python file that opens bundles where ortune is not installed.

    Example:
        ortune reader -o reader.py

    Attributes:
        out: The file, by custom reader.py.
        force: Overwrite an existing output.
    """

    _: KW_ONLY
    out: Annotated[str | Path, Option("PATH", "-o --out")]
    force: bool = False


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Say where it is and how to use it."""
    from ortune.engine.reader.generate import reader

    path = reader(asked.out, force=asked.force)
    bytes_ = path.stat().st_size
    lines = [
        f"reader: {path} ({size(bytes_)}), needs numpy and onnxruntime",
        f"use: python {path} model.ortune inputs.npz -o out.npz, or reader.load in Python",
    ]
    answer({"reader": path, "bytes": bytes_}, lambda: say("\n".join(lines)))
    return DONE
