"""How Sphinx makes the site of these pages: ``make docs`` writes it to build/site."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from tools import python_api

from ortune.cli.main import root

project = "ortune"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
highlight_language = "text"
html_theme = "furo"
html_title = "ortune"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False


def add_reference(_: Sphinx, page: str, source: list[str]) -> None:
    """Append what is generated: every verb's help, and every public name of the package."""
    if page == "python":
        source[0] += "\n" + python_api.write_reference()
    if page != "options":
        return
    context = click.Context(root, info_name="ortune")
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        if command is not None:
            inner = click.Context(command, info_name=name, parent=context, terminal_width=96)
            source[0] += f"\n## {name}\n\n```text\n{command.get_help(inner)}\n```\n"


def setup(app: Sphinx) -> None:
    """Register what is added to pages while they are read."""
    app.connect("source-read", add_reference)
