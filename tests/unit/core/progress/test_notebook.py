"""Progress below a cell: the board goes when the verb is done, notes stay."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import ortune as ot
from ortune.core.event import Note, Progress
from ortune.core.progress import notebook


class Shell(ModuleType):
    """Stands for ``IPython.display``: keeps what was shown in the one output."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.shown: list[str] = []

    def HTML(self, text: str) -> str:  # noqa: N802 (its name there)
        return text

    def display(self, made: str, display_id: bool) -> Shell:
        assert display_id
        self.shown.append(made)
        return self

    def update(self, made: str) -> None:
        self.shown.append(made)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = Shell()
    monkeypatch.setitem(sys.modules, "IPython.display", made)
    return made


def test_the_board_goes_and_notes_stay_escaped(shell: Shell) -> None:
    with notebook.display_progress() as sink:
        sink(Progress("timing", 1, 2))
        sink(Note("a <b>", warning=True))
    assert "timing" in shell.shown[0]
    assert shell.shown[-1] == "<pre>warning: a &lt;b&gt;</pre>"


def test_a_verb_that_is_done_at_once_shows_nothing(shell: Shell) -> None:
    with notebook.display_progress():
        pass
    assert shell.shown == []


def test_a_verb_shows_its_progress_in_a_notebook_alone(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inspect(**how: Any) -> None:
        with pytest.raises(ot.OrtuneError):
            ot.inspect("nowhere.onnx", **how)

    seen: list[object] = []
    monkeypatch.delitem(sys.modules, "IPython", raising=False)  # another test may have it
    monkeypatch.setattr(notebook, "display_progress", lambda: seen.append("asked") or _Nothing())
    inspect()
    assert not seen
    ipython: Any = ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    for shell_here in (None, SimpleNamespace()):
        ipython.get_ipython = lambda one=shell_here: one
        inspect()
        assert not seen, "only imported, or IPython in a terminal"
    ipython.get_ipython = lambda: SimpleNamespace(kernel="runs")
    inspect(sink=lambda event: None)
    assert not seen, "it was given a sink"
    inspect()
    assert seen == ["asked"]


class _Nothing:
    def __enter__(self) -> Any:
        return lambda event: None

    def __exit__(self, *_: object) -> None:
        pass
