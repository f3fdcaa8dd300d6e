"""bfloat16: valid files, and an up-to-date list of what the CPU provider lacks."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tests.true_half import rounded
from tests.unit.quantizing import model_of, normal, ops, run, snr

from ortune.graph.ir import edit
from ortune.quantizers.bf16 import CPU_KERNELS, Bf16
from ortune.transforms.raise_opset import RaiseOpset

CNN = """<ir_version: 10, opset_import: ["": 22]> g (float[1,2,6,6] x) => (float[1,4] y) {
  a = Conv<kernel_shape = [3,3]>(x, w, b)
  r = Relu(a)
  m = GlobalAveragePool(r)
  y = Flatten(m)
}"""


def network() -> ir.Model:
    return model_of(CNN, {"w": normal(4, 2, 3, 3), "b": normal(4, seed=1)})


def test_everything_becomes_bfloat16_between_two_casts() -> None:
    model = network()
    before = run(model, {"x": normal(1, 2, 6, 6)})[0]
    Bf16().apply(model, {})
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert ops(model) == ["Cast", "Conv", "Relu", "GlobalAveragePool", "Flatten", "Cast"]
    assert {v.dtype for v in model.graph.initializers.values()} == {ir.DataType.BFLOAT16}
    told = edit.take_notes(model)
    assert "CPU provider has no bfloat16 Conv, GlobalAveragePool, Relu" in told
    after = run(rounded(model), {"x": normal(1, 2, 6, 6)})[0]
    assert 30 < snr(before, after) < 60


def test_the_reference_computes_it() -> None:
    text = """<ir_version: 10, opset_import: ["": 22]> g (float[n,8] x) => (float[n,8] y) {
      a = Add(x, c) y = Neg(a)
    }"""
    model = model_of(text, {"c": normal(8)})
    feed = {"x": normal(3, 8)}
    before = run(model, feed)[0]
    Bf16().apply(model, {})
    after = ReferenceEvaluator(ir.to_proto(model)).run(None, feed)[0]
    assert snr(before, np.asarray(after)) > 35


def test_convolutions_need_opset_22() -> None:
    text = CNN.replace(": 22]", ": 17]")
    old = model_of(text, {"w": normal(4, 2, 3, 3), "b": normal(4, seed=1)})
    Bf16().apply(old, {})
    kept = next(node for node in old.graph if node.op_type == "Conv")
    assert kept.outputs[0].dtype == ir.DataType.FLOAT
    model = model_of(text, {"w": normal(4, 2, 3, 3), "b": normal(4, seed=1)})
    RaiseOpset(to=Bf16.needs_opset).apply(model)
    Bf16().apply(model, {})
    made = next(node for node in model.graph if node.op_type == "Conv")
    assert made.outputs[0].dtype == ir.DataType.BFLOAT16


def loads(node: onnx.NodeProto, shapes: list[tuple[int, ...] | np.ndarray]) -> bool:
    """Say whether onnxruntime's CPU provider has a bfloat16 kernel for a node."""
    inputs, held = [], []
    for name, shape in zip(node.input, shapes, strict=True):
        if isinstance(shape, np.ndarray):
            held.append(numpy_helper.from_array(shape, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, TensorProto.BFLOAT16, shape))
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "one", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error):
            return False
        raise
    return True


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


V = (4, 4)
X = (1, 2, 4, 4)
PROBES: dict[str, tuple[list[tuple[int, ...] | np.ndarray], dict[str, object]]] = {
    "Add": ([V, V], {}),
    "AveragePool": ([X], {"kernel_shape": [2, 2]}),
    "Cast": ([V], {"to": 1}),
    "Concat": ([V, V], {"axis": 0}),
    "Conv": ([X, (2, 2, 3, 3)], {}),
    "Erf": ([V], {}),
    "Expand": ([V, ints(2, 4, 4)], {}),
    "Flatten": ([V], {}),
    "Gather": ([V, ints(0)], {}),
    "Gelu": ([V], {}),
    "Gemm": ([V, V], {}),
    "Identity": ([V], {}),
    "IsInf": ([V], {}),
    "IsNaN": ([V], {}),
    "LayerNormalization": ([V, (4,)], {}),
    "MatMul": ([V, V], {}),
    "MaxPool": ([X], {"kernel_shape": [2, 2]}),
    "Mul": ([V, V], {}),
    "ReduceMean": ([V, ints(1)], {}),
    "Relu": ([V], {}),
    "Reshape": ([V, ints(16)], {}),
    "Shape": ([V], {}),
    "Sigmoid": ([V], {}),
    "Sign": ([V], {}),
    "Size": ([V], {}),
    "Slice": ([V, ints(0), ints(2)], {}),
    "Softmax": ([V], {}),
    "Squeeze": ([(1, 4), ints(0)], {}),
    "Sub": ([V, V], {}),
    "Tanh": ([V], {}),
    "Transpose": ([V], {}),
    "Unsqueeze": ([V, ints(0)], {}),
}


@pytest.mark.parametrize("op", PROBES)
def test_the_list_of_kernels_is_that_of_the_installed_runtime(op: str) -> None:
    shapes, attributes = PROBES[op]
    node = helper.make_node(op, [f"i{k}" for k in range(len(shapes))], ["o"], **attributes)
    assert loads(node, shapes) == (op in CPU_KERNELS)
