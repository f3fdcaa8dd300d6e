"""New models compute the same in older operators, or are refused by name."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator
from tests import backend_cases
from tests.unit.rewriting import loaded, model_of, normal, ops, run, transformed

from ortune.core.errors import BadModel, OrtuneError, Refused
from ortune.core.facts import Facts
from ortune.core.step import Transform
from ortune.graph.io import file
from ortune.graph.io.wellformed import check_model, describe_signature
from ortune.graph.ir import edit
from ortune.transforms.fix_dims import FixDims
from ortune.transforms.ir_version import IrVersion
from ortune.transforms.lower_opset import LowerOpset
from ortune.transforms.raise_opset import RaiseOpset

X = {"x": normal(2, 4, 6)}
NEW = {
    "SwiGLU": (28, "y = SwiGLU(x, x)"),
    "Swish": (24, "y = Swish(x)"),
    "RMSNormalization": (23, "y = RMSNormalization(x, six)"),
    "Attention": (23, "y = Attention<q_num_heads = 2, kv_num_heads = 2>(x, x, x)"),
    "Cast with a round mode": (24, "c = Cast<to = 7, saturate = 1>(x) y = Cast<to = 1>(c)"),
    "operators of more types": (28, "m = Mod<fmod = 1>(x, high) y = ReduceLogSumExp(m, two)"),
    "operators that stay": (26, "g = Gelu(x) h = HardSwish(g) y = Reshape(h, flat)"),
}
HELD = """<int64[1] two = {2}, int64 first = {1}, float high = {0.5},
 float[6] six = {1, 2, 3, 4, 5, 6}, int64[2] flat = {-1, 6}>"""


def text(opset: int, body: str) -> str:
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[a, 4, 6] x) => (float[] y) {HELD} {{ {body} }}"""


@pytest.mark.parametrize("case", NEW)
def test_new_operators(case: str) -> None:
    opset, body = NEW[case]
    source = loaded(parser.parse_model(text(opset, body)))
    LowerOpset(to=21).apply(lowered := source.clone())
    assert lowered.opset_imports[""] == 21
    check_model(lowered, describe_signature(source), "lower-opset")
    proto = ir.to_proto(source)
    wanted = ReferenceEvaluator(proto).run(None, X)
    for found in (ReferenceEvaluator(ir.to_proto(lowered)).run(None, X), run(lowered, X)):
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=3e-6)


REFUSED = {
    "an operator that is not there": (
        26,
        "y = CumProd(x, first)",
        21,
        r"CumProd .* opset 21 has no such",
    ),
    "a type": (23, "c = Cast<to = 23>(x) y = Cast<to = 1>(c)", 21, r"float4e2m1\) there"),
    "too old": (22, "y = Relu(x)", 20, "opset 20 is too old"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_way_down_is_named(case: str) -> None:
    opset, body, to, what = REFUSED[case]
    with pytest.raises(OrtuneError, match=what) as raised:
        LowerOpset(to=to).apply(model_of(text(opset, body)))
    assert isinstance(raised.value, (Refused, BadModel))


def test_only_what_changed_is_touched() -> None:
    model = model_of(text(24, "[keep] r = Relu(x) [new] g = Swish(r) [more] y = Neg(g)"))
    kept = [node for node in model.graph if node.name in ("keep", "more")]
    LowerOpset(to=21).apply(model)
    assert [node for node in model.graph if node in kept] == kept
    assert "Swish" not in ops(model) and model.opset_imports[""] == 21


def test_bodies_are_lowered_too() -> None:
    source = """<ir_version: 8, opset_import: ["": 24]>
        g (float[2,3] x, bool c) => (float[2,3] y) { y = If(c) <
          then_branch = t () => (float[2,3] p) { p = Swish(x) },
          else_branch = e () => (float[2,3] q) { q = Softmax<axis = 0>(x) }> }"""
    feeds = [{"x": normal(2, 3), "c": np.array(c)} for c in (True, False)]
    model, _ = transformed(source, LowerOpset(to=21), feeds, may_grow=True)
    assert "Swish" not in {node.op_type for node in edit.walk_nodes(model)}


@pytest.mark.parametrize(
    ("step", "fix"),
    [
        (LowerOpset(), "lower-opset(to=21)"),
        (IrVersion(), "ir-version(to=8)"),
        (FixDims(), "fix-dims(dims=[n:1])"),
    ],
)
def test_a_step_that_needs_a_setting_names_it(step: Transform, fix: str) -> None:
    model = model_of(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    )
    with pytest.raises(Refused) as caught:
        step.apply(model)
    assert fix in caught.value.fix


def test_nothing_is_lowered_that_is_lower() -> None:
    model = model_of(text(17, "y = Relu(x)"))
    assert LowerOpset(to=18).apply(model) == 0
    facts = Facts({}, 0, 0, 0, {}, 22, 8, (), ())
    assert LowerOpset(to=21).applies(facts) and not LowerOpset().applies(facts)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (IrVersion(to=8), "the IR version is 8"),
        (LowerOpset(to=20), "the opset is 17"),
        (RaiseOpset(to=11), "the opset is 17"),
    ],
)
def test_a_step_that_did_nothing_says_why(step: Transform, why: str) -> None:
    model = model_of(text(17, "y = Relu(x)"))
    model.ir_version = 8
    assert step.apply(model) == 0
    assert edit.take_notes(model) == why


def test_ir_versions() -> None:
    model = model_of(text(17, "y = Relu(x)"))
    assert IrVersion(to=9).apply(model) == 1 and model.ir_version == 9
    assert IrVersion(to=9).apply(model) == 0
    for wrong in (3, 99):
        with pytest.raises(Refused, match=f"IR version {wrong} is not written"):
            IrVersion(to=wrong).apply(model)
    eight = model_of(text(19, "c = Cast<to = 17>(x) y = Cast<to = 1>(c)"))
    eight.ir_version = 10
    with pytest.raises(Refused, match="IR version 8 has no float8e4m3fn"):
        IrVersion(to=8).apply(eight)


def test_a_newer_file_than_the_runtime_reads_is_written_in_one_that_it_reads(
    tmp_path: Path,
) -> None:
    model = model_of(text(17, "y = Relu(x)"))
    model.ir_version = 14
    assert file.load(file.save(model, tmp_path / "m.onnx")).ir_version == 13


LOWERED = {26: 240, 21: 400}
"""Opset -> conformance cases that go down to it."""


@pytest.mark.long
@pytest.mark.parametrize("to", LOWERED)
def test_every_conformance_case(to: int, tmp_path: Path) -> None:
    """None is wrong or invalid; most go down."""
    done = refused = 0
    for case in backend_cases.node_cases():
        try:
            before = loaded(case.model)
        except OrtuneError:
            continue
        after = before.clone()
        if before.opset_imports.get("", 0) <= to:
            continue
        try:
            LowerOpset(to=to).apply(after)
        except OrtuneError:
            refused += 1
            continue
        check_model(after, describe_signature(before), "lower-opset")
        paths = [file.save(m, tmp_path / f"{i}.onnx") for i, m in enumerate((before, after))]
        if backend_cases.runs_on(case, paths[0]) and not backend_cases.runs_on(case, paths[1]):
            assert case.name == "test_dequantizelinear", case.name  # no runner has it that old
        done += 1
    assert done > LOWERED[to], (done, refused)
