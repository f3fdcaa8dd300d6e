"""convert to 16-bit, float8 and 4-bit files: what they hold and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.unit.quantizing import normal

from ortune.cli.main import main

TEXT = """<ir_version: 9, opset_import: ["": 19]> g (float[n,64] x) => (float[n,64] y) {
  a = MatMul(x, w)
  b = Mul(a, a)
  c = Sqrt(b)
  y = MatMul(c, v)
}"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A model whose squares overflow float16 on the samples beside it."""
    model = onnx.parser.parse_model(TEXT)
    for index, name in enumerate("wv"):
        held = onnx.numpy_helper.from_array(normal(64, 64, seed=index), name)
        model.graph.initializer.append(held)
    for node in model.graph.node:
        node.name = f"at_{node.output[0]}"
    onnx.save(model, tmp_path / "toy.onnx")
    (tmp_path / "data").mkdir()
    for index in range(4):
        np.savez(tmp_path / "data" / f"{index}.npz", x=normal(4, 64, seed=index, scale=30))
    return tmp_path


def convert(toy: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    args = ["convert", str(toy / "toy.onnx"), str(toy / "out.onnx"), "--json", *options]
    assert main(args) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    onnx.checker.check_model(str(toy / "out.onnx"), full_check=True)
    return found


def snr(found: dict[str, Any]) -> float:
    return float(next(s["value"] for s in found["compared"] if s["metric"] == "snr"))


def test_fp16_learns_from_the_data_what_stays(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = convert(toy, capsys, "--precision", "fp16", "--data", str(toy / "data"))
    assert found["weights"] == {"float16": 2 * 64 * 64 * 2}
    (note,) = [note for note in found["notes"] if "by measured ranges" in note]
    assert "2 of them by measured ranges: at_b (overflow" in note
    assert snr(found) > 50


@pytest.mark.long
def test_fp16_says_that_nothing_was_measured(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = convert(toy, capsys, "--precision", "fp16", "--shape", "x:4x64")
    assert any("ranges were not measured" in note for note in found["notes"])


@pytest.mark.long
def test_fp8_for_a_gpu(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", str(toy / "data"))
    found = convert(toy, capsys, "--precision", "fp8", "--target", "gpu", *data)
    assert found["weights"]["float8_e4m3fn"] == 2 * 64 * 64 + 1  # and the zero point
    assert 20 < snr(found) < 35


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--precision", "fp8", "--data", "data"), "no CPU multiplies float8"),
        (("--precision", "fp8", "--target", "gpu"), "fp8 needs samples"),
        (("--precision", "fp16", "--ranges-from", "r.json"), "--ranges-from is about fp8, int8"),
    ],
)
def test_what_cannot_be_had(
    toy: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    (toy / "r.json").write_text("{}")
    given = [str(toy / o) if o in ("data", "r.json") else o for o in options]
    assert main(["convert", str(toy / "toy.onnx"), str(toy / "out.onnx"), *given]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "fix:" in err
    assert not (toy / "out.onnx").exists()


@pytest.mark.long
def test_bf16_is_checked_where_it_runs(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino")
    found = convert(toy, capsys, "--precision", "bf16", "--data", str(toy / "data"))
    assert found["weights"] == {"bfloat16": 2 * 64 * 64 * 2}
    assert any("no bfloat16 MatMul" in note for note in found["notes"])
    assert snr(found) > 30


@pytest.mark.long
@pytest.mark.parametrize("sampled", [True, False])
def test_int4(toy: Path, capsys: pytest.CaptureFixture[str], sampled: bool) -> None:
    given = ("--data", str(toy / "data")) if sampled else ("--shape", "x:4x64")
    found = convert(toy, capsys, "--precision", "int4", *given)
    (step,) = [edit["step"] for edit in found["edits"] if edit["step"].startswith("int4")]
    assert ("gptq" in step) is sampled
    assert found["bytes_after"] < 0.35 * found["bytes_before"]
