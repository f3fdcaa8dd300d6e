"""What an inspection shows at a prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.models import write_classifier
from tests.unit.studies import write_model

import ortune as ot
from ortune.analysis.inspection.inspect import build_placement, inspect, query_placement
from ortune.backends.cpu import Cpu
from ortune.backends.reference import Reference
from ortune.backends.runtimes.openvino import native
from ortune.core.errors import BadModel, BadSettings
from ortune.graph.io import file


def test_the_repr_has_the_figures_of_the_models_size_and_work(tmp_path: Path) -> None:
    model, _ = write_classifier(tmp_path)
    found = ot.inspect(model)
    shown = found.summary()
    assert shown["nodes"] == found.facts.nodes
    assert shown["FLOPs"] == found.facts.flops
    assert shown["bytes moved"] == found.moved
    assert shown["findings"] == len(found.lint)
    assert repr(found).startswith("Inspection\n  model ")


def test_what_was_skipped_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = write_classifier(tmp_path)
    assert ot.inspect(model).skipped == ""
    found = ot.inspect(model, weights=False)
    assert "its digest, findings about weights" in found.skipped
    assert "saturate" not in found.skipped and found.digest is None
    monkeypatch.setattr("ortune.analysis.inspection.inspect.READ_BELOW", 1)
    quantized = ot.convert(model, tmp_path / "q.onnx", precision="int8")
    assert quantized is not None
    assert "integer layers can saturate" in ot.inspect(tmp_path / "q.onnx").skipped
    assert ot.inspect(tmp_path / "q.onnx", weights=True).skipped == ""


def test_a_step_is_named_when_it_changes_the_model(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 4] x) => (float[1, 4] y) {a = Identity(x) b = Identity(a) y = Relu(b)}"""
    (tried,) = ot.inspect(write_model(tmp_path / "m.onnx", text)).steps
    assert (tried.step, tried.nodes_before, tried.nodes_after) == ("simplify", 3, 1)
    plain = text.replace("a = Identity(x) b = Identity(a) y = Relu(b)", "y = Relu(x)")
    assert not ot.inspect(write_model(tmp_path / "plain.onnx", plain)).steps


# What a GPU would refuse or not record is a finding, where it is asked for and nowhere else.


TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,4] x) => (float[n,4] y) <float s = {0.5}, uint8 z = {3}> {
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  t = Shape(d)
  y = Reshape(d, t)
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = onnx.parser.parse_model(TEXT)
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def rules(model: Path, on: str, **asked: object) -> set[str]:
    found = inspect(model, on=on, **asked)
    return {one.rule for one in found.lint if one.rule.startswith(("tensorrt", "cuda"))}


def test_nothing_is_said_of_a_gpu_that_nobody_asked_for(model: Path) -> None:
    assert rules(model, "") == rules(model, "cpu") == set()


def test_cuda_is_about_graphs(model: Path) -> None:
    assert rules(model, "cuda") == {"cuda-graph-shapes", "cuda-graph-cpu"}
    assert rules(model, "cuda", shapes={"x": (2, 4)}) == {"cuda-graph-cpu"}


def test_tensorrt_is_about_pairs_too(model: Path) -> None:
    found = rules(model, "tensorrt")
    assert {"tensorrt-zero-point", "tensorrt-type", "cuda-graph-cpu"} <= found


# Providers are asked which nodes they take; what they say is told in the model's terms.


TEXT_PLACEMENT = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[n, 4] x, bool flag) => (float[n, 4] y)
{
  [outer] a = Abs(x)
  [k] c = Constant <value = float {2.0}> ()
  [branch] b = If (flag) <
    then_branch = t () => (float[n, 4] one) { [inner] one = Mul(a, c) },
    else_branch = e () => (float[n, 4] two) { [other] two = Neg(a) }
  >
  y = Sqrt(b)
}
"""


PRODUCT = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[n, 64] x) => (float[n, 64] y)
<float[64, 64] w = {VALUES}>
{ [product] y = MatMul(x, w) }
""".replace("VALUES", ", ".join(str((i * 37 % 101 - 50) / 100) for i in range(64 * 64)))


def saved(folder: Path, text: str = TEXT_PLACEMENT) -> Path:
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_onnxruntime_names_the_nodes_it_takes(tmp_path: Path) -> None:
    found = query_placement(saved(tmp_path), Cpu(threads=1))
    assert not found.problem and not found.left
    (names,) = found.nodes.values()
    assert set(found.nodes) == {"CPUExecutionProvider"}
    assert {"outer", "branch", "inner", "other"} <= set(names) and len(names) == 5
    assert "k" not in names, "a constant is no node to be taken"


def test_casts_that_the_runtime_adds_are_told_apart(tmp_path: Path) -> None:
    text = """
<ir_version: 10, opset_import: ["" : 18]>
g (float16[n, 4] x) => (float16[n, 4] y) { [one] a = Atan(x)  [two] y = Selu(a) }
"""
    path = saved(tmp_path, text)
    found = build_placement("cpu", file.load(path), Cpu(threads=1).takes(path))
    assert found.nodes["CPUExecutionProvider"] == ("one",)
    assert found.added["CPUExecutionProvider"] >= 2
    assert found.left == ("two",), "taken apart into smaller operators: it has no float16 kernel"


def test_openvino_is_asked_itself(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = saved(tmp_path)
    found = build_placement("openvino", file.load(path), native.query_nodes_by_device(path, {}))
    taken = {name for names in found.nodes.values() for name in names}
    assert {"outer", "branch"} <= taken


def test_what_openvino_does_not_convert_is_named(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    text = """
<ir_version: 10, opset_import: ["" : 18, "nobody" : 1]>
g (float[2] x) => (float[2] y) { a = Abs(x)  y = nobody.Thing(a) }
"""
    with pytest.raises(BadModel, match=r"does not convert nobody\.Thing"):
        native.query_nodes_by_device(saved(tmp_path, text), {})


def test_layers_with_integers_are_counted_where_they_run(tmp_path: Path) -> None:
    source, path = saved(tmp_path, PRODUCT), tmp_path / "int8.onnx"
    rng = np.random.default_rng(0)
    samples = [{"x": rng.normal(size=(2, 64)).astype(np.float32)} for _ in range(4)]
    ot.apply(source, ["int8-static"], out=path, data=lambda: samples)
    used = query_placement(path, Cpu(threads=1)).integers
    assert used is not None and (used.layers, dict(used.in_float)) == (1, {})
    plain = query_placement(path, Cpu(threads=1, level="disabled")).integers
    assert plain is not None and set(plain.in_float) == {"product"}
    assert query_placement(source, Cpu(threads=1)).integers is None, "no layer has integers"


def test_a_backend_that_cannot_be_asked_says_so(tmp_path: Path) -> None:
    found = query_placement(saved(tmp_path), Reference())
    assert "does not report which nodes" in found.problem and found.fix
    lost = query_placement(saved(tmp_path), Cpu(threads=1, config=("session.nothing=1",)))
    assert "session.nothing" in lost.problem


def test_a_name_that_is_no_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"no .*'abacus'"):
        inspect(saved(tmp_path), on="abacus")
    with pytest.raises(BadSettings, match="no input 'z'"):
        inspect(saved(tmp_path), shapes={"z": (1,)})


def test_what_two_providers_pass_each_other_is_copied(tmp_path: Path) -> None:
    """The answer is written here: no provider beside the CPU's takes part of a model anywhere."""
    text = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[n, 4] x) => (float[m, k] y) {
  [abs] a = Abs(x)
  [shape] s = Shape(a)
  [nonzero] i = NonZero(a)
  [cast] f = Cast <to = 1> (i)
  [reshape] y = Reshape(f, s)
}
"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    answer = {"OneProvider": ["abs", "cast", "reshape"], "CPUExecutionProvider": ["shape"]}
    apart = build_placement("one", ir.from_proto(model), answer)
    assert apart.copied == ()
    answer["CPUExecutionProvider"].append("nonzero")
    assert build_placement("one", ir.from_proto(model), answer).copied == ("a", "i")
