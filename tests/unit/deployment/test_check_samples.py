"""Samples survive the way through plain files, whatever their type and shape."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.unit import packaged

from ortune.core.errors import BadModel
from ortune.deployment import check_samples

ARRAYS = {
    "plain": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a name with spaces": np.array(7, np.int64),
    "half": np.array([[1.5]], np.float16),
    "yes": np.array([True, False]),
    "empty": np.zeros((0, 3), np.uint8),
}


def test_there_and_back(tmp_path: Path) -> None:
    check_samples.write(tmp_path, {}, ARRAYS)
    found = check_samples.read_answers(tmp_path, ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    listed = (tmp_path / "outputs.txt").read_text(encoding="utf-8").splitlines()
    assert listed[1] == "output_1.bin int64 - a name with spaces"
    assert listed[0] == "output_0.bin float32 2x3 plain"


def test_an_answer_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="has 0 bytes where 24 are expected"):
        check_samples.read_answers(tmp_path, {"plain": ARRAYS["plain"]})


def test_a_program_that_answers_wrongly_is_seen(tmp_path: Path) -> None:
    program = tmp_path / "zero.py"
    program.write_text(
        "import sys, pathlib\n"
        "check, out = map(pathlib.Path, sys.argv[2:])\n"
        "out.mkdir()\n"
        "for line in (check / 'outputs.txt').read_text().splitlines():\n"
        "    name = line.split()[0]\n"
        "    (out / name).write_bytes(bytes(len((check / name).read_bytes())))\n",
        encoding="utf-8",
    )
    with packaged.source(tmp_path) as source:
        command = [sys.executable, program, source.models[""]]
        found = check_samples.replay(source, "zero", lambda name: command, where=tmp_path)
    assert found.difference_db == pytest.approx(0, abs=1e-6)


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="-c failed: no luck"):
        check_samples.run([sys.executable, "-c", "raise SystemExit('no luck')"], tmp_path)
