"""The example notebook runs as it is, shows what a study found, and stays small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
MOST_BYTES = 100_000


@pytest.fixture(scope="module")
def executed() -> Any:
    """The notebook after all its cells; a cell that fails raises."""
    book = nbformat.read(EXAMPLE, as_version=4)
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": "."}}).execute()
    return book


def html(book: Any, source: str) -> str:
    """Return what the cell with some source shows as HTML."""
    (cell,) = [one for one in book.cells if one.cell_type == "code" and source in one.source]
    return "\n".join(
        output.data.get("text/html", "")
        for output in cell.outputs
        if output.output_type in ("display_data", "execute_result")
    )


def test_the_example_holds_no_outputs() -> None:
    book = nbformat.read(EXAMPLE, as_version=4)
    assert not [cell for cell in book.cells if cell.get("outputs")]


def test_a_study_shows_its_plot_and_its_plans(executed: Any) -> None:
    shown = html(executed, "ot.optimize(")
    assert "<svg" in shown and "<table>" in shown
    assert "original" in shown and "run: " in shown
    assert "<script" not in shown and "http" not in shown.replace("http://www.w3.org", "")


def test_a_verb_shows_what_it_found(executed: Any) -> None:
    assert "Inspection" in html(executed, "ot.inspect(")


def test_its_outputs_are_small_and_without_errors(
    executed: Any, record_property: Callable[[str, object], None]
) -> None:
    size = len(nbformat.writes(executed))
    record_property("takes", f"{size / 1000:.0f} kB")
    assert size < MOST_BYTES
    kinds = [output.output_type for cell in executed.cells for output in cell.get("outputs", ())]
    assert kinds and "error" not in kinds


def test_the_run_that_it_began_can_be_repeated(executed: Any) -> None:
    (cell,) = [one for one in executed.cells if 'ortune.toml")' in one.source]
    text = "".join(output.get("text", "") for output in cell.outputs)
    assert 'time = "6s"' in text and "data = " in text
