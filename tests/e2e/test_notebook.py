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


def shown_as(book: Any, source: str, kind: str) -> list[Any]:
    """Return what the cell with some source shows in one form."""
    (cell,) = [one for one in book.cells if one.cell_type == "code" and source in one.source]
    shown = (o for o in cell.outputs if o.output_type in ("display_data", "execute_result"))
    return [output.data[kind] for output in shown if kind in output.data]


def html(book: Any, source: str) -> str:
    """Return what the cell with some source shows as HTML."""
    return "\n".join(shown_as(book, source, "text/html"))


def test_the_example_holds_no_outputs() -> None:
    book = nbformat.read(EXAMPLE, as_version=4)
    assert not [cell for cell in book.cells if cell.get("outputs")]


def test_a_study_shows_its_plot_and_its_plans(executed: Any) -> None:
    shown = html(executed, "ot.optimize(")
    (plot,) = shown_as(executed, "ot.optimize(", "application/vnd.vegalite.v5+json")
    assert "original" in [row["tone"] for row in plot["data"]["values"]]
    assert "<table>" in shown
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
