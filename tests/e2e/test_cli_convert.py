"""convert and apply: every precision and level gives a file that loads and is what was ordered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.unit.quantizing import normal

from ortune.analysis.benchmark import bench
from ortune.cli.main import main
from ortune.data.zoo.digit_cnn import DigitCnn


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged model; of the samples to calibrate with a few, as every test runs them."""
    folder = tmp_path_factory.mktemp("digits")
    DigitCnn().write(folder)
    data = folder / "calibration" / "digits.npz"
    np.savez(data, image=np.load(data)["image"][:64])
    return folder


def convert(
    digits: Path, out: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> dict[str, Any]:
    args = ["convert", str(digits / "model.onnx"), str(out), "--json", *options]
    assert main(args) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    assert found["bytes_after"] == out.stat().st_size
    return found


def scores(found: dict[str, Any]) -> dict[str, float]:
    return {score["metric"]: score["value"] for score in found["compared"]}


@pytest.mark.parametrize(
    ("precision", "target", "level"),
    [
        ("fp32", "cpu", "all"),
        ("fp32", "cpu", "basic"),
        ("fp32", "gpu", "all"),
        ("fp16", "cpu", "all"),
        ("fp16", "cpu", "extended"),
        ("fp16", "gpu", "disable"),
    ],
)
def test_float_files(
    precision: str,
    target: str,
    level: str,
    digits: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.onnx"
    options = ("--precision", precision, "--target", target, "--opt-level", level)
    found = convert(digits, out, capsys, *options, "--data", str(digits / "calibration"))
    share = found["bytes_after"] / found["bytes_before"]
    assert share == pytest.approx(0.5 if precision == "fp16" else 1.0, abs=0.03)
    assert scores(found)['agreement(groups=["1:logits"], change=0.2)'] == 1
    domains = {node.domain for node in onnx.load(out).graph.node} - {"", "ai.onnx"}
    assert not domains if target == "gpu" or level in ("disable", "basic") else True
    bound = [note for note in found["notes"] if "binds the file to this hardware" in note]
    assert bool(bound) is (level == "all" and target == "cpu" and precision == "fp32")


@pytest.mark.parametrize(
    ("data", "level"), [(True, "all"), (True, "basic"), (False, "extended"), (False, "disable")]
)
def test_int8_files_for_the_cpu(
    data: bool, level: str, digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--data", str(digits / "calibration")) if data else ()
    out = tmp_path / "out.onnx"
    found = convert(digits, out, capsys, "--precision", "int8", "--opt-level", level, *given)
    assert found["bytes_after"] < 0.3 * found["bytes_before"]
    assert found["weights"]["int8"] > 0.9 * sum(found["weights"].values()) / 2
    told = any("at load" in note for note in found["notes"])
    assert told is not data


@pytest.mark.parametrize("target", ["gpu", "tensorrt"])
def test_int8_for_a_gpu_is_symmetric(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    out = tmp_path / "out.onnx"
    options = ("--precision", "int8", "--target", target, "--data", str(digits / "calibration"))
    convert(digits, out, capsys, *options)
    model = onnx.load(out)
    zeros = {node.input[2] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    points = [t for t in model.graph.initializer if t.name in zeros]
    assert points
    assert all(t.data_type == onnx.TensorProto.INT8 for t in points)
    assert not any(onnx.numpy_helper.to_array(t).any() for t in points)
    held = {tensor.data_type for tensor in model.graph.initializer}
    assert onnx.TensorProto.INT32 not in held, "biases stay float"


def test_dynamic_conv_is_made_and_timed(
    digits: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = bench.run
    monkeypatch.setattr(bench, "run", lambda asked: run(replace(asked, time=0.1, sets=2)))
    out = tmp_path / "out.onnx"
    options = ("--precision", "int8", "--dynamic-conv", "--opt-level", "disabled")
    found = convert(digits, out, capsys, *options)
    assert any(node.op_type == "ConvInteger" for node in onnx.load(out).graph.node)
    ratio = found["latency_ratio"]
    assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"]


def test_sources_and_existing_files_are_kept(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = digits / "model.onnx"
    before = model.read_bytes()
    assert main(["convert", str(model), str(model), "--force"]) == 2
    out = tmp_path / "out.onnx"
    out.write_bytes(b"mine")
    assert main(["convert", str(model), str(out)]) == 2
    assert main(["apply", str(model), "simplify", "-o", str(out)]) == 2
    assert main(["apply", str(model), "simplify", "-o", str(model), "--force"]) == 2
    assert model.read_bytes() == before
    assert out.read_bytes() == b"mine"
    capsys.readouterr()


def test_apply_takes_steps_in_order(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.onnx"
    steps = ["simplify", "int8-static(observer=percentile(p=99.9), head=true)"]
    data = ["--data", str(digits / "calibration")]
    args = ["apply", str(digits / "model.onnx"), *steps, *data, "-o", str(out), "--json"]
    assert main(args) == 0
    found = json.loads(capsys.readouterr().out)
    done = [edit["step"] for edit in found["edits"]]
    assert done[0] == "simplify"
    assert done[-1].startswith("int8-static(observer=percentile")
    assert found["bytes_after"] < 0.3 * found["bytes_before"]


# convert to 16-bit, float8 and 4-bit files: what they hold and what is said of them.


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


def convert_precisions(
    toy: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> dict[str, Any]:
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
    found = convert_precisions(toy, capsys, "--precision", "fp16", "--data", str(toy / "data"))
    assert found["weights"] == {"float16": 2 * 64 * 64 * 2}
    (note,) = [note for note in found["notes"] if "by measured ranges" in note]
    assert "2 of them by measured ranges: at_b (overflow" in note
    assert snr(found) > 50


@pytest.mark.long
def test_fp16_says_that_nothing_was_measured(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = convert_precisions(toy, capsys, "--precision", "fp16", "--shape", "x:4x64")
    assert any("ranges were not measured" in note for note in found["notes"])


@pytest.mark.long
def test_fp8_for_a_gpu(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", str(toy / "data"))
    found = convert_precisions(toy, capsys, "--precision", "fp8", "--target", "gpu", *data)
    assert found["weights"]["float8_e4m3fn"] == 2 * 64 * 64 + 1  # and the zero point
    assert 20 < snr(found) < 35


@pytest.mark.long
def test_bf16_is_checked_where_it_runs(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino")
    found = convert_precisions(toy, capsys, "--precision", "bf16", "--data", str(toy / "data"))
    assert found["weights"] == {"bfloat16": 2 * 64 * 64 * 2}
    assert any("no bfloat16 MatMul" in note for note in found["notes"])
    assert snr(found) > 30


@pytest.mark.long
@pytest.mark.parametrize("sampled", [True, False])
def test_int4(toy: Path, capsys: pytest.CaptureFixture[str], sampled: bool) -> None:
    given = ("--data", str(toy / "data")) if sampled else ("--shape", "x:4x64")
    found = convert_precisions(toy, capsys, "--precision", "int4", *given)
    (step,) = [edit["step"] for edit in found["edits"] if edit["step"].startswith("int4")]
    assert ("gptq" in step) is sampled
    assert found["bytes_after"] < 0.35 * found["bytes_before"]
