"""A finished study whose regions were surveyed, made by hand: three layers, two of a pattern."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from ortune.backends.cpu import Cpu
from ortune.core.step import Edit, Recipe
from ortune.core.study import Contribution, Ending, Header, Study
from ortune.core.trial import Interval, Plan, Status, Trial, UntriedPlan, Verdict
from ortune.quantizers.common.nodes import escape_pattern
from ortune.quantizers.int8_static import Int8Static
from ortune.quantizers.int8_weights import Int8Weights
from ortune.search.mixed_precision.survey import RegionCost, Survey
from tests.unit import studies

_W = ", ".join(map(str, range(16)))
MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x) => (float[N,4] y) <float[4,4] a = {W}, float[4,4] b = {W}, float[4,4] c = {W}> {
  [fragile] p = MatMul(x, a)
  [fragile_relu] q = Relu(p)
  [plain] r = MatMul(q, b)
  [alike] y = MatMul(r, c)
}
""".replace("W}", f"{_W}}}")
BUILT = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x) => (float[N,4] y)
<float[4,4] a = {W}, float s = {0.1}, uint8 z = {0},
 int8[4,4] bq = {W}, int8[4,4] cq = {W}, int8 w = {0}> {
  [fragile] p = MatMul(x, a)
  [fragile_relu] q = Relu(p)
  [q_q] qq = QuantizeLinear(q, s, z)
  [q_dq] qd = DequantizeLinear(qq, s, z)
  [b_dq] bd = DequantizeLinear(bq, s, w)
  [plain] r = MatMul(qd, bd)
  [c_dq] cd = DequantizeLinear(cq, s, w)
  [alike] y = MatMul(r, cd)
}
""".replace("W}", f"{_W}}}")
WHOLE, MIXED = "5eed" * 4, "f00d" * 4


def cost(name: str, lost: float, gain: float, pattern: str = "aa", **more: object) -> RegionCost:
    """Return a region; its intervals reach a tenth to either side."""
    return RegionCost(
        name,
        (name, *more.pop("nodes", ())),  # type: ignore[misc]
        pattern,
        ("MatMul",),
        Interval(lost, lost - 0.1 * abs(lost), lost + 0.1 * abs(lost)),
        Interval(gain, gain - 0.1 * abs(gain), gain + 0.1 * abs(gain)),
        layers=(name,),
        **more,  # type: ignore[arg-type]
    )


REGIONS = (
    cost("fragile", 0.08, 0.1, "ff", nodes=("fragile_relu",), saved=48),
    cost("plain", 0.001, 0.2),
    cost("alike", 0.002, 0.2),
)


def plan(*left_out: str, instead: tuple[str, ...] = ()) -> Plan:
    """Return int8 without some nodes, which weights alone may take."""
    steps = [Int8Static(exclude=tuple(map(escape_pattern, left_out)))]
    steps += [Int8Weights(include=tuple(map(escape_pattern, instead)))] if instead else []  # type: ignore[list-item]
    return Plan(Recipe("int8-static" + (", mixed" if left_out else ""), tuple(steps)), Cpu())


SURVEY = Survey(WHOLE, plan(), REGIONS, 0.09, "cosine", 12.0)


def study(folder: Path) -> Study:
    """Write a run into `folder` and return its study: int8 fails, without `fragile` it wins."""
    source = studies.write_model(folder / "source" / "toy.onnx", MODEL)
    root = folder / "run"
    studies.write_model(root / "artefacts" / "0123" / "toy.onnx", BUILT)
    whole = studies.trial(
        WHOLE, plan(), 0.4, status=Status.FAILS, verdict=Verdict.FAILS, value=0.91
    )
    why = "regions: 1 of 3 in float: fragile"
    mixed = replace(
        studies.trial(MIXED, plan("fragile"), 0.5, artefact="artefacts/0123"),
        stage="regions",
        proposed=why,
        edits=(
            Edit(
                "int8-static", 2, note="1 of 3 layers left in float: those that are excluded (1)"
            ),
        ),
    )
    mixed = replace(mixed, edits=(replace(mixed.edits[0], step=str(mixed.plan.recipe.steps[0])),))
    final = replace(mixed, part="final", ratio=Interval(0.51, 0.5, 0.53))
    weights = studies.trial("beef" * 4, plan("fragile", instead=("fragile",)), 0.45)
    header = Header(
        studies.job(source),
        studies.FACTS,
        "ortune optimize toy.onnx --data samples -o run",
        {"": str(source)},
        {name: tuple(range(n)) for name, n in studies.PARTS.items()},
    )
    ending = Ending(
        history=(Contribution("baseline", "ba5e" * 4), Contribution("quantization", MIXED)),
        finished="done",
        untried=3,
        left_out=(UntriedPlan("fp16 @ cpu", "no time left"),),
    )
    trials: tuple[Trial, ...] = (studies.baseline(), whole, mixed, weights, final)
    return Study(str(root), header, trials, ending)


FAILED = RegionCost(
    "odd",
    ("odd",),
    "00",
    ("Conv",),
    Interval(math.nan, math.nan, math.nan),
    Interval(math.nan, math.nan, math.nan),
    error="the worker died",
)
