"""`ortune tune` as a user calls it: on a scripted clock, and on real ones where that is long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.gates import write as write_gates

import ortune as ot
from ortune.cli import main as cli
from ortune.data.zoo import digit_cnn
from ortune.graph.analysis.facts import is_denormal, read_facts
from ortune.graph.io import file

DIGITS = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")
TOY = """
<ir_version: 8, opset_import: ["": 17]>
toy (float[1,4] x) => (float[1,4] y) { two = Constant<value = float {2.0}>() y = Mul(x, two) }
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "toy.onnx"
    onnx.save(onnx.parser.parse_model(TOY), path)
    return path


@pytest.fixture
def gates(tmp_path: Path) -> Path:
    """A gate with denormal weights: its products are denormal, and slow in these operators."""
    return write_gates(tmp_path / "gates.onnx")


def called(
    capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0
) -> dict[str, Any]:
    assert cli.main(["tune", *map(str, words), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_settings_that_help_are_kept_and_can_be_pasted(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "settings.json"
    found = called(capsys, toy, "--on", "scripted(threads=1)", "--time", "3s", "-o", out)
    kept = [one for one in found["attempts"] if one["kept"]]
    assert kept[0]["value"] == "slow=0.9"
    assert kept[0]["answers"]["fine"]
    assert found["improved"]
    assert found["ratio"]["high"] < 1
    assert found["best"] == f"scripted(threads=1, slow={found['settings']['slow']})"
    assert found["settings"]["threads"] == 1
    assert json.loads(out.read_text())["best"] == found["best"]


def test_pinned_settings_stay(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = called(capsys, toy, "--on", "scripted(slow=2.0)", "--time", "1s")
    assert found["attempts"] == []
    assert found["best"] == found["start"] == "scripted(slow=2.0)"
    assert not found["improved"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--on", 'cpu(config=["session.nonsense=1"])'], "no session key 'session.nonsense'"),
        (["--on", "cpu(spin_us=-1)"], "spin_us=-1 is not allowed"),
        (["--on", "cpu(spin=maybe)"], "spin"),
        (["--time", "0s"], "cannot read the duration"),
        (["--labels", "l.npy"], "labels are given without samples"),
        (["--workload", "nonsense"], "nonsense"),
        (["--on", "cpu", "-o", "{model}"], "is the source itself"),
    ],
)
def test_bad_input_is_two_lines(
    toy: Path, words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(model=toy) if word == "{model}" else word for word in words]
    assert cli.main(["tune", str(toy), *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert what in lines[-2]
    assert lines[-1].startswith("  fix: ")


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_denormals_are_told_from_zero_and_from_small_numbers(kind: type[np.floating]) -> None:
    limits = np.finfo(kind)
    plain = [0, -0.0, 1, limits.tiny, -limits.tiny, limits.max, np.inf, np.nan]
    tiny = [limits.tiny / 2, -limits.tiny / 2, limits.smallest_subnormal]
    assert not is_denormal(np.array(plain, kind)).any()
    assert is_denormal(np.array(tiny, kind)).all()


def test_the_share_of_denormal_weights_is_counted(gates: Path) -> None:
    assert read_facts(file.load(gates), read=True).denormals == 1
    assert read_facts(file.load(DIGITS), read=True).denormals == 0


@pytest.mark.long
def test_the_denormal_flag_is_found(gates: Path) -> None:
    found = ot.tune(gates, on="cpu(threads=1)", ranges={"x": (0.5, 2)}, time=20)
    assert found.settings["flush_denormals"], found.attempts
    assert found.ratio.high < 1


@pytest.mark.long
def test_the_search_finds_the_denormal_flag(gates: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for index in range(40):
        np.savez(folder / f"{index:02}.npz", x=rng.uniform(0.5, 2, (1, 65536)).astype(np.float32))
    study = ot.optimize(
        gates, data=folder, on="cpu(threads=1)", budget="snr>=60", time=60, out=tmp_path / "run"
    )
    assert study.best.plan.backend.flush_denormals, [str(t.plan) for t in study.trials]


@pytest.mark.long
def test_spinning_is_repaired_beside_a_busy_neighbour() -> None:
    pinned = "cpu(threads=2, level=all, disable=[], parallel=false, block_base=0)"
    found = ot.tune(DIGITS, on=pinned, shapes={"image": (32, 1, 28, 28)}, time=60, beside_load=1)
    settings = found.settings
    assert not settings["spin"] or settings["spin_us"], found.attempts
    assert found.ratio.high < 1
