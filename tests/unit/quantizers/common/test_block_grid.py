"""Block grids: what the kernels compute from packed weights, and how methods compare."""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.quantizing import dequantize, normal, snr, stored_bytes, unchecked

from ortune.core.errors import BadData, BadSettings
from ortune.quantizers.common.grid import (
    BlockSpec,
    PackedWeight,
    compute_block_steps,
    pack_integers,
    split_into_blocks,
    unpack_integers,
)
from ortune.quantizers.common.weights.blockwise import (
    compute_order,
    pack_rows,
    refine_steps,
    round_rows,
)
from ortune.quantizers.common.weights.write import Rows

SPECS = st.builds(
    BlockSpec, st.sampled_from([4, 8]), st.sampled_from([16, 32, 64, 128, 256]), st.booleans()
)


def packed(rows: np.ndarray, spec: BlockSpec, method: str = "rtn", second=None) -> PackedWeight:  # type: ignore[no-untyped-def]
    """Pack rows as the quantizers do."""
    order = None if second is None else compute_order(second, 0.01, act_order=True)
    value = ir.val("w", const_value=ir.tensor(rows))
    ir.Graph([], [], nodes=[], initializers=[value], name="g")
    return pack_rows(Rows(value, turned=False), spec, method, order)  # type: ignore[arg-type]


def kernel(x: np.ndarray, held: PackedWeight) -> np.ndarray:
    """Multiply by onnxruntime's MatMulNBits, activations in float."""
    names = ["x", "b", "s", *(["z"] if held.zero is not None else [])]
    arrays = [held.integers, held.scale, *([held.zero] if held.zero is not None else [])]
    inputs = [ir.val(name) for name in names]
    inputs[0].type, inputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(x.shape)
    for value, array in zip(inputs[1:], arrays, strict=True):
        value.const_value = ir.tensor(array, name=value.name)
    attributes = {
        "K": held.width,
        "N": len(held.integers),
        "bits": held.spec.bits,
        "block_size": held.spec.block,
        "accuracy_level": 0,
    }
    node = ir.node("MatMulNBits", inputs, attributes, domain="com.microsoft")
    made = node.outputs[0]
    made.name, made.type = "y", ir.TensorType(ir.DataType.FLOAT)
    opsets = {"": 17, "com.microsoft": 1}
    graph = ir.Graph(
        inputs[:1], [made], nodes=[node], initializers=inputs[1:], opset_imports=opsets, name="g"
    )
    return unchecked(ir.Model(graph, ir_version=10), {"x": x}, "ENABLE_BASIC")[0]


@settings(max_examples=40, deadline=None)
@given(SPECS, st.integers(1, 40), st.integers(1, 300), st.integers(0, 99))
def test_what_is_packed_is_what_the_kernel_multiplies_with(
    spec: BlockSpec, rows: int, width: int, seed: int
) -> None:
    held = packed(normal(rows, width, seed=seed), spec)
    x = normal(3, width, seed=seed + 1)
    assert snr(x @ dequantize(held).T, kernel(x, held)) > 90
    parts = [part for part in (held.integers, held.scale, held.zero) if part is not None]
    assert sum(part.nbytes for part in parts) == stored_bytes(spec, rows, width)


@settings(max_examples=40, deadline=None)
@given(SPECS, st.integers(1, 300), st.integers(0, 99), st.sampled_from([0.0, 1.0, -4.0]))
def test_rounding_errs_by_half_a_step_and_keeps_zero(
    spec: BlockSpec, width: int, seed: int, shift: float
) -> None:
    rows = normal(4, width, seed=seed) + np.float32(shift)
    rows[:, 0] = 0
    folded = split_into_blocks(rows, spec)
    steps = compute_block_steps(folded, spec)
    error = np.abs(folded - steps.dequantize_blocks(steps.quantize_blocks(folded, spec)))
    # The far end of a symmetric grid has one integer less: up to a whole step is cut off there.
    assert (error <= np.abs(steps.scale[..., None]) * (1.001 if spec.symmetric else 0.501)).all()
    assert np.median(error / np.abs(steps.scale[..., None])) <= 0.5
    assert (dequantize(packed(rows, spec))[:, 0] == 0).all()


@given(st.sampled_from([4, 8]), st.integers(1, 9), st.integers(0, 9))
def test_packing_is_undone(bits: int, width: int, seed: int) -> None:
    whole = np.random.default_rng(seed).integers(0, 1 << bits, (3, width)).astype(np.uint8)
    again = unpack_integers(pack_integers(whole, bits), bits)  # type: ignore[arg-type]
    assert np.array_equal(again[:, :width], whole) and not again[:, width:].any()


@settings(max_examples=20, deadline=None)
@given(SPECS, st.integers(1, 200), st.integers(0, 99))
def test_refined_grids_are_never_worse(spec: BlockSpec, width: int, seed: int) -> None:
    folded = split_into_blocks(normal(4, width, seed=seed), spec)

    def loss(steps):  # type: ignore[no-untyped-def]
        return ((folded - steps.dequantize_blocks(steps.quantize_blocks(folded, spec))) ** 2).sum(
            axis=-1
        )

    start = compute_block_steps(folded, spec)
    assert (loss(refine_steps(folded, start, spec)) <= loss(start)).all()


def correlated(count: int, width: int, seed: int = 3) -> np.ndarray:
    """Return inputs of a few strong common factors, as the layers of trained networks see."""
    generator = np.random.default_rng(seed)
    mixing = generator.standard_normal((width // 8, width)) * generator.gamma(1.0, size=width)
    noise = 0.3 * generator.standard_normal((count, width))
    return (generator.standard_normal((count, width // 8)) @ mixing + noise).astype(np.float32)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("block", [32, 128])
def test_each_method_beats_the_one_before_on_unseen_inputs(symmetric: bool, block: int) -> None:
    spec, rows = BlockSpec(4, block, symmetric), normal(96, 192, seed=2)
    x, unseen = np.split(correlated(1500, 192), [1000])
    second = (x.T @ x / len(x)).astype(np.float64)
    wanted = unseen @ rows.T
    error = {
        method: float(((wanted - unseen @ dequantize(held).T) ** 2).mean())
        for method, held in (
            ("rtn", packed(rows, spec)),
            ("hqq", packed(rows, spec, "hqq")),
            ("gptq", packed(rows, spec, "gptq", second)),
        )
    }
    assert error["hqq"] < 0.98 * error["rtn"], error
    assert error["gptq"] < 0.5 * error["hqq"]


@pytest.mark.parametrize("act_order", [True, False])
def test_gptq_with_independent_inputs_is_rounding(act_order: bool) -> None:
    spec, rows = BlockSpec(4, 32, False), normal(8, 80)
    folded = split_into_blocks(rows, spec)
    steps = compute_block_steps(folded, spec)
    order = compute_order(np.eye(80), 0.01, act_order=act_order)
    found = round_rows(rows, steps, order, spec)
    assert np.array_equal(found, steps.quantize_blocks(folded, spec))


def test_inputs_that_never_move_and_inputs_that_repeat_are_survived() -> None:
    x = normal(50, 40)
    x[:, 3], x[:, 7] = 0, x[:, 8]
    order = compute_order((x.T @ x / 50).astype(np.float64), 0.01, act_order=True)
    spec, rows = BlockSpec(4, 16, True), normal(4, 40)
    found = round_rows(rows, compute_block_steps(split_into_blocks(rows, spec), spec), order, spec)
    assert np.isfinite(found).all() and found.min() >= 0 and found.max() <= spec.top
    with pytest.raises(BadData, match="not finite"):
        compute_order(np.full((4, 4), np.nan), 0.01, act_order=True)


def test_steps_survive_float16_and_empty_blocks() -> None:
    rows = np.concatenate([normal(2, 32, scale=1e-6), np.zeros((2, 32), np.float32)], axis=1)
    for symmetric in (True, False):
        held = packed(rows.astype(np.float16), BlockSpec(4, 32, symmetric))
        assert held.scale.dtype == np.float16 and np.isfinite(held.scale).all()
        assert (held.scale != 0).all() and not dequantize(held)[:, 32:].any()


@pytest.mark.parametrize("block", [0, 8, 48, 512])
def test_blocks_that_no_kernel_takes_are_refused(block: int) -> None:
    with pytest.raises(BadSettings, match=f"block={block}"):
        BlockSpec(4, block, True)
