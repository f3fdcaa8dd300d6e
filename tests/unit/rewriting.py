"""Apply a transform to a toy model and compare what runs before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser

from ortune.core.step import Transform
from ortune.graph.io import file
from ortune.graph.io.wellformed import check_model, describe_signature
from ortune.graph.ir.edit import take_notes

Arrays = Mapping[str, NDArray]
HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def model_of(text: str) -> ir.Model:
    """Load ONNX text the way a file is loaded; one that begins with its graph is of opset 17."""
    return loaded(parser.parse_model(text if text.lstrip().startswith("<") else f"{HEAD} {text}"))


def loaded(proto: onnx.ModelProto) -> ir.Model:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(proto.SerializeToString())
        return file.load(path)


def node(op: str, *inputs: str, to: str, **attributes: object) -> onnx.NodeProto:
    """Make a node of the name of its first output; `to` names all."""
    names = to.split()
    return helper.make_node(op, list(inputs), names, name=names[0], **attributes)


def network(
    nodes: list[onnx.NodeProto],
    x: list,
    held: dict[str, np.ndarray],
    *,
    opset: int = 17,
    outputs: tuple[str, ...] = ("y",),
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """Build a model of nodes that takes ``x``, with constants by name."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info(n, kind, None) for n in outputs],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def ops(model: ir.Model) -> dict[str, int]:
    """Operator -> number of nodes, in all graphs."""
    return dict(Counter(node.op_type for node in model.graph.all_nodes()))


def run(model: ir.Model, feeds: Arrays, *, disabled: bool = True) -> list[NDArray]:
    """Run on onnxruntime, as written or as it optimizes by itself."""
    level = ort.GraphOptimizationLevel
    options = _options(level.ORT_DISABLE_ALL if disabled else level.ORT_ENABLE_EXTENDED)
    with TemporaryDirectory() as folder:
        path = file.save(model, Path(folder) / "m.onnx")
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, dict(feeds)))


def optimized_nodes(model: ir.Model) -> int:
    """Count the nodes that onnxruntime is left with after its own fusions."""
    options = _options(ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED)
    with TemporaryDirectory() as folder:
        path = file.save(model, Path(folder) / "m.onnx")
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        found = file.load(options.optimized_model_filepath)
        return sum(1 for _ in found.graph.all_nodes())


def _options(level: ort.GraphOptimizationLevel) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = level
    return options


def transformed(
    source: str | ir.Model,
    step: Transform,
    feeds: Sequence[Arrays],
    *,
    tolerance: float = 1e-6,
    may_grow: bool = False,
) -> tuple[ir.Model, int]:
    """Apply a step, check all invariants, compare the outputs on every feed, and return both.

    As written and after onnxruntime's own fusions the outputs must agree within `tolerance` of
    the largest value, and unless it `may_grow` the runtime must not be left with more nodes.
    """
    before = source if isinstance(source, ir.Model) else model_of(source)
    after = before.clone()
    count = step.apply(after)
    check_model(after, describe_signature(before), step.name())
    for given in feeds:
        wanted = run(before, given)
        for disabled in (True, False):
            for one, two in zip(wanted, run(after, given, disabled=disabled), strict=True):
                assert one.shape == two.shape and one.dtype == two.dtype
                if one.dtype.kind == "f":
                    fine = one[np.isfinite(one)]
                    scale = float(np.abs(fine).max(initial=0)) or 1.0
                    np.testing.assert_allclose(two / scale, one / scale, rtol=0, atol=tolerance)
                else:
                    np.testing.assert_array_equal(two, one)
    assert may_grow or optimized_nodes(after) <= optimized_nodes(before)
    return after, count


def leaves(
    nodes: Mapping[str, int],
    source: str | ir.Model,
    step: Transform,
    feeds: Sequence[Arrays],
    *,
    tolerance: float = 1e-6,
    may_grow: bool = False,
) -> ir.Model:
    """Apply a step as `transformed` does; these operators must be left, so many of each."""
    model, _ = transformed(source, step, feeds, tolerance=tolerance, may_grow=may_grow)
    assert ops(model) == dict(nodes)
    return model


def becomes(
    nodes: Mapping[str, int],
    source: str | ir.Model,
    step: Transform,
    feeds: Sequence[Arrays],
    *,
    count: int = 1,
    tolerance: float = 1e-6,
    may_grow: bool = False,
) -> ir.Model:
    """Apply a step as `transformed` does; it must make so many edits and leave these operators."""
    model, edits = transformed(source, step, feeds, tolerance=tolerance, may_grow=may_grow)
    assert (edits, ops(model)) == (count, dict(nodes))
    return model


def left_alone(source: str, step: Transform, why: str = "") -> ir.Model:
    """Apply a step that must edit nothing, and say why where a reason is expected."""
    model = model_of(source)
    before = ops(model)
    assert step.apply(model) == 0 and ops(model) == before
    assert why in take_notes(model)
    return model


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
