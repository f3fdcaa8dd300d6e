"""From executed nodes back to source nodes, through what the runtime really does to a graph."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ortune.analysis.profiling.profile import load_labelled_model
from ortune.backends.runtimes.onnxruntime import trace
from ortune.core.session import Executed, Recorded
from ortune.graph.analysis.dataflow import Origin, divide_into_regions
from ortune.graph.io import names
from ortune.graph.ir import edit
from ortune.graph.mapping.nodes import ADDED, Lineage, trace_lineage

HEAD = '<ir_version: 9, opset_import: ["": 17]>'
WEIGHTED = """
m (float[1,16,8,8] x) => (float[1,16,8,8] y)
<float[16,16,1,1] w1, float[16,16,1,1] w2, float[16] s, float[16] b, float[16] mean, float[16] var>
{
  c1 = Conv(x, w1)
  n1 = BatchNormalization(c1, s, b, mean, var)
  r1 = Relu(n1)
  c2 = Conv(r1, w2)
  sum = Add(c2, r1)
  y = Relu(sum)
}
"""
ATTENTION = """
m (float[1,8,16] x) => (float[1,8,16] y)
<float[16,16] wq, float[16,16] wk, float[16,16] wv, float[16,16] wo, float[16] g, float[16] bias>
{
  mean = ReduceMean<axes = [-1]>(x)
  d = Sub(x, mean)
  two = Constant<value = float {2.0}>()
  sq = Pow(d, two)
  var = ReduceMean<axes = [-1]>(sq)
  eps = Constant<value = float {0.00001}>()
  vare = Add(var, eps)
  sd = Sqrt(vare)
  norm = Div(d, sd)
  scaled = Mul(norm, g)
  ln = Add(scaled, bias)
  q = MatMul(ln, wq)
  k = MatMul(ln, wk)
  v = MatMul(ln, wv)
  kt = Transpose<perm = [0, 2, 1]>(k)
  s = MatMul(q, kt)
  p = Softmax<axis = -1>(s)
  o = MatMul(p, v)
  h = MatMul(o, wo)
  root = Constant<value = float {1.41421356}>()
  half = Constant<value = float {0.5}>()
  one = Constant<value = float {1.0}>()
  e0 = Div(h, root)
  e1 = Erf(e0)
  e2 = Add(e1, one)
  e3 = Mul(h, e2)
  gelu = Mul(e3, half)
  y = Add(gelu, x)
}
"""
QUANTIZED = """
m (float[1,16,8,8] x) => (float[1,16,8,8] y)
<int8[16,16,1,1] w, float sx = {0.05}, uint8 zx = {0}, float sw = {0.02}, int8 zw = {0}>
{
  xq = QuantizeLinear(x, sx, zx)
  xd = DequantizeLinear(xq, sx, zx)
  wd = DequantizeLinear(w, sw, zw)
  c = Conv(xd, wd)
  r = Relu(c)
  rq = QuantizeLinear(r, sx, zx)
  rd = DequantizeLinear(rq, sx, zx)
  c2 = Conv(rd, wd)
  cq = QuantizeLinear(c2, sx, zx)
  y = DequantizeLinear(cq, sx, zx)
}
"""
BODIES = """
m (float[4,4] x, bool go) => (float[4,4] y)
<float[4,4] w>
{
  z = MatMul(x, w)
  a = If (go) <
    then_branch = t () => (float[4,4] ty) { tm = MatMul(z, w) ty = Relu(tm) },
    else_branch = e () => (float[4,4] ey) { ey = Neg(z) }
  >
  n = Constant<value = int64 {3}>()
  yes = Constant<value = bool {1}>()
  y = Loop (n, yes, a) <
    body = l (int64 i, bool c, float[4,4] v) => (bool co, float[4,4] vo) {
      co = Identity(c) vm = MatMul(v, w) vo = Tanh(vm)
    }
  >
}
"""
TWICE = """
m (float[N,4] x) => (float[N,4] y)
{
  s1 = Shape(x)
  s2 = Shape(x)
  a = Reshape(x, s1)
  e = Exp(a)
  b = Reshape(e, s2)
  one = Constant<value = float {1.0}>()
  k = Add(one, one)
  y = Mul(b, k)
}
"""
MODELS = {
    "convolutions": WEIGHTED,
    "attention": ATTENTION,
    "quantized": QUANTIZED,
    "bodies": BODIES,
    "twice": TWICE,
}


def model(text: str) -> onnx.ModelProto:
    """Parse a model; what is declared without a value becomes a weight."""
    made = onnx.parser.parse_model(f"{HEAD} {text}")
    rng = np.random.default_rng(0)
    for one in made.graph.value_info:
        kind = one.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = tuple(dim.dim_value for dim in kind.shape.dim)
        values = (rng.random(shape) * 4 + 0.1).astype(dtype)
        made.graph.initializer.append(onnx.numpy_helper.from_array(values, one.name))
    del made.graph.value_info[:]
    return made


def traced(proto: onnx.ModelProto, folder: Path, level: str) -> tuple[Origin, Recorded, Lineage]:
    """Let the runtime rewrite a model, and map its graph back."""
    onnx.save(proto, folder / "m.onnx")
    source, loaded, _ = load_labelled_model(folder / "m.onnx", folder)
    made = ort.SessionOptions()
    made.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    made.optimized_model_filepath = str(folder / "executed.onnx")
    made.log_severity_level = 4
    ort.InferenceSession(str(loaded), made, providers=["CPUExecutionProvider"])
    graph = trace.read_executed_graph(folder / "executed.onnx")
    recorded = Recorded(graph.nodes, 1, 1.0, 1.0, constants=tuple(graph.constants))
    return Origin(source), recorded, trace_lineage(source, recorded)


def by_operator(recorded: Recorded, found: Lineage, op_type: str) -> list[tuple[str, ...]]:
    pairs = zip(recorded.nodes, found.sources, strict=True)
    return [sources for node, sources in pairs if node.op_type == op_type]


def operators(origin: Origin, sources: tuple[str, ...]) -> list[str]:
    return [origin.nodes[name].op_type for name in sources]


@pytest.mark.parametrize("level", ["ORT_ENABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_DISABLE_ALL"])
@pytest.mark.parametrize("name", MODELS)
def test_every_kernel_names_sources_and_every_source_is_accounted_for(
    name: str, level: str, tmp_path: Path
) -> None:
    origin, recorded, found = traced(model(MODELS[name]), tmp_path, level)
    for node, sources in zip(recorded.nodes, found.sources, strict=True):
        assert sources or node.op_type in ADDED, node
    claimed = {source for sources in found.sources for source in sources}
    assert claimed | set(found.folded) == set(origin.nodes)
    assert not claimed & set(found.folded)
    assert not found.guessed


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason="onnxruntime has blocked layouts on x86 alone",
)
def test_convolutions_take_what_is_fused_behind_them(tmp_path: Path) -> None:
    origin, recorded, found = traced(model(WEIGHTED), tmp_path, "ORT_ENABLE_ALL")
    assert [operators(origin, s) for s in by_operator(recorded, found, "Conv")] == [
        ["Conv", "BatchNormalization", "Relu"],
        ["Conv", "Add", "Relu"],
    ]
    reorders = [
        s for n, s in zip(recorded.nodes, found.sources, strict=True) if "Reorder" in n.op_type
    ]
    assert reorders and not any(reorders)


def test_spelled_out_layers_come_back_whole(tmp_path: Path) -> None:
    origin, recorded, found = traced(model(ATTENTION), tmp_path, "ORT_ENABLE_ALL")
    (norm,) = by_operator(recorded, found, "LayerNormalization")
    assert operators(origin, norm) == (
        ["ReduceMean", "Sub", "Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul", "Add"]
    )
    (gelu,) = by_operator(recorded, found, "Gelu")
    assert operators(origin, gelu) == ["Div", "Erf", "Add", "Mul", "Mul"]
    assert [operators(origin, s) for s in by_operator(recorded, found, "FusedMatMul")] == [
        ["Transpose", "MatMul"]
    ]


def test_quantized_kernels_take_their_pairs(tmp_path: Path) -> None:
    origin, recorded, found = traced(model(QUANTIZED), tmp_path, "ORT_ENABLE_EXTENDED")
    convolutions = by_operator(recorded, found, "QLinearConv")
    assert [operators(origin, sources) for sources in convolutions] == [
        ["DequantizeLinear", "Conv", "Relu", "QuantizeLinear"],
        ["DequantizeLinear", "Conv", "QuantizeLinear"],
    ]
    assert [origin.outputs[name] for name in found.folded] == [("wd",)]


def test_bodies_are_mapped_apart_from_what_holds_them(tmp_path: Path) -> None:
    origin, recorded, found = traced(model(BODIES), tmp_path, "ORT_ENABLE_ALL")
    assert [operators(origin, s) for s in by_operator(recorded, found, "If")] == [["If"]]
    assert [operators(origin, s) for s in by_operator(recorded, found, "Loop")] == [["Loop"]]
    assert len(by_operator(recorded, found, "Tanh")) == 1
    held = {node.op_type: node.parent for node in recorded.nodes}
    loop = next(node.name for node in recorded.nodes if node.op_type == "Loop")
    assert held["Tanh"] == loop


def test_equal_computations_are_one_kernel_and_constants_are_folded(tmp_path: Path) -> None:
    origin, _recorded, found = traced(model(TWICE), tmp_path, "ORT_ENABLE_ALL")
    shapes = [name for name, node in origin.nodes.items() if node.op_type == "Shape"]
    assert [s for s in found.sources if set(shapes) & set(s)] != []
    folded = {origin.outputs[name][0] for name in found.folded}
    assert {"one", "k"} <= folded


def test_functions_are_inlined_under_names_of_their_own(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["": 17, "own": 1]>
    m (float[4,4] x) => (float[4,4] y) { a = own.twice(x) y = own.twice(a) }
    <domain: "own", opset_import: ["": 17]>
    twice (v) => (r) { t = Add(v, v) r = Tanh(t) }
    """)
    origin, _recorded, found = traced(proto, tmp_path, "ORT_DISABLE_ALL")
    assert [node.op_type for node in origin.nodes.values()] == ["Add", "Tanh", "Add", "Tanh"]
    assert [len(sources) for sources in found.sources] == [1, 1, 1, 1]
    assert len(set(found.sources)) == 4


@pytest.mark.parametrize("text", [TWICE, BODIES])
def test_a_copy_is_run_only_where_names_are_missing(tmp_path: Path, text: str) -> None:
    proto = model(text)
    onnx.save(proto, tmp_path / "unnamed.onnx")
    _, loaded, said = load_labelled_model(tmp_path / "unnamed.onnx", tmp_path)
    assert loaded != tmp_path / "unnamed.onnx" and loaded.name == "unnamed.onnx"
    assert said
    named(proto.graph, "n")
    onnx.save(proto, tmp_path / "named.onnx")
    _, loaded, said = load_labelled_model(tmp_path / "named.onnx", tmp_path)
    assert loaded == tmp_path / "named.onnx"
    assert not said


def named(graph: onnx.GraphProto, prefix: str) -> None:
    for index, node in enumerate(graph.node):
        node.name = f"{prefix}{index}"
        for attribute in node.attribute:
            named(attribute.g, f"{node.name}_{attribute.name}_")


def test_what_the_runtime_says_itself_is_taken() -> None:
    source = edit.ir.serde.deserialize_model(model(WEIGHTED))
    names.make_names_unique(source)
    first, second, *_ = [node.name for node in source.graph]
    one = Executed("layer", "Convolution", known=(str(first), str(second), "not of the model"))
    found = trace_lineage(source, Recorded((one,), 1, 1.0, 1.0))
    assert {first, second} <= set(found.sources[0])


def test_kernels_that_nothing_tells_of_take_what_is_next_and_say_so() -> None:
    text = "m (float[4] x) => (float[4] y) { a = Neg(x) b = Abs(a) y = Ceil(b) }"
    source = edit.ir.serde.deserialize_model(model(text))
    names.make_names_unique(source)
    first, second, third = (str(node.name) for node in source.graph)
    nodes = (
        Executed("known", "Neg", reads=("x",), writes=("a",)),
        Executed("one", "Mystery", reads=("a",), writes=("p",)),
        Executed("two", "Mystery", reads=("p",), writes=("q",)),
    )
    found = trace_lineage(source, Recorded(nodes, 1, 1.0, 1.0))
    assert found.sources == ((first,), (second,), (third,))
    assert found.followed == ("one", "two")


def test_repeated_layers_are_one_region() -> None:
    proto = onnx.helper.make_model(chain(6))
    source = edit.ir.serde.deserialize_model(proto)
    names.make_names_unique(source)
    found = divide_into_regions(Origin(source))
    assert [(one.name, len(one.members)) for one in found.all] == [
        ("enc.layer.*.query", 6),
        ("enc.layer.*.key", 6),
        ("enc.layer.*.output", 6),
    ]
    assert set(found.of) == {str(node.name) for node in source.graph}


def test_an_exporters_word_for_no_module_is_no_region() -> None:
    proto = onnx.helper.make_model(chain(6))
    for node in proto.graph.node[:2]:
        scopes = "['', '_empty_nn_module_stack_from_metadata_hook', 'node']"
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    source = edit.ir.serde.deserialize_model(proto)
    names.make_names_unique(source)
    assert divide_into_regions(Origin(source)).all[0].name == "enc.layer.*.query"


def chain(layers: int) -> onnx.GraphProto:
    """A chain of products whose weights bear scopes."""
    nodes, held, value = [], [], "x"
    for index in range(layers):
        for part in ("query", "key", "output"):
            weight = f"enc.layer.{index}.{part}.weight"
            held.append(onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), weight))
            nodes.append(onnx.helper.make_node("MatMul", [value, weight], [f"v{index}{part}"]))
            value = f"v{index}{part}"
    typed = (onnx.TensorProto.FLOAT, [4, 4])
    ins = [onnx.helper.make_tensor_value_info("x", *typed)]
    outs = [onnx.helper.make_tensor_value_info(value, *typed)]
    return onnx.helper.make_graph(nodes, "m", ins, outs, held)


def test_a_model_without_scopes_is_cut_into_blocks() -> None:
    body = "\n".join(f"v{i + 1} = Relu(v{i})" for i in range(50))
    text = f"m (float[4] v0) => (float[4] v50) {{ {body} }}"
    source = edit.ir.serde.deserialize_model(model(text))
    names.make_names_unique(source)
    found = divide_into_regions(Origin(source))
    assert 5 <= len(found.all) <= 12
    assert sum(one.nodes for one in found.all) == 50
    assert found.all[0].name == "block 1: Relu x5"
