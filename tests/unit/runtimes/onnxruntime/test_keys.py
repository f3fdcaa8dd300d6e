"""Session keys are looked for in the libraries of the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortune.runtimes.onnxruntime import keys


def test_without_a_library_the_answer_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "libraries", tuple)
    with pytest.warns(UserWarning, match=r"session\.x is open"):
        keys.demand(["session.x"])


@pytest.mark.parametrize(
    "name", ["onnxruntime_pybind11_state.pyd", "onnxruntime.dll", "libonnxruntime.1.31.1.dylib"]
)
def test_libraries_of_other_systems_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "someruntime" / "capi"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / name).write_bytes(b"\0session.known\0session.known.longer\0")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = keys.libraries("someruntime")
    assert keys.written(found, "session.known")
    assert not keys.written(found, "session.know")
    assert not keys.written(found, "known.longer")
