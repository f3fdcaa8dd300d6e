"""Labels of plans: what differs from the baseline, in words, and different for different plans."""

from __future__ import annotations

import pytest

from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.plan_label import label_changes, label_plan
from ortune.core.plugins.spelling import parse_list, parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe
from ortune.core.trial import Plan

BASELINE = Plan(AS_IS, Cpu(threads=1))


def plan(steps: str, backend: str, name: str = "") -> Plan:
    parsed = tuple(step for step, _ in parse_list(Quantizer, steps)) if steps else ()
    recipe = Recipe(name or " + ".join(map(str, parsed)) or AS_IS.name, parsed)
    return Plan(recipe, parse_plugin(Backend, backend))


@pytest.mark.parametrize(
    ("made", "label"),
    [
        (BASELINE, "original"),
        (plan("", "openvino(threads=1, precision=bf16)"), "original model · OpenVINO bf16"),
        (plan("int8-static", "cpu(threads=1)"), "int8 static"),
        (plan("int8-dynamic", "cpu(threads=2)"), "int8 dynamic · 2 threads"),
        (plan("", "cpu"), "original model · all CPUs"),
        (
            plan("int8-static(target=openvino)", "openvino(threads=1, precision=bf16)"),
            "int8 static · OpenVINO bf16",
        ),
        (plan("int8-static", "openvino(threads=1)"), "int8 static (for cpu) · OpenVINO"),
        (
            plan("int8-static(per_channel=false)", "openvino(threads=1, pinning=off)"),
            "int8 static (per channel off, for cpu) · OpenVINO pinning off",
        ),
        (
            plan("int8-static", "cpu(threads=1)", "int8-static, 3 of 12 in float"),
            "int8 static, 3 of 12 regions in float",
        ),
        (
            plan("", "bucketed(threads=1, inner=openvino, mask=m)"),
            "original model · padding cut off, OpenVINO",
        ),
        (plan("", "cpu(threads=1)", "<b>a (b)"), "<b>a (b)"),
    ],
)
def test_a_label_says_what_differs_from_the_baseline(made: Plan, label: str) -> None:
    assert label_plan(made, BASELINE) == label


def test_steps_that_prepare_another_do_not_repeat_it() -> None:
    name = "smooth-quant(before=int8-static(target=openvino)) + int8-static(target=openvino)"
    steps = tuple(
        parse_plugin(Quantizer, text) for text in ("smooth-quant", "int8-static(target=openvino)")
    )
    made = Plan(Recipe(name, steps), parse_plugin(Backend, "openvino(threads=1)"))
    assert label_plan(made, BASELINE) == "smooth quant + int8 static · OpenVINO"


def test_a_long_list_is_counted() -> None:
    names = ", ".join(f'"/encoder/layer.{n}/MatMul"' for n in range(9))
    made = plan(f"int8-dynamic(exclude=[{names}])", "cpu(threads=1)")
    assert label_plan(made, BASELINE) == "int8 dynamic (exclude (9))"


def test_a_change_is_of_the_model_of_the_backend_or_of_both() -> None:
    quantized = plan("int8-static", "cpu(threads=1)")
    both = plan("int8-static", "openvino(threads=1, precision=bf16)")
    assert label_changes(quantized, BASELINE) == ("int8 static",)
    assert label_changes(both, quantized) == ("OpenVINO bf16",)
    assert label_changes(both, BASELINE) == ("int8 static (for cpu)", "OpenVINO bf16")
