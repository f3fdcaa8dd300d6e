"""Compiled models in a bundle: opened where provider, versions and device are the same."""

from __future__ import annotations

import json
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ortune_toys.backends.precompiled import Precompiled
from tests.unit import studies
from tests.unit.bundle import several

from ortune.backends.cpu import Cpu
from ortune.bundle import entries
from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack
from ortune.bundle.read import read_bundle
from ortune.cli.main import main
from ortune.core.errors import BadModel, BadSettings
from ortune.core.plugins import codec
from ortune.core.study import Study
from ortune.search.experiment.ledger import Ledger, write_ending, write_header

X = np.array([[-5, 0, 1, 2]], np.float32)
Y = np.array([[0, 2, 4, 6]], np.float32)


def packed(folder: Path, harm: str = "") -> Path:
    """Pack a run whose winner's provider compiles; what is harmed is so after it was checked."""
    study = studies.study(folder, backend=Precompiled())
    path = pack(study, folder / "toy.ortune", compiled=True)
    return path if not harm else rewritten(path, lambda name, data: spoiled(name, data, harm))


def spoiled(name: str, data: bytes, harm: str) -> bytes:
    """Compile anew in another way; the settings say so too."""
    if name == "settings.json":
        return json.dumps({**json.loads(data), "harm": harm}).encode()
    return data


def rewritten(path: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """Change members of a bundle and their digests in the manifest."""
    draft = path.with_suffix(".draft")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(draft, "w") as new:
        manifest = json.loads(old.read("manifest.json"))
        for name in manifest["members"]:
            told = entries.write_text_member(new, name, change(name, old.read(name)), packed=False)
            manifest["members"][name] = codec.encode(told)
        entries.write_text_member(new, "manifest.json", json.dumps(manifest).encode())
    shutil.move(draft, path)
    return path


def said(path: Path, **how: bool) -> tuple[Engine, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = load_engine(path, **how)
    np.testing.assert_array_equal(engine(x=X)["y"], Y)
    return engine, [str(one.message) for one in caught]


def test_what_is_in_it(tmp_path: Path) -> None:
    path = packed(tmp_path)
    with zipfile.ZipFile(path) as file:
        names = file.namelist()
        told = json.loads(file.read("compiled.json"))
    assert "compiled/toy.onnx" in names and "models/toy.onnx" in names
    assert told == [
        {
            "plan": 0,
            "models": {"": "compiled/toy.onnx"},
            "made_for": {"provider": "ToyExecutionProvider", "device": "toy 1"},
        }
    ]
    assert read_bundle(path).backend == Precompiled()


def test_it_is_opened_where_all_is_the_same(tmp_path: Path) -> None:
    engine, warned = said(packed(tmp_path))
    assert engine.compiled and not engine.fallback and not warned
    assert engine.plan is not None and engine.backend == Precompiled()


def test_elsewhere_the_plain_model_runs_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tmp_path)
    monkeypatch.setenv("TOY_DEVICE", "toy 2")
    engine, warned = said(path)
    assert not engine.compiled and engine.backend == Precompiled() and not engine.fallback
    why = "(device: toy 1 then, toy 2 now); it compiles the plain model"
    assert warned == [f"toy.ortune: what 'precompiled' compiled does not run here {why}"]
    monkeypatch.setenv("TOY_DEVICE", "none")
    _, warned = said(path)
    assert len(warned) == 1 and "the toy has no device; fix: plug it in" in warned[0]


@pytest.mark.parametrize(("harm", "why"), [("closed", "error 7"), ("wrong", "dB from the packed")])
def test_what_does_not_open_or_answers_otherwise_is_left_alone(
    tmp_path: Path, harm: str, why: str
) -> None:
    path = packed(tmp_path, harm)
    if harm == "wrong":
        other = tmp_path / "wrong.onnx"
        Precompiled(harm=harm).compile(tmp_path / "run/artefacts/0123/toy.onnx", other)
        wrong = other.read_bytes()
        rewritten(path, lambda name, data: wrong if name == "compiled/toy.onnx" else data)
    engine, warned = said(path)
    assert not engine.compiled and len(warned) == 1 and why in warned[0]


def test_it_can_be_left_out_and_fewer_threads_leave_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, warned = said(packed(tmp_path), compiled=False)
    assert not engine.compiled and not warned
    study = studies.study(tmp_path / "many", backend=Precompiled(threads=2))
    path = pack(study, tmp_path / "many.ortune", compiled=True)
    monkeypatch.setattr("ortune.bundle.engine.consent.effective_cpus", lambda: 1)
    engine, warned = said(path)
    assert not engine.compiled and "lowered to this machine" in warned[0]


def test_bytes_outside_of_the_bundle_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "outside.onnx"
    path = packed(tmp_path)
    Precompiled(harm="outside").compile(tmp_path / "run/artefacts/0123/toy.onnx", other)
    outside, plain = other.read_bytes(), (tmp_path / "run/artefacts/0123/toy.onnx").read_bytes()
    for content, why in ((outside, "a file outside itself"), (plain, "nothing that is compiled")):
        held = content
        rewritten(path, lambda name, data: held if name == "compiled/toy.onnx" else data)  # noqa: B023
        with pytest.raises(BadModel, match=why):
            load_engine(path)


@pytest.mark.parametrize(
    "told",
    [
        b"{}",
        b"[",
        b'[{"plan": 7, "models": {"": "compiled/toy.onnx"}, "made_for": {}}]',
        b'[{"plan": 0, "models": {"other": "compiled/toy.onnx"}, "made_for": {}}]',
        b'[{"plan": 0, "models": {"": "../toy.onnx"}, "made_for": {}}]',
        b'[{"plan": 0, "models": {"": "settings.json"}, "made_for": {}}]',
        b'[{"plan": 0, "models": {"": "compiled/toy.onnx"}, "made_for": 3}]',
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, told: bytes) -> None:
    path = packed(tmp_path)
    rewritten(path, lambda name, data: told if name == "compiled.json" else data)
    with pytest.raises(BadModel, match=r"compiled\.json"):
        load_engine(path)


@pytest.mark.parametrize("harm", ["wrong", "closed"])
def test_what_is_wrong_is_not_packed(tmp_path: Path, harm: str) -> None:
    study = studies.study(tmp_path, backend=Precompiled(harm=harm))
    with pytest.raises(BadModel, match=r"toy\.onnx"):
        pack(study, tmp_path / "toy.ortune", compiled=True)
    assert not (tmp_path / "toy.ortune").exists()


def test_only_plans_that_can_are_compiled(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="cpu compiles no model ahead of time"):
        pack(studies.study(tmp_path / "cpu"), tmp_path / "cpu.ortune", compiled=True)
    study = several.with_plan(studies.study(tmp_path / "two"), "ab12" * 4, Precompiled(), 0.9)
    path = pack(study, tmp_path / "two.ortune", with_="ab12", compiled=True)
    with zipfile.ZipFile(path) as file:
        assert "plans/1/compiled/toy.onnx" in file.namelist()
        assert "compiled/toy.onnx" not in file.namelist()
    engine = load_engine(path, on="precompiled")
    assert engine.compiled and load_engine(path).backend == Cpu(threads=1)


def test_the_command_line_packs_it(tmp_path: Path) -> None:
    study = stored(studies.study(tmp_path, backend=Precompiled()))
    words = ["pack", study.root, "-o", str(tmp_path / "cli.ortune"), "--compiled"]
    assert main(words) == 0
    assert load_engine(tmp_path / "cli.ortune").compiled
    assert main([*words, "--for", "python"]) != 0


def stored(study: Study) -> Study:
    """Write a study as a run, so that a verb can read it."""
    root = Path(study.root)
    write_header(root, study.header)
    ledger = Ledger(root)
    for trial in study.trials:
        ledger.append(trial)
    write_ending(root, study.ending)
    return study
