"""What an order of `ortune convert` means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ortune.cli import _converted
from ortune.cli import _converting as converting
from ortune.cli._converting import Order
from ortune.core.errors import BadModel, BadSettings
from ortune.core.facts import Facts

FACTS = Facts({"Conv": 1}, 1, 4, 16, {"float32": 16}, 17, 8, (), ())


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (Order(reduce_range=True), "--reduce-range is about int8"),
        (Order("fp16", per_channel=False), "--no-per-channel is about int8"),
        (Order("fp32", dynamic_conv=True), "--dynamic-conv is about int8"),
        (Order("int8", dynamic_conv=True, static=True), "int8 without data"),
        (Order("int8", "gpu"), "no GPU kernel"),
        (Order("fp8", static=True), "no CPU multiplies float8"),
        (Order("fp8", "gpu"), "fp8 needs samples"),
        (Order("fp16", static=True, known=True), "--ranges-from is about fp8, int8"),
    ],
)
def test_what_does_not_go_together_is_refused(order: Order, said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        order.check()


def test_the_gpu_refusal_names_both_ways_on() -> None:
    with pytest.raises(BadSettings) as caught:
        Order("int8", "gpu").check()
    assert "ConvInteger" in caught.value.what
    assert "--precision fp16" in caught.value.fix
    assert "--data" in caught.value.fix


@pytest.mark.parametrize(
    "order",
    [
        Order(),
        Order("fp16", "gpu"),
        Order("int8", reduce_range=True),
        Order("int8", "gpu", static=True),
    ],
)
def test_what_goes_together_is_taken(order: Order) -> None:
    order.check()


def test_level_all_is_warned_of_where_it_binds_to_hardware() -> None:
    (note,) = [n for n in Order(level="all").advice() if "--opt-level all" in n.text]
    assert note.warning
    assert "--opt-level extended" in note.text
    assert not any(n.warning for n in Order("fp16", level="all").advice())
    assert not [n for n in Order(level="extended").advice() if "--opt-level" in n.text]


def test_int8_with_data_is_static() -> None:
    (step,) = converting.quantizers(Order("int8", static=True, per_channel=False))
    assert str(step) == "int8-static(per_channel=false, head=true)"


def test_int8_for_a_gpu_is_symmetric() -> None:
    (step,) = converting.quantizers(Order("int8", "gpu", static=True, reduce_range=True))
    assert str(step) == "int8-static(target=tensorrt, reduce_range=true, head=true)"


def test_int8_without_data_is_dynamic_then_weights() -> None:
    steps = converting.quantizers(Order("int8", dynamic_conv=True))
    assert [str(step) for step in steps] == ["int8-dynamic(conv=true)", "int8-weights"]


@pytest.mark.parametrize(
    ("order", "step"),
    [
        (Order("fp16", static=True), "fp16"),
        (Order("bf16"), "bf16"),
        (Order("fp8", "gpu", static=True), "fp8"),
        (Order("int4"), "int4-weights"),
        (Order("int4", static=True), "int4-weights(method=gptq)"),
    ],
)
def test_other_precisions_are_one_step(order: Order, step: str) -> None:
    order.check()
    assert [str(one) for one in converting.quantizers(order)] == [step]


def test_no_precision_has_no_lossy_step() -> None:
    assert converting.quantizers(Order()) == converting.quantizers(Order("fp32")) == ()


@pytest.mark.parametrize(
    ("precision", "weights", "ops", "good"),
    [
        ("fp16", {"float16": 8}, {"Conv": 1}, True),
        ("fp16", {"float16": 8, "float32": 4}, {"Conv": 1}, True),
        ("fp16", {"float32": 16}, {"Conv": 1}, False),
        ("int8", {"int8": 4, "float32": 2}, {"QLinearConv": 1}, True),
        ("int8", {"int8": 4}, {"com.microsoft::QAttention": 1}, True),
        ("int8", {"int8": 4}, {"Gather": 1}, False),
        ("int8", {"int8": 4}, {"Cast": 1, "Mul": 1, "Conv": 1}, True),
        ("int8", {"float32": 16}, {"QuantizeLinear": 1}, False),
        ("bf16", {"bfloat16": 8}, {"Conv": 1}, True),
        ("bf16", {"float16": 8}, {"Conv": 1}, False),
        ("fp8", {"float8_e4m3fn": 4, "float32": 16}, {"MatMul": 1}, True),
        ("fp8", {"int8": 4}, {"QuantizeLinear": 1}, False),
        ("int4", {"uint8": 4}, {"com.microsoft::MatMulNBits": 1}, True),
        ("int4", {"uint4": 4}, {"DequantizeLinear": 1}, True),
        ("int4", {"uint8": 4}, {"MatMul": 1}, False),
        ("fp32", {"float32": 16}, {"Conv": 1}, True),
        ("fp32", {"bfloat16": 16}, {"Conv": 1}, False),
        (None, {"float16": 16}, {"Conv": 1}, True),
    ],
)
def test_the_file_must_hold_what_was_ordered(
    precision: str | None, weights: dict[str, int], ops: dict[str, int], good: bool
) -> None:
    found = replace(FACTS, precisions=weights, ops=ops)
    if good:
        _converted.check_types(Order(precision), found)
    else:
        with pytest.raises(BadModel, match=f"is not {precision}"):
            _converted.check_types(Order(precision), found)


def test_what_is_lost_is_not_brought_back() -> None:
    half = replace(FACTS, precisions={"float16": 8})
    with pytest.raises(BadModel, match="float16"):
        converting._convertible(Path("m.onnx"), Order("fp32"), half)
    done = replace(FACTS, ops={"QuantizeLinear": 1})
    with pytest.raises(BadModel, match="quantized already"):
        converting._convertible(Path("m.onnx"), Order("int8"), done)
    converting._convertible(Path("m.onnx"), Order(), half)
