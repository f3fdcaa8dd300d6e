"""Toy models, calibration and comparison for the tests of quantizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from ortune.core.observer import Probe, Range
from ortune.core.step import Quantizer
from ortune.quantizers.common.grid import (
    BlockSpec,
    BlockSteps,
    PackedWeight,
    unpack_integers,
)

Arrays = Mapping[str, np.ndarray]
HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def model_of(text: str, weights: Arrays | None = None) -> ir.Model:
    """Parse ONNX text; `weights` become initializers of the names that the text leaves open.

    A text that begins with its graph is of opset 17.
    """
    proto = onnx.parser.parse_model(text if text.lstrip().startswith("<") else f"{HEAD} {text}")
    for name, array in (weights or {}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    proto = onnx.shape_inference.infer_shapes(proto, check_type=True)
    return ir.from_proto(proto)


SATURATES = "vnni" not in Path("/proc/cpuinfo").read_text()
"""Products of uint8 and int8 saturate here, which is the kernels' affair, not ours: `run` and
`unchecked` ask for exact ones. The runtime has none in bodies and none without optimization: tests
of these take weights of 7 bits."""
needs_vnni = pytest.mark.skipif(SATURATES, reason="int8 products saturate without VNNI")


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Return float32 normal numbers."""
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(np.float32)


def run(model: ir.Model, feeds: Arrays, level: str = "ENABLE_ALL") -> list[np.ndarray]:
    """Check a model and run it."""
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return unchecked(model, feeds, level)


def unchecked(model: ir.Model, feeds: Arrays, level: str) -> list[np.ndarray]:
    """Run a model whose value types may be incomplete."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if SATURATES and _QUANTIZING & set(ops(model)):
        options.add_session_config_entry("session.x64quantprecision", "1")
        model = _untie(model.clone())
    proto = ir.to_proto(model)
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(value) for value in session.run(None, dict(feeds))]


_QUANTIZING = {"QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM"}
"""What makes inputs of integer products: weights of 8 bits alone are computed with in float."""


def _untie(model: ir.Model) -> ir.Model:
    """Give each reader an int8 weight of its own: the runtime makes none exact that has two."""
    for node in list(model.graph.all_nodes()):
        if node.op_type == "DequantizeLinear" and node.inputs[0].const_value is not None:
            for number, (reader, place) in enumerate(list(node.outputs[0].uses())[1:]):
                made = ir.Node("", node.op_type, node.inputs, list(node.attributes.values()))
                made.outputs[0].name = f"{node.outputs[0].name}_{number}"
                node.graph.insert_before(node, made)
                reader.replace_input_with(place, made.outputs[0])
    for value in list(model.graph.initializers.values()):
        for number, (reader, place) in enumerate(list(value.uses())[1:]):
            if value.dtype == ir.DataType.INT8:
                name = f"{value.name}_{number}"
                copy = ir.Value(
                    name=name, shape=value.shape, type=value.type, const_value=value.const_value
                )
                model.graph.initializers[name] = copy
                reader.replace_input_with(place, copy)
    return model


def observe(
    model: ir.Model, probes: Sequence[Probe], samples: Sequence[Arrays]
) -> dict[str, Range]:
    """Answer probes as the calibration run does."""
    watched = model.clone()
    made = {v.name: v for node in watched.graph for v in node.outputs}
    known = {v.name for v in (*watched.graph.inputs, *watched.graph.outputs)}
    for tensor in dict.fromkeys(probe.tensor for probe in probes):
        if tensor not in known:
            watched.graph.outputs.append(made[tensor])
    names = [value.name for value in watched.graph.outputs]
    state = [(probe, probe.observer.start()) for probe in probes]
    for turn in range(max((probe.observer.passes for probe in probes), default=0)):
        for sample in samples:
            values = unchecked(watched, sample, "ENABLE_BASIC")
            seen = dict(zip(names, values, strict=True)) | dict(sample)
            for probe, watch in state:
                if turn < probe.observer.passes:
                    watch.update(turn, seen[probe.tensor])
    return {probe.key: watch.result() for probe, watch in state}


def quantize(model: ir.Model, step: Quantizer, samples: Sequence[Arrays] = ()) -> int:
    """Calibrate and apply a step in place."""
    probes = step.probes(model)
    return step.apply(model, observe(model, probes, samples))


def snr(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the signal-to-noise ratio in dB; minus infinity where either is not finite."""
    wide = expected.astype(np.float64)
    noise = ((wide - actual) ** 2).sum()
    found = float(10 * np.log10((wide**2).sum() / max(noise, 1e-30)))
    return -np.inf if np.isnan(found) else found


def optimized(model: ir.Model, folder: Path, level: str = "ENABLE_ALL") -> list[str]:
    """Return the operators that onnxruntime makes of a model."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


def ops(model: ir.Model) -> list[str]:
    """Return the operators of all graphs."""
    return [node.op_type for node in model.graph.all_nodes()]


def stored_bytes(spec: BlockSpec, rows: int, width: int) -> int:
    """Return the bytes of integers, float32 steps and zero points of `rows` x `width` weights."""
    count = spec.count_blocks(width)
    zeros = 0 if spec.symmetric else -(-count * spec.bits // 8)
    return rows * (count * (spec.block * spec.bits // 8 + 4) + zeros)


def dequantize(packed: PackedWeight) -> np.ndarray:
    """Return the float32 rows that the runtime multiplies with, shape [rows, width]."""
    steps = BlockSteps(
        packed.scale.astype(np.float32), packed.unpack_zero_points().astype(np.float32)
    )
    wide = steps.dequantize_blocks(
        unpack_integers(packed.integers, packed.spec.bits).astype(np.float32)
    )
    return np.asarray(wide.reshape(len(wide), -1)[:, : packed.width])
