"""extract: pieces run by themselves, on the inputs that were recorded for them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from tests.e2e.test_large_model import chain

from ortune.analysis.verification.extract import extract
from ortune.cli.main import main
from ortune.core.errors import BadData, BadModel
from ortune.data.zoo.digit_cnn import DigitCnn
from ortune.graph.io import file


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    DigitCnn().write(folder)
    return folder


def run(path: Path, feeds: dict[str, NDArray], *names: str) -> list[NDArray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(list(names) or None, feeds))


def test_a_piece_of_the_packaged_model_with_its_real_inputs(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = digits / "model.onnx", tmp_path / "piece.onnx"
    made = [node.outputs[0].name for node in file.load(model).graph if node.op_type == "Conv"]
    first, last = str(made[0]), str(made[1])
    args = ["extract", str(model), "--from", first, "--to", last, "-o", str(out)]
    args += ["--data", str(digits / "calibration"), "--samples", "3"]
    assert main([*args, "--json", str(tmp_path / "told.json")]) == 0
    assert "its outputs are those of the whole model" in capsys.readouterr().out
    found = json.loads((tmp_path / "told.json").read_text())
    assert found["added"] == found["ways"] == [] and found["count"] == 3
    assert [one["name"] for one in found["inputs"]] == [first]

    whole = onnx.load(model)
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in (first, last))
    onnx.save(whole, tmp_path / "whole.onnx")
    image = np.load(digits / "calibration" / "digits.npz")["image"][1:2]
    wanted = run(tmp_path / "whole.onnx", {"image": image}, first, last)
    recorded = dict(np.load(tmp_path / "piece-inputs" / "000001.npz"))
    np.testing.assert_allclose(recorded[first], wanted[0], rtol=1e-4, atol=1e-5)
    piece = run(out, {first: recorded[first]})[0]
    np.testing.assert_allclose(piece, wanted[1], rtol=1e-4, atol=1e-4)

    assert main(args) == 2
    assert "piece.onnx exists" in capsys.readouterr().err
    out.unlink()
    assert main(args) == 2
    assert "piece-inputs exists" in capsys.readouterr().err


def test_ways_round_the_cut_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    text = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[n] x) => (float[n] y) { a = Abs(x)  b = Neg(a)  c = Mul(a, b)  y = Sqrt(c) }
"""
    onnx.save(onnx.parser.parse_model(text), path)
    assert main(["extract", str(path), "--from", "b", "-o", str(tmp_path / "p.onnx")]) == 0
    out = capsys.readouterr().out
    assert "also needs the inputs x" in out and "to leave them out: --from a\n" in out
    assert run(tmp_path / "p.onnx", {"b": np.float32([-4]), "x": np.float32([4])}, "y")


def test_what_a_loop_gives_its_body_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[2] x, int64 trips) => (float[2] y)
{
  y = Loop (trips, , x) <body = b (int64 i, bool go, float[2] s) => (bool on, float[2] t) {
      on = Identity(go)
      twice = Add(s, s)
      t = Abs(twice)
    }>
}
"""
    onnx.save(onnx.parser.parse_model(text), path)
    np.savez(tmp_path / "a.npz", x=np.ones(2, np.float32), trips=np.array(3))
    with pytest.raises(BadData, match="'s' is what a Loop or Scan gives its body"):
        extract(path, tmp_path / "p.onnx", (), ["t"], data=tmp_path / "a.npz")
    assert not (tmp_path / "p.onnx").exists()


def test_types_are_read_off_a_run(tmp_path: Path) -> None:
    """Nothing infers the type of onnxruntime's own operators."""
    path = tmp_path / "m.onnx"
    text = """
<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
g (float[n, 4] x) => (float[n, 4] y)
{ a = com.microsoft.QuickGelu(x)  b = com.microsoft.Gelu(a)  y = Abs(b) }
"""
    onnx.save(onnx.parser.parse_model(text), path)
    np.savez(tmp_path / "a.npz", x=np.ones((1, 4), np.float32), label=np.array([7]))
    with pytest.raises(BadModel, match="the type of 'b' is not known"):
        extract(path, tmp_path / "p.onnx", ["b"])
    found = extract(path, tmp_path / "p.onnx", ["b"], data=tmp_path / "a.npz")
    assert [one.dtype for one in found.inputs] == ["float32"]
    recorded = dict(np.load(tmp_path / "p-inputs" / "000000.npz"))
    assert recorded["label"] == 7


def test_a_piece_of_four_gigabytes_writes_its_own_weights_alone(tmp_path: Path) -> None:
    path = chain(tmp_path, layers=64, width=4096)
    found = extract(path, tmp_path / "piece.onnx", ["x40"], ["x41"])
    assert found.nodes == 1 and found.weight_bytes == 64 << 20
    assert file.count_file_bytes(found.path) < 65 << 20


def test_a_piece_that_answers_otherwise_is_not_written(tmp_path: Path) -> None:
    """Random numbers are drawn anew in each run."""
    path = tmp_path / "m.onnx"
    text = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[64] x) => (float[64] y) { a = Abs(x)  r = RandomNormalLike(a)  y = Add(a, r) }
"""
    onnx.save(onnx.parser.parse_model(text), path)
    np.savez(tmp_path / "a.npz", x=np.ones(64, np.float32))
    with pytest.raises(BadModel, match="outputs differ from the whole") as error:
        extract(path, tmp_path / "p.onnx", ["a"], data=tmp_path / "a.npz")
    assert "random" in error.value.fix
    assert sorted(found.name for found in tmp_path.iterdir()) == ["a.npz", "m.onnx"]
