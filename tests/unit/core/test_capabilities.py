"""Two wheels of onnxruntime in one environment are named before anything runs."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from tests.unit import studies

import ortune as ot
from ortune.cli.main import main
from ortune.core.event import Note
from ortune.core.runtime_conflict import (
    find_runtime_conflict,
    list_runtimes,
    warn_of_runtime_conflict,
)

TOGETHER = "onnxruntime, onnxruntime-gpu are installed together: each overwrites the other"


def installed(root: Path, *names: str) -> Path:
    """Leave in a folder what pip leaves of distributions that are no more than their metadata."""
    for name in names:
        info = root / f"{name.replace('-', '_')}-1.31.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.31.1\n")
    return root


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path / "packages", "onnxruntime-gpu"))
    importlib.invalidate_caches()


def test_one_is_no_problem(tmp_path: Path) -> None:
    assert list_runtimes([str(installed(tmp_path, "onnxruntime-gpu"))]) == {
        "onnxruntime-gpu": "1.31.1"
    }
    assert list_runtimes([str(tmp_path / "none")]) == {}
    assert (
        find_runtime_conflict({}) is None
        and find_runtime_conflict({"onnxruntime": "1.31.1"}) is None
    )
    assert list(list_runtimes()) == ["onnxruntime"]


def test_two_are_named_with_the_line_that_parts_them(tmp_path: Path) -> None:
    home = installed(tmp_path, "onnxruntime", "onnxruntime-gpu")
    found = find_runtime_conflict(list_runtimes([str(home)]))
    assert found is not None and found[0] == TOGETHER
    assert found[1].startswith("pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnx")


@pytest.mark.usefixtures("two")
def test_every_verb_names_them_before_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = studies.write_model(tmp_path / "toy.onnx", studies.MODEL)
    for words in (
        ["inspect", str(model)],
        ["doctor", "env", "list"],
        ["bench", str(tmp_path / "no.onnx")],
    ):
        main(words)
        said = " ".join(capsys.readouterr().err.split())
        assert TOGETHER in said and said.index(TOGETHER) < 40, words


@pytest.mark.usefixtures("two")
def test_python_is_warned_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = studies.write_model(tmp_path / "toy.onnx", studies.MODEL)
    with pytest.warns(RuntimeWarning, match="installed together"):
        ot.inspect(model)
    x = np.array([[-5, 0, 1, 2]], np.float32)
    with pytest.warns(RuntimeWarning, match="installed together"), ot.load(model) as engine:
        np.testing.assert_array_equal(engine(x=x)["y"], [[0, 2, 4, 6]])
    heard: list[Note] = []
    warn_of_runtime_conflict(
        lambda event: heard.append(event) if isinstance(event, Note) else None
    )
    assert [note.warning for note in heard] == [True]
