"""Samples and settings survive the way through plain files, whatever they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.unit import packaged

from ortune.backends.cpu import Cpu
from ortune.core.errors import BadModel
from ortune.targets.common import plain_session

ARRAYS = {
    "plain": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a name with spaces": np.array(7, np.int64),
    "half": np.array([[1.5]], np.float16),
    "yes": np.array([True, False]),
    "empty": np.zeros((0, 3), np.uint8),
}


def test_there_and_back(tmp_path: Path) -> None:
    plain_session.write_sample(tmp_path, {}, ARRAYS)
    found = plain_session.read_answers(tmp_path, ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    listed = (tmp_path / "outputs.txt").read_text(encoding="utf-8").splitlines()
    assert listed[1] == "output_1.bin int64 - a name with spaces"
    assert listed[0] == "output_0.bin float32 2x3 plain"


def test_an_answer_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="has 0 bytes where 24 are expected"):
        plain_session.read_answers(tmp_path, {"plain": ARRAYS["plain"]})


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
        found = plain_session.replay_program(source, "zero", lambda name: command, where=tmp_path)
    assert found.difference_db == pytest.approx(0, abs=1e-6)


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="-c failed: no luck"):
        plain_session.run_command([sys.executable, "-c", "raise SystemExit('no luck')"], tmp_path)


def test_every_setting_of_a_plan_is_written_as_data(tmp_path: Path) -> None:
    backend = Cpu(
        threads=3,
        level="extended",
        disable=("BiasGeluFusion", "MatMulScaleFusion"),
        spin=False,
        parallel=True,
        inter_threads=2,
        arena_growth="as-requested",
        memory_pattern=False,
        prepack=False,
        affinity="2;3",
        config=("session.force_spinning_stop=1",),
    )
    plain_session.write_settings(tmp_path, backend)
    text = (tmp_path / "settings.json").read_text(encoding="utf-8")
    entries = {
        "optimization.disable_specified_optimizers": "BiasGeluFusion;MatMulScaleFusion",
        "session.disable_prepacking": "1",
        "session.force_spinning_stop": "1",
        "session.inter_op.allow_spinning": "0",
        "session.intra_op.allow_spinning": "0",
        "session.intra_op_thread_affinities": "2;3",
    }
    assert json.loads(text) == {
        "threads": 3,
        "inter_threads": 2,
        "parallel": True,
        "level": "extended",
        "arena": True,
        "small_arena": True,
        "memory_pattern": False,
        "entries": entries,
    }
    # The program in C++ reads it by line.
    assert all(f'  "{key}": "{value}"' in text for key, value in entries.items())
    assert plain_session.session_settings(Cpu())["inter_threads"] == 1
