"""The rules about OpenVINO: what its graph computes in float is counted, row by row."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from tests.unit.quantizers.common.qdq.rule_toys import PAIR, TOYS, Toy, integers

from ortune.quantizers.common.qdq.dequantize import bound_joined, write_lengths
from ortune.quantizers.common.qdq.runtime_rules import LAYERS, RULES, Rule, Treatment

ov = pytest.importorskip("openvino")

ENDS = 2
"""The quantization of the input and the widening of the output are in float."""


def rows(*gives: Treatment) -> list[Any]:
    found = [r for r in RULES if r.provider == "openvino" and r.treatment in gives]
    return [pytest.param(r, id=f"{r.op} {r.case}".strip()) for r in found]


@pytest.mark.parametrize("row", rows(Treatment.INTEGER, Treatment.MOVES))
def test_runs_in_integers(row: Rule) -> None:
    inner = 1 if "itself in float" in row.source else 0
    assert len(in_float(row)) <= ENDS + inner


@pytest.mark.parametrize("row", rows(Treatment.JOINED))
def test_runs_in_one_kernel_that_reads_and_writes_integers(row: Rule) -> None:
    assert {kind for kind in in_float(row) if kind != "Reorder"} == {"Subgraph"}


@pytest.mark.parametrize("row", rows(Treatment.FLOAT))
def test_runs_in_float(row: Rule) -> None:
    assert len(in_float(row)) > ENDS


@pytest.mark.parametrize("row", rows(Treatment.BOUNDED))
@pytest.mark.parametrize(
    ("axis", "zero", "scale"),
    [
        pytest.param(3, np.uint8(19), 0.02, id="zero point, along the width"),
        pytest.param(3, np.int8(0), 0.002, id="small steps, along the width"),
        pytest.param(1, np.int8(0), 0.002, id="small steps, channels"),
    ],
)
def test_runs_in_integers_behind_a_bound_alone(
    row: Rule, axis: int, zero: np.generic, scale: float
) -> None:
    assert row.op == "Concat"
    plain = behind_concat(axis, zero, np.float32(scale))
    model = ir.from_proto(plain)
    assert bound_joined(model) == 1
    assert [find_kinds(proto)[-1] for proto in (plain, ir.to_proto(model))] == ["f32", "I8"]


@pytest.mark.parametrize("row", rows(Treatment.UNREAD))
def test_layers_in_integers_are_right_where_no_length_is_read(row: Rule) -> None:
    assert (row.op, row.case) == ("Shape", "of one length")
    plain = with_state()
    feed = {"i": np.random.default_rng(1).normal(0, 1, (2, 4, 8, 8)).astype(np.float32)}
    session = ort.InferenceSession(plain.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, feed)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(plain))
    assert write_lengths(model) == 1
    errors = [np.abs(compile_model(proto)(feed)[0] - wanted).max() for proto in (
        plain, ir.to_proto(model)
    )]  # fmt: skip
    assert errors[0] > 0.1 > 1e-3 > errors[1]


@pytest.mark.parametrize("row", rows(Treatment.CENTRED))
def test_two_activations_are_multiplied_in_integers_with_zero_point_0_alone(row: Rule) -> None:
    assert row.op == "MatMul"
    kinds = []
    for zero in (np.int8(0), np.uint8(3)):
        held = {"zero": zero, "scale": np.float32(0.02)}
        turned = "t = Transpose<perm = [0, 1, 3, 2]>(i)"
        lines = [PAIR.format("i", "scale"), turned, PAIR.format("t", "scale")]
        proto = _proto([*lines, "z = MatMul(i_r, t_r)"], held)
        kinds += find_kinds(proto, "MatMul")
    assert [kind.lower() for kind in kinds] == ["i8", "f32"]


def with_state() -> onnx.ModelProto:
    """Build convolutions around a MaxPool, and a recurrent step with a state of zeros."""
    rng = np.random.default_rng(0)
    held = {f"front{name[1:]}": array for name, array in integers(4, 4, 1, 1, axis=0).items()}
    held |= {
        "zero": np.uint8(0), "scale": np.float32(0.02),
        "bias": rng.normal(0, 1, 4).astype(np.float32),
        "to": np.array([4, -1, 16], np.int64), "first": np.int64(0), "width": np.array([8]),
        "wi": rng.normal(0, 0.3, (16, 8)).astype(np.float32),
        "wh": rng.normal(0, 0.3, (8, 8)).astype(np.float32),
    }  # fmt: skip
    lines = [
        PAIR.format("i", "scale"),
        layer("x", "i_r", "front", "Conv", 0).replace("x_w)", "x_w, bias)") + " a = Relu(x)",
        PAIR.format("a", "scale"),
        "p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a_r)",
        PAIR.format("p", "scale"),
        layer("v", "p_r", "front", "Conv", 0),
        "t = Transpose<perm = [3, 0, 1, 2]>(v) s = Reshape(t, to)",
        "length = Shape<start = 1, end = 2>(s) shape = Concat<axis = 0>(length, width)",
        "state = ConstantOfShape(shape) h = MatMul(state, wh)",
        "step = Gather<axis = 0>(s, first) g = MatMul(step, wi) sum = Add(g, h) z = Tanh(sum)",
    ]
    proto = _proto(lines, held)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    return proto


def behind_concat(axis: int, zero: np.generic, scale: np.float32) -> onnx.ModelProto:
    """Build a convolution in front of a Concat, a pair behind it, and an integer convolution."""
    width = 64 * (2 if axis == 1 else 1)
    rng = np.random.default_rng(0)
    held = {
        "first": rng.normal(0, 0.1, (64, 4, 1, 1)).astype(np.float32),
        "w": rng.integers(-127, 128, (64, width, 3, 3)).astype(np.int8),
        "ws": np.full(64, 0.001, np.float32), "wz": np.zeros(64, np.int8),
        "zero": zero, "scale": scale,
    }  # fmt: skip
    joined = f"c = Conv(i, first) s = Sigmoid(c) a = Mul(c, s) x = Concat<axis = {axis}>(a, a)"
    return _proto([joined, PAIR.format("x", "scale"), layer("z", "x_r", "w", "Conv", 0)], held)


def find_kinds(proto: onnx.ModelProto, node_type: str = "Convolution") -> list[str]:
    """Return in what each node of a type is computed, by the names of OpenVINO's kernels."""
    compiled = compile_model(proto)
    request = compiled.create_infer_request()
    request.infer([np.ones((1, 4, 8, 8), np.float32)])
    return [
        info.exec_type.rpartition("_")[2]
        for info in request.get_profiling_info()
        if info.node_type == node_type
    ]


def compile_model(proto: onnx.ModelProto) -> Any:
    """Compile for the CPU, in float32 where there are no integers."""
    model = ov.Core().read_model(proto.SerializeToString())
    settings = {"INFERENCE_PRECISION_HINT": "f32", "PERF_COUNT": True}
    return ov.Core().compile_model(model, "CPU", settings)


def in_float(row: Rule) -> list[str]:
    """Return the kinds of nodes that OpenVINO runs in float for a row's toy."""
    toy = TOYS[row.op, row.case]
    proto = toy.proto() if row.op in LAYERS else between(toy)
    infos = [node.get_rt_info() for node in compile_model(proto).get_runtime_model().get_ops()]
    return [
        info["layerType"].astype(str)
        for info in infos
        if info["layerType"].astype(str) not in ("Const", "Input", "Output")
        and info["runtimePrecision"].astype(str) == "f32"
    ]


def between(toy: Toy) -> onnx.ModelProto:
    """Put a toy's operator between two layers: alone OpenVINO would not compute it in integers."""
    front = integers(4, 4, 1, 1, axis=0)
    held = {"scale": np.float32(0.02), "other": np.float32(0.05), "zero": np.uint8(0)}
    held |= {f"front{name[1:]}": array for name, array in front.items()} | dict(toy.weights or {})
    lines = [PAIR.format("i", "scale"), layer("x", "i_r", "front", "Conv", 0)]
    lines.append(PAIR.format("x", "scale"))
    if "v_r" in toy.line:
        lines += [layer("v", "i_r", "front", "Conv", 0), PAIR.format("v", "other")]
    shape = _shape(lines, toy, held)
    square = len(shape) == 4
    back = integers(4, shape[1], 1, 1, axis=0) if square else integers(shape[-1], 4, axis=1)
    held |= {f"back{name[1:]}": array for name, array in back.items()}
    last = layer("z", "y_r", "back", "Conv" if square else "MatMul", 0 if square else 1)
    return _proto([*lines, toy.line, PAIR.format("y", toy.out), last], held)


def layer(result: str, x: str, name: str, op: str, axis: int) -> str:
    """Return the lines of a layer with integer weights."""
    wide = f"{result}_w = DequantizeLinear<axis = {axis}>({name}, {name}s, {name}z)"
    return f"{wide} {result} = {op}({x}, {result}_w)"


def _shape(lines: list[str], toy: Toy, held: dict[str, Any]) -> list[int]:
    proto = onnx.shape_inference.infer_shapes(_proto([*lines, toy.line, "z = Identity(y)"], held))
    value = next(value for value in proto.graph.value_info if value.name == "y")
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _proto(lines: list[str], held: dict[str, Any]) -> onnx.ModelProto:
    text = f"""<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[1,4,8,8] i) => (float z) {{ {" ".join(lines)} }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    for name, array in held.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return proto
