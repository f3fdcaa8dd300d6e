"""What an order of `ortune convert` means."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from tests.unit.analysis.sensitivity.test_result import found

from ortune.analysis.conversion import convert
from ortune.analysis.conversion.convert import check_target, check_types
from ortune.analysis.conversion.requests import Convert
from ortune.analysis.conversion.steps import leave_out, read_sensitive_layers
from ortune.core.errors import BadData, BadModel, BadSettings
from ortune.core.facts import Facts
from ortune.core.result import as_json
from ortune.quantizers.common.nodes import escape_pattern, match_nodes
from ortune.quantizers.int8_static import Int8Static
from ortune.transforms.simplify import Simplify


def order(*args: Any, **given: Any) -> Convert:
    """Return a request; its arguments are the precision and the target."""
    names = ("precision", "target")
    return Convert("m.onnx", "out.onnx", **dict(zip(names, args, strict=False)), **given)


FACTS = Facts({"Conv": 1}, 1, 4, 16, {"float32": 16}, 17, 8, (), ())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (order(reduce_range=True), "--reduce-range needs --precision int8"),
        (order("fp16", per_channel=False), "--no-per-channel needs --precision int8"),
        (order("fp32", dynamic_conv=True), "--dynamic-conv needs --precision int8"),
        (order("int8", dynamic_conv=True, data="d"), "int8 without data"),
        (order("int8", "gpu"), "no GPU kernel"),
        (order("int8", "tensorrt"), "no GPU kernel"),
        (order("int8", "directml"), "no GPU kernel"),
        (order("int8", "cuda", data="d"), "CUDA provider has no kernels for int8"),
        (order("fp8", "cuda", data="d"), "CUDA provider has no kernels for fp8"),
        (order("bf16", "directml"), "DirectML has no bf16"),
        (order("int8", "tensorrt", data="d", format="qoperator"), "qoperator is for CPUs"),
        (order("fp8", data="d"), "no CPU multiplies float8"),
        (order("fp8", "gpu"), "fp8 needs samples"),
        (order("fp16", data="d", ranges_from="r"), "--ranges-from needs --precision fp8 or int8"),
    ],
)
def test_what_does_not_go_together_is_refused(asked: Convert, said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        convert.check_options(asked)


def test_the_gpu_refusal_names_both_ways_on() -> None:
    with pytest.raises(BadSettings) as caught:
        convert.check_options(order("int8", "gpu"))
    assert "ConvInteger" in caught.value.what
    assert "--precision fp16" in caught.value.fix
    assert "--data" in caught.value.fix


@pytest.mark.parametrize(
    "asked",
    [
        order(),
        order("fp16", "gpu"),
        order("int8", reduce_range=True),
        order("int8", "gpu", data="d"),
        order("int8", "tensorrt", data="d"),
        order("int8", "directml", data="d"),
        order("fp16", "cuda"),
        order("fp16", "directml"),
        order("fp8", "tensorrt", data="d"),
    ],
)
def test_what_goes_together_is_taken(asked: Convert) -> None:
    convert.check_options(asked)


def test_level_all_is_warned_of_where_it_binds_to_hardware() -> None:
    (note,) = [
        n for n in convert.list_advice(order(opt_level="all")) if "--opt-level all" in n.text
    ]
    assert note.warning
    assert "--opt-level extended" in note.text
    assert not any(n.warning for n in convert.list_advice(order("fp16", opt_level="all")))
    assert not [
        n for n in convert.list_advice(order(opt_level="extended")) if "--opt-level" in n.text
    ]


def test_int8_with_data_is_static() -> None:
    (step,) = convert.make_quantizers(order("int8", data="d", per_channel=False))
    assert str(step) == "int8-static(per_channel=false, head=true)"


def test_int8_for_a_gpu_is_symmetric() -> None:
    (step,) = convert.make_quantizers(order("int8", "gpu", data="d", reduce_range=True))
    assert str(step) == "int8-static(target=tensorrt, reduce_range=true, head=true)"


@pytest.mark.parametrize(("target", "rules"), [("tensorrt", "tensorrt"), ("directml", "directml")])
def test_int8_follows_the_rules_of_its_target(target: str, rules: str) -> None:
    (step,) = convert.make_quantizers(order("int8", target, data="d"))
    assert str(step) == f"int8-static(target={rules}, head=true)"


def test_what_tensorrt_would_refuse_is_not_written(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1,4] x) => (float[1,4] y) <float s = {0.5}, uint8 z = {3}> {
      q = QuantizeLinear(x, s, z)
      y = DequantizeLinear(q, s, z)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(BadModel, match="TensorRT refuses the result") as caught:
        check_target(order("int8", "gpu", data="d"), tmp_path / "m.onnx")
    assert "zero point" in caught.value.what
    check_target(order("int8", "directml", data="d"), tmp_path / "m.onnx")
    check_target(order("int8", data="d"), tmp_path / "m.onnx")


def test_int8_without_data_is_dynamic_then_weights() -> None:
    found = convert.make_quantizers(order("int8", dynamic_conv=True))
    assert [str(step) for step in found] == ["int8-dynamic(conv=true)", "int8-weights"]


@pytest.mark.parametrize(
    ("asked", "step"),
    [
        (order("fp16", data="d"), "fp16"),
        (order("fp16", "cuda", data="d"), "fp16"),
        (order("fp16", "tensorrt"), "fp16"),
        (order("fp16", "tensorrt", data="d"), "fp16(islands=auto)"),
        (order("bf16", "tensorrt", data="d"), "bf16(islands=auto)"),
        (order("bf16"), "bf16"),
        (order("fp8", "gpu", data="d"), "fp8"),
        (order("int4"), "int4-weights"),
        (order("int4", data="d"), "int4-weights(method=gptq)"),
        (order("int4", "tensorrt"), "int4-weights(form=qdq)"),
    ],
)
def test_other_precisions_are_one_step(asked: Convert, step: str) -> None:
    convert.check_options(asked)
    assert [str(one) for one in convert.make_quantizers(asked)] == [step]


def test_no_precision_has_no_lossy_step() -> None:
    assert convert.make_quantizers(order()) == convert.make_quantizers(order("fp32")) == ()


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
        check_types(order(precision), found)
    else:
        with pytest.raises(BadModel, match=f"is not {precision}"):
            check_types(order(precision), found)


def test_what_is_lost_is_not_brought_back() -> None:
    half = replace(FACTS, precisions={"float16": 8})
    with pytest.raises(BadModel, match="float16"):
        convert.check_source(order("fp32"), half)
    done = replace(FACTS, ops={"QuantizeLinear": 1})
    with pytest.raises(BadModel, match="quantized already"):
        convert.check_source(order("int8"), done)
    convert.check_source(order(), half)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (order(format="qoperator"), ["qoperator"]),
        (order("int8", format="qoperator", data="d"), ["int8-static(head=true)", "qoperator"]),
        (order("int8", format="qdq", data="d"), ["int8-static(head=true)"]),
    ],
)
def test_convert_writes_the_form_that_was_asked_for(asked: Convert, wanted: list[str]) -> None:
    convert.check_options(asked)
    assert [str(step) for step in convert.make_quantizers(asked)] == wanted
    assert asked.portable == (asked.format == "qdq")


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_form_is_about_static_int8(precision: str) -> None:
    with pytest.raises(BadSettings, match="--format qdq applies to static int8") as caught:
        convert.check_options(order(precision, format="qdq"))
    assert len(str(caught.value).splitlines()) == 2


# --exclude-from: which nodes a file of sensitivities leaves in float.


REGIONS = [
    {"pattern": "Conv+Relu", "nodes": ["a", "b[0]"], "accuracy_cost": 0.02, "time_gained": 0.1},
    {"pattern": "Conv", "nodes": ["c"], "accuracy_cost": {"value": 0.005, "low": 0, "high": 0.02}},
    {"pattern": "MatMul", "nodes": ["d"], "cost": [0.001, 0.03]},
    {"pattern": "Gemm", "nodes": ["e"], "cost": 0.01},
]


def written(folder: Path, data: object) -> Path:
    path = folder / "sensitivity.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.parametrize("whole", [REGIONS, {"ortune": "1", "regions": REGIONS}])
def test_nodes_above_the_threshold(tmp_path: Path, whole: object) -> None:
    assert read_sensitive_layers(written(tmp_path, whole), 0.01) == ("a", "b[0]", "d")


def test_what_sensitivity_writes_is_read_by_its_layers(tmp_path: Path) -> None:
    layered = found().regions
    regions = tuple(replace(one, layers=()) for one in layered)
    file = tmp_path / "sensitivity.json"
    file.write_text(as_json(found(regions=regions).result()))
    assert read_sensitive_layers(file, 0.05) == ("fragile", "fragile_relu")
    file.write_text(as_json(found(regions=tuple(layered)).result()))
    assert read_sensitive_layers(file, 0.05) == ("fragile",)
    assert read_sensitive_layers(file, 0.005) == ("slow", "fragile")


def test_steps_get_the_nodes_beside_their_own(tmp_path: Path) -> None:
    file = written(tmp_path, REGIONS)
    steps = leave_out([Simplify(), Int8Static(exclude=("x*",))], file, 0.025)
    assert steps == (Simplify(), Int8Static(exclude=("x*", "d")))
    assert leave_out([Int8Static()], file, None)[0] == Int8Static(exclude=("a", "b[[]0]", "d"))


@pytest.mark.parametrize("name", ["b[0]", "a*", "what?", "re:a", "plain/conv.1"])
def test_a_name_matches_itself_alone(name: str) -> None:
    nodes = [ir.node("Relu", [ir.val("x")], name=n) for n in (name, "other", "a", "b0")]
    model = ir.Model(ir.Graph([], [], nodes=nodes, opset_imports={"": 17}), ir_version=8)
    assert {n.name for n in match_nodes(model, (escape_pattern(name),), "exclude")} == {name}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("{", "not JSON"),
        ({"rows": []}, "no list of regions"),
        ([3], "region 0 is not a region"),
        ([{"nodes": "a", "cost": 1}], "no list of node names"),
        ([{"nodes": ["a"]}], "no accuracy cost, but None"),
        ([{"nodes": ["a"], "cost": "much"}], "no accuracy cost, but 'much'"),
        ([{"nodes": ["a"], "cost": float("nan")}], "no accuracy cost"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, data: object, says: str) -> None:
    with pytest.raises(BadData, match=says) as raised:
        read_sensitive_layers(written(tmp_path, data), 0.01)
    assert "sensitivity" in str(raised.value.fix)


def test_a_missing_file() -> None:
    with pytest.raises(BadData, match="No such file"):
        read_sensitive_layers(Path("no-such.json"), 0.01)


def test_a_threshold_alone_or_no_step_to_tell(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"--threshold 0\.5"):
        leave_out([Int8Static()], None, 0.5)
    with pytest.raises(BadSettings, match="no step here"):
        leave_out([Simplify()], written(tmp_path, REGIONS), None)
