"""Every verb that takes a model, on every file that breaks a rule: two lines, nothing written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest
from tests import hostile

from ortune.cli import main as cli

Words = Callable[[str, str, str, str], list[str]]

VERBS: dict[str, Words] = {
    "apply": lambda model, good, data, out: [model, "simplify", "-o", out],
    "bench": lambda model, good, data, out: [good, model, "--time", "0.1", "--sets", "1"],
    "cost --timeline": lambda model, good, data, out: [
        *(model, "--inferences-per-session", "5", "-o", f"{out}.html")
    ],
    "optimize --buckets": lambda model, good, data, out: [
        *(model, "--data", data, "--seconds", "0")
    ],
    "calibrate": lambda model, good, data, out: [model, "--data", data, "-o", out],
    "convert": lambda model, good, data, out: [model, out, "--precision", "fp16"],
    "diff": lambda model, good, data, out: [good, model],
    "extract": lambda model, good, data, out: [model, "--to", "y", "-o", out],
    "inspect": lambda model, good, data, out: [model, "-v"],
    "optimize": lambda model, good, data, out: [model, "-o", out, "--time", "1s", "--quiet"],
    "profile": lambda model, good, data, out: [model],
    "run": lambda model, good, data, out: [model, data, "-o", f"{out}.npz"],
    "sensitivity": lambda model, good, data, out: [
        *(model, "--data", data, "--time", "1s", "--plot", f"{out}.svg")
    ],
    "serve": lambda model, good, data, out: [
        *(good, f"other={model}", "--http-port", "0", "--grpc-port", "0")
    ],
    "tune": lambda model, good, data, out: [model, "--time", "1s", "-o", out],
    "verify": lambda model, good, data, out: [good, model],
}
OTHERS: dict[str, Words] = {
    "compare": lambda model, good, data, out: [model, model],
    "cost": lambda model, good, data, out: [model, "--price", "1/h"],
    "explain": lambda model, good, data, out: [model],
    "pack": lambda model, good, data, out: [model, "-o", out],
    "recheck": lambda model, good, data, out: [model],
    "report": lambda model, good, data, out: [model],
    "recheck --signature-only": lambda model, good, data, out: [
        *(model, "--require-signature", model)
    ],
}
"""Verbs that take a run or a result: any file may be given for one."""
_NO_FILE = {"ui", "demo", "doctor", "export", "loadtest"}
"""A load test hands its model to a server, and says what that says; an export takes a module."""
_LOOKS = {"diff", "inspect"}
"""These show a model of an opset that is not known here."""
_FOLDERS = {"run", "serve"}
_STREAM = {"fifo", "device"}
_NO_FILES = {"folder", "broken link", *_STREAM}
"""What takes folders too has its own words for these."""
_SLOW = {name for name in hostile.REFUSED if name.startswith("many ")}
"""They take seconds to write: `tests/unit/graph/io/test_check.py` reads them once."""
STEERING = ("\x1b", "\x07", "\r", "\u202e", "\x00")


def run(
    verb: str, words: Words, folder: Path, path: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str, set[Path]]:
    """Run a verb; return its code, what it said and what it left behind."""
    good = folder / "in" / "good.onnx"
    if not good.exists():
        hostile.write_good(good.parent)
        (good.parent / "data").mkdir()
        np.savez(good.parent / "data" / "one.npz", x=np.ones((1, 2, 4), np.float32))
    before = set(folder.rglob("*"))
    data, out = str(good.parent / "data"), str(folder / "out")
    code = cli.main([*verb.split(), *words(str(path), str(good), data, out)])
    said = capsys.readouterr()
    return code, said.out, said.err, set(folder.rglob("*")) - before


def test_every_verb_is_here() -> None:
    every = set(cli.root.list_commands(click.Context(cli.root)))
    assert every == {name.split()[0] for name in (*VERBS, *OTHERS)} | _NO_FILE


@pytest.mark.parametrize("verb", [*VERBS, *OTHERS])
def test_a_hostile_file_is_two_lines_and_nothing_is_written(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (VERBS | OTHERS)[verb]
    for k, (name, (_, wanted)) in enumerate(hostile.REFUSED.items()):
        if name in _SLOW or (name in _STREAM and (verb in OTHERS or verb == "run")):
            continue
        path = hostile.written(name, tmp_path / f"{k}")
        code, out, err, made = run(verb, words, tmp_path, path, capsys)
        if verb in _LOOKS and name == "opset 999":
            assert code in (0, 1), err
            continue
        assert code == 2, (verb, name, code, out, err)
        lines = err.splitlines()
        assert len(lines) == 2, (verb, name, err)
        assert lines[0].startswith(f"ortune {verb.split()[0]}: "), (verb, name, err)
        assert lines[1].startswith("  fix: "), (verb, name, err)
        assert "unexpected" not in err, (verb, name, err)
        assert not any(mark in out + err for mark in STEERING), (verb, name, err)
        assert not made - {tmp_path / "in"} - set((tmp_path / "in").rglob("*")), (verb, name)
        if verb in VERBS and not (verb in _FOLDERS and name in _NO_FILES):
            assert wanted in lines[0], (verb, name, err)


@pytest.mark.parametrize("verb", ["diff", "extract", "inspect"])
@pytest.mark.parametrize("name", list(hostile.ODD))
def test_an_odd_file_is_shown_or_refused_in_words(
    verb: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hostile.written(name, tmp_path / "odd")
    code, out, err, _ = run(verb, VERBS[verb], tmp_path, path, capsys)
    assert code in (0, 1, 2)
    assert code != 2 or err.splitlines()[-1].startswith("  fix: ")
    assert "unexpected" not in err
    assert not any(mark in out + err for mark in STEERING)


@pytest.mark.parametrize("flag", ["--list=nodes", "--list=tensors", "--json"])
def test_names_cannot_steer_the_terminal(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hostile.written("control characters", tmp_path / "odd")
    assert cli.main(["inspect", str(path), flag]) == 0
    out = capsys.readouterr().out
    assert not any(mark in out for mark in STEERING)
    assert ("\\u001b" if flag == "--json" else "\\x1b") in out


def test_a_path_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{hostile.ESC}.onnx", os.fsdecode(b"\xff.onnx"), "a\nb.onnx", "x" * 5000]
    for name in names:
        assert cli.main(["inspect", f"{tmp_path}/{name}"]) == 2
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 2
        assert err.isprintable() or not any(mark in err for mark in (*STEERING, "\udcff"))
