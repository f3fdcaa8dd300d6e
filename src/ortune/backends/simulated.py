"""The answers of another instruction set, computed here.

onnxruntime writes the model as it would run it there; integer layers are then computed in NumPy,
with the saturation of CPUs without VNNI, and what lies between them by onnxruntime.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortune.backends.runtimes.onnxruntime import session as sessions
from ortune.core.backend import Backend
from ortune.core.hardware import saturation
from ortune.core.plugins import stored
from ortune.core.session import InProcess, Session, Tensors
from ortune.core.temporary_folder import open_temporary_folder
from ortune.graph.shapes.windows import slide_windows

Array: TypeAlias = NDArray[Any]
_DOMAINS = ("", "ai.onnx", "com.microsoft")
_NOT_SIMULATED = frozenset({"DynamicQuantizeLSTM", "QAttention"})
"""Operators that saturate too and are left to the runtime."""
_BLOCK = 1 << 23
"""Elements of activations that are unfolded at a time."""


@dataclass(frozen=True)
class Simulated(Backend):
    """What onnxruntime's CPU kernels answer on an x86 CPU without VNNI. Slow; never for timing.

    The model is rewritten by onnxruntime as it would be there, then run in pieces: integer layers
    in NumPy with pairs of 8-bit products that saturate in 16 bits, all else by onnxruntime. Layers
    inside If, Loop and Scan bodies, DynamicQuantizeLSTM and QAttention are not simulated.

    Attributes:
        threads: Threads of onnxruntime between the simulated layers.
        isa: The instruction set; AVX-512 without VNNI computes as AVX2 does.
        custom_ops: Libraries of custom operators, as for ``cpu``.
        report: File that receives what saturated, as JSON, when the session closes.
    """

    title: ClassVar[str] = "simulated"
    automatic: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("custom_ops",)
    lossy: ClassVar[bool] = True
    """Numbers are those of another machine."""

    isa: Literal["avx2"] = "avx2"
    report: str = ""
    custom_ops: Annotated[tuple[str, ...], stored.CODE] = ()

    def missing(self) -> str | None:
        return sessions.explain_missing_runtime()

    @contextmanager
    def open(self, path: Path, *, verbose: bool = False) -> Iterator[Session]:
        import onnx

        with open_temporary_folder() as folder:
            saved = Path(folder) / "model.onnx"
            options = sessions.make_session_options(
                self.threads,
                "extended",
                verbose=verbose,
                save_to=saved,
                custom_ops=self.custom_ops,
            )
            with sessions.open_session(path, options):
                pass
            session = _Simulation(onnx.load(saved), self.threads, self.custom_ops)
        yield session
        if self.report:
            text = json.dumps(session.describe_saturation())
            Path(self.report).write_text(text, encoding="utf-8")


@dataclass
class _Piece:
    """Neighbouring nodes and what runs them."""

    nodes: list[Any]  # NodeProtos in order
    layer: IntegerLayer | None = None  # in the session's place, of one integer node
    session: Any = None  # opened when the inputs are first known
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


class _Simulation(InProcess):
    """A model that runs piece by piece."""

    def __init__(self, model: Any, threads: int, custom_ops: tuple[str, ...]) -> None:
        from onnx import numpy_helper

        self._model, self._threads, self._custom_ops = model, threads, custom_ops
        graph = model.graph
        self._weights = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self._protos = {t.name: t for t in graph.initializer}
        self._pieces = list(_split_nodes(graph.node))
        later = {value.name for value in graph.output}
        for piece in reversed(self._pieces):
            output_names = {name for node in piece.nodes for name in node.output if name}
            piece.outputs = sorted(output_names & later)
            reads = {name for node in piece.nodes for name in _list_reads(node)}
            piece.inputs = sorted(reads - output_names - set(self._weights))
            later |= reads

    def run(self, feeds: Tensors) -> dict[str, Array]:
        values: dict[str, Array] = {**self._weights, **feeds}
        for piece in self._pieces:
            if piece.layer is not None:
                node = piece.nodes[0]
                inputs = [values[name] if name else None for name in node.input]
                values[node.output[0]] = piece.layer.run(inputs)
                continue
            if piece.session is None:
                piece.session = self._open_piece(piece, values)
            answers = piece.session.run(piece.outputs, {n: values[n] for n in piece.inputs})
            values.update(zip(piece.outputs, answers, strict=True))
        return {value.name: values[value.name] for value in self._model.graph.output}

    def describe_saturation(self) -> dict[str, Any]:
        """Return what saturated, layer by layer, in the order of the graph."""
        layers = [
            {"name": piece.layer.name, "op": piece.layer.op, **asdict(piece.layer.tally)}
            for piece in self._pieces
            if piece.layer is not None
        ]
        unsimulated = sum(1 for node in self._model.graph.node if node.op_type in _NOT_SIMULATED)
        return {"layers": layers, "left": unsimulated}

    def _open_piece(self, piece: _Piece, values: Mapping[str, Array]) -> Any:
        import onnxruntime as ort
        from onnx import ModelProto, helper

        inputs = []
        for name in piece.inputs:
            kind, dims = helper.np_dtype_to_tensor_dtype(values[name].dtype), values[name].ndim
            inputs.append(helper.make_tensor_value_info(name, kind, [None] * dims))
        outputs = [helper.make_empty_tensor_value_info(name) for name in piece.outputs]
        reads = {name for node in piece.nodes for name in _list_reads(node)}
        weights = [self._protos[name] for name in sorted(reads & set(self._protos))]
        model = ModelProto(
            ir_version=self._model.ir_version, opset_import=self._model.opset_import
        )
        model.functions.extend(self._model.functions)
        model.graph.CopyFrom(helper.make_graph(piece.nodes, "piece", inputs, outputs, weights))
        options = sessions.make_session_options(
            self._threads, "disabled", verbose=False, custom_ops=self._custom_ops
        )
        return ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )


def _split_nodes(nodes: Sequence[Any]) -> Iterator[_Piece]:
    """Cut a graph's nodes at each integer layer."""
    from onnx import helper

    waiting: list[Any] = []
    for node in nodes:
        if node.op_type not in _KERNELS or node.domain not in _DOMAINS:
            waiting.append(node)
            continue
        if waiting:
            yield _Piece(waiting)
            waiting = []
        values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        plain = {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}
        layer = IntegerLayer(node.name or node.output[0], node.op_type, plain)
        yield _Piece([node], layer)
    if waiting:
        yield _Piece(waiting)


def _list_reads(node: Any) -> Iterator[str]:
    """Return the names that a node reads, those that its bodies read from outside included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for body in [attribute.g, *attribute.graphs] if attribute.type in (5, 10) else []:
            inner = {v.name for v in (*body.input, *body.initializer)}
            inner |= {name for inner_node in body.node for name in inner_node.output}
            for inner_node in body.node:
                yield from (name for name in _list_reads(inner_node) if name not in inner)
            yield from (v.name for v in body.output if v.name not in inner)


@dataclass
class Tally:
    """What happened in one layer so far."""

    outputs: int = 0  # sums computed
    saturated: int = 0  # sums that saturation changed
    largest: float = 0.0  # largest change of a sum, as a share of the largest exact sum


@dataclass(frozen=True)
class IntegerLayer:
    """One integer node, named as in the model or as the runtime named what it fused."""

    name: str
    op: str
    attributes: Mapping[str, Any]
    tally: Tally = field(default_factory=Tally)

    def run(self, inputs: Sequence[Array | None]) -> Array:
        return _KERNELS[self.op](self, [*inputs, *[None] * 9])

    def multiply_integers(self, x: Array, weight: Array, zero_x: Any, zero_w: Any) -> Array:
        """Multiply [M, K] by [K, N] in integers, int32; saturated for U8 by S8."""
        wide = weight.astype(np.float64)
        total = np.rint(x.astype(np.float64) @ wide).astype(np.int64)
        if x.dtype == np.uint8 and weight.dtype == np.int8:
            over = saturation.compute_saturation_loss(x, weight, saturation.at_risk(weight))
            changed = int(np.count_nonzero(over))
            self.tally.outputs += over.size
            self.tally.saturated += changed
            if changed:
                top = max(1.0, float(np.abs(total).max()))
                self.tally.largest = max(self.tally.largest, float(np.abs(over).max()) / top)
            total += over
        column = np.asarray(0 if zero_w is None else zero_w, np.int64).reshape(-1)
        row = np.asarray(0 if zero_x is None else zero_x, np.int64).reshape(-1, 1)
        total -= row * weight.astype(np.int64).sum(axis=0)
        if column.any():
            total -= column * (x.astype(np.int64).sum(axis=1, keepdims=True) - row * x.shape[1])
        return total.astype(np.int32)


def _multiply_stacks(
    layer: IntegerLayer, x: Array, weight: Array, zero_x: Any, zero_w: Any
) -> Array:
    if weight.ndim == 2:
        sums = layer.multiply_integers(x.reshape(-1, x.shape[-1]), weight, zero_x, zero_w)
        return sums.reshape(*x.shape[:-1], weight.shape[1])
    stack = np.broadcast_shapes(x.shape[:-2], weight.shape[:-2])
    lhs = np.broadcast_to(x, (*stack, *x.shape[-2:])).reshape(-1, *x.shape[-2:])
    rhs = np.broadcast_to(weight, (*stack, *weight.shape[-2:])).reshape(-1, *weight.shape[-2:])
    pairs = zip(lhs, rhs, strict=True)
    products = [layer.multiply_integers(a, b, zero_x, zero_w) for a, b in pairs]
    return np.stack(products).reshape(*stack, x.shape[-2], weight.shape[-1])


def _requantize(total: Array, scale: Array, zero: Array) -> Array:
    limits = np.iinfo(zero.dtype)
    steps = np.rint(total.astype(np.float32) * scale.astype(np.float32))
    shifted = steps + np.float32(zero.reshape(-1)[0])
    return np.asarray(np.clip(shifted, limits.min, limits.max), zero.dtype)


def _compute_conv(layer: IntegerLayer, i: list[Any]) -> Array:
    x, weight, bias = i[0], i[3], i[8]
    zx, zw = (np.asarray(0 if zero is None else zero).reshape(-1) for zero in (i[2], i[5]))
    attributes, rank = layer.attributes, x.ndim - 2
    groups = int(attributes.get("group", 1))
    strides, pads, dilations = (
        attributes.get(name, ()) for name in ("strides", "pads", "dilations")
    )
    auto_pad = attributes.get("auto_pad", "NOTSET")
    view = slide_windows(x, weight.shape[2:], strides, pads, dilations, auto_pad, fill=int(zx[0]))
    assert view is not None
    out = view.shape[2 : 2 + rank]
    wide = weight.shape[1]
    group_sums = []
    depthwise = wide == 1 and groups == weight.shape[0] and groups > 1
    for group in range(groups):
        part = view[:, group * wide : (group + 1) * wide]
        # K is kernel row, kernel column, channel.
        order = (0, *range(2, 2 + 2 * rank), 1)
        rows = part.transpose(order)
        rows = rows.reshape(int(np.prod(rows.shape[: 1 + rank])), -1)
        first, last = (len(weight) * (group + n) // groups for n in (0, 1))
        matrix = saturation.kernel_matrix(weight[first:last])
        zero_w = zw[first:last] if zw.size == len(weight) else zw
        if depthwise:
            matrix = matrix.astype(np.int16)
        block = max(1, _BLOCK // max(1, rows.shape[1]))
        blocks = [rows[at : at + block] for at in range(0, len(rows), block)]
        sums = [
            layer.multiply_integers(np.ascontiguousarray(part), matrix, zx, zero_w)
            for part in blocks
        ]
        total = np.concatenate(sums).reshape(x.shape[0], *out, last - first)
        group_sums.append(np.moveaxis(total, -1, 1))
    every_sum = np.concatenate(group_sums, axis=1)
    spatial = (1,) * rank
    if bias is not None:
        every_sum = every_sum + bias.reshape(1, -1, *spatial)
    step = np.float32(i[1]) * np.asarray(i[4], np.float32).reshape(-1) / np.float32(i[6])
    return _requantize(every_sum, step.reshape(1, -1, *spatial), np.asarray(i[7]))


def _compute_qlinear_matmul(layer: IntegerLayer, i: list[Any]) -> Array:
    sums = _multiply_stacks(layer, i[0], i[3], i[2], i[5])
    step = np.float32(i[1]) * np.asarray(i[4], np.float32).reshape(-1) / np.float32(i[6])
    return _requantize(sums, step, np.asarray(i[7]))


def _compute_gemm(layer: IntegerLayer, i: list[Any]) -> Array:
    a = np.ascontiguousarray(i[0].T if layer.attributes.get("transA", 0) else i[0])
    b = np.ascontiguousarray(i[3].T if layer.attributes.get("transB", 0) else i[3])
    sums = layer.multiply_integers(a, b, i[2], i[5])
    if i[6] is not None:
        sums = sums + i[6]
    alpha = np.float32(layer.attributes.get("alpha", 1.0))
    step = alpha * np.float32(i[1]) * np.asarray(i[4], np.float32).reshape(-1)
    if i[7] is None:
        return np.asarray(sums.astype(np.float32) * step, np.float32)
    return _requantize(sums, step / np.float32(i[7]), np.asarray(i[8]))


def _compute_matmul_integer(layer: IntegerLayer, i: list[Any]) -> Array:
    return _multiply_stacks(layer, i[0], i[1], i[2], i[3])


def _compute_matmul_to_float(layer: IntegerLayer, i: list[Any]) -> Array:
    sums = _multiply_stacks(layer, i[0], i[1], i[4], i[5]).astype(np.float32)
    scaled_sums = sums * (np.float32(i[2]) * np.asarray(i[3], np.float32).reshape(-1))
    return np.asarray(scaled_sums if i[6] is None else scaled_sums + i[6], np.float32)


def _compute_dynamic_matmul(layer: IntegerLayer, i: list[Any]) -> Array:
    x = i[0]
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    step = np.float32((np.float32(high) - np.float32(low)) / np.float32(255)) or np.float32(1)
    zero = np.float32(np.clip(np.rint(np.float32(0 - low) / step), 0, 255))
    quantized = np.clip(np.rint(x / step) + zero, 0, 255).astype(np.uint8)
    parts = [quantized, i[1], step, i[2], zero.astype(np.uint8), i[3], i[4]]
    return _compute_matmul_to_float(layer, [*parts, None, None])


_KERNELS: Mapping[str, Callable[[IntegerLayer, list[Any]], Array]] = {
    "QLinearConv": _compute_conv,
    "QLinearMatMul": _compute_qlinear_matmul,
    "QGemm": _compute_gemm,
    "MatMulInteger": _compute_matmul_integer,
    "MatMulIntegerToFloat": _compute_matmul_to_float,
    "DynamicQuantizeMatMul": _compute_dynamic_matmul,
}
