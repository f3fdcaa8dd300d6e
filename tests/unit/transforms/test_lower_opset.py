"""New models compute the same in older operators, or are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator
from tests import backend_cases
from tests.unit.rewriting import loaded, model_of, normal, ops, run, transformed

from ortune.cli.main import main
from ortune.core.errors import BadModel, OrtuneError, Refused
from ortune.core.facts import Facts
from ortune.core.step import Transform
from ortune.model.graph import edit
from ortune.model.io import file
from ortune.model.io.check import check, signature
from ortune.transforms.fix_dims import FixDims
from ortune.transforms.ir_version import IrVersion
from ortune.transforms.lower_opset import LowerOpset
from ortune.transforms.raise_opset import RaiseOpset

X = {"x": normal(2, 4, 6)}
NEW = {
    "SwiGLU": (28, 20, "y = SwiGLU(x, x)"),
    "Swish": (24, 17, "y = Swish(x)"),
    "RMSNormalization": (23, 18, "y = RMSNormalization(x, six)"),
    "Cast with a round mode": (24, 17, "c = Cast<to = 7, saturate = 1>(x) y = Cast<to = 1>(c)"),
    "operators of more types": (28, 13, "m = Mod<fmod = 1>(x, high) y = ReduceLogSumExp(m, two)"),
    "a Reduce over everything": (20, 13, "y = ReduceMax(x)"),
    "Split by number": (18, 13, "a, b = Split<axis = 2, num_outputs = 2>(x) y = Add(a, b)"),
    "Split, uneven": (
        18,
        13,
        "p = Pad(x, pads) a, b = Split<axis = 1, num_outputs = 2>(p) y = Concat<axis = 1>(b, a)",
    ),
    "LayerNormalization": (17, 13, "y = LayerNormalization(x, six, six)"),
    "LayerNormalization, two axes": (20, 13, "y = LayerNormalization<axis = 1>(x, sixes)"),
    "Gelu": (20, 13, "y = Gelu(x)"),
    "Gelu by tanh": (20, 13, 'y = Gelu<approximate = "tanh">(x)'),
    "HardSwish": (14, 13, "y = HardSwish(x)"),
    "Mish": (22, 13, "y = Mish(x)"),
    "Reshape": (20, 13, "y = Reshape<allowzero = 1>(x, flat)"),
    "CastLike": (19, 13, "c = Cast<to = 7>(x) y = CastLike(c, x)"),
    "GreaterOrEqual": (16, 13, "g = GreaterOrEqual(x, high) y = Where(g, x, high)"),
    "GroupNormalization": (21, 17, "y = GroupNormalization<num_groups = 2>(x, four1, four1)"),
}
HELD = """<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[2] sizes = {2, 4},
 float low = {-0.5}, float high = {0.5}, int64[6] pads = {0, 1, 0, 0, 0, 2}, int64[1] ends = {-1},
 int64[2] four = {1, 2}, float[6] six = {1, 2, 3, 4, 5, 6}, float[4] four1 = {1, 2, 3, 4},
 float[4,6] sixes = {1,2,3,4,5,6,1,2,3,4,5,6,1,2,3,4,5,6,1,2,3,4,5,6},
 int64[2] flat = {-1, 6}, float[2] doubled = {2, 2},
 float[6,2] square = {1,2,3,4,5,6,7,8,9,10,11,12}>"""


def text(opset: int, body: str) -> str:
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[a, 4, 6] x) => (float[] y) {HELD} {{ {body} }}"""


@pytest.mark.parametrize("case", NEW)
def test_new_operators(case: str) -> None:
    opset, to, body = NEW[case]
    source = loaded(parser.parse_model(text(opset, body)))
    LowerOpset(to=to).apply(lowered := source.clone())
    assert lowered.opset_imports[""] == to
    check(lowered, signature(source), "lower-opset")
    proto = ir.to_proto(source)
    wanted = ReferenceEvaluator(proto).run(None, X)
    for found in (ReferenceEvaluator(ir.to_proto(lowered)).run(None, X), run(lowered, X)):
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=3e-6)


REFUSED = {
    "an operator that is not there": (20, "y = Trilu(x)", 13, r"Trilu .* opset 13 has no such"),
    "computed axes": (
        18,
        "s = Size(x) m = Mod(s, one) y = ReduceMax(x, m)",
        17,
        "axes are computed",
    ),
    "a type": (17, "c = Cast<to = 3>(x) r = Add(c, c) y = Cast<to = 1>(r)", 13, "int8.* there"),
    "a mode": (19, 'y = Pad<mode = "wrap">(x, pads)', 18, "no mode wrap there"),
    "axes of the same": (18, "y = Pad(x, four, , ends)", 17, "takes 2 to 3 inputs there"),
    "nothing to reduce": (18, "y = ReduceMin<noop_with_empty_axes = 1>(x)", 17, "reduces nothing"),
    "an 8-bit float": (19, "c = Cast<to = 17>(x) y = Cast<to = 1>(c)", 18, "float8e4m3fn"),
    "antialias": (
        18,
        'u = Unsqueeze(x, zero) y = Resize<antialias=1, mode="linear", axes=[2, 3]>(u, , doubled)',
        17,
        "no attribute antialias there",
    ),
    "too old": (17, "y = Relu(x)", 12, "opset 12 is too old"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_way_down_is_named(case: str) -> None:
    opset, body, to, what = REFUSED[case]
    with pytest.raises(OrtuneError, match=what) as raised:
        LowerOpset(to=to).apply(model_of(text(opset, body)))
    assert isinstance(raised.value, (Refused, BadModel))


def test_only_what_changed_is_touched() -> None:
    model = model_of(text(20, "[keep] r = Relu(x) [new] g = Gelu(r) [more] y = Neg(g)"))
    kept = [node for node in model.graph if node.name in ("keep", "more")]
    LowerOpset(to=17).apply(model)
    assert [node for node in model.graph if node in kept] == kept
    assert "Gelu" not in ops(model) and model.opset_imports[""] == 17


def test_bodies_are_lowered_too() -> None:
    source = """<ir_version: 8, opset_import: ["": 18]>
        g (float[2,3] x, bool c) => (float[2,3] y) { y = If(c) <
          then_branch = t () => (float[2,3] p) { p = HardSwish(x) },
          else_branch = e () => (float[2,3] q) { q = Softmax<axis = 0>(x) }> }"""
    feeds = [{"x": normal(2, 3), "c": np.array(c)} for c in (True, False)]
    model, _ = transformed(source, LowerOpset(to=13), feeds, may_grow=True)
    assert "HardSwish" not in {node.op_type for node in edit.every_node(model)}


@pytest.mark.parametrize(
    ("step", "fix"),
    [
        (LowerOpset(), "lower-opset(to=17)"),
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
    facts = Facts({}, 0, 0, 0, {}, 18, 8, (), ())
    assert LowerOpset(to=17).applies(facts) and not LowerOpset().applies(facts)


def test_a_refusal_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = file.save(model_of(text(20, "[low] y = Trilu(x)")), tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    assert main(["apply", str(source), "lower-opset(to=13)", "-o", str(out)]) == 2
    lines = capsys.readouterr().err.splitlines()[-2:]
    assert "Trilu 'low'" in lines[0] and "fix: lower it less" in lines[1] and not out.exists()


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


LOWERED = {26: 240, 17: 780, 13: 860}
"""Opset -> conformance cases that go down to it."""


@pytest.mark.long
@pytest.mark.parametrize("to", [26, 17, 13])
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
        check(after, signature(before), "lower-opset")
        paths = [file.save(m, tmp_path / f"{i}.onnx") for i, m in enumerate((before, after))]
        if backend_cases.runs_on(case, paths[0]) and not backend_cases.runs_on(case, paths[1]):
            assert case.name == "test_dequantizelinear", case.name  # no runner has it that old
        done += 1
    assert done > LOWERED[to], (done, refused)
