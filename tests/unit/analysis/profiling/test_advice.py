"""Bottlenecks become actions with the right steps; what runs fused is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx_ir as ir
import pytest
from tests.unit.analysis.profiling.test_roofline import CEILINGS, kernel, tensor
from tests.unit.rewriting import model_of

import ortune
from ortune.analysis.profiling import advice as subject
from ortune.analysis.profiling.profile import find_packed_weights
from ortune.analysis.profiling.roofline import verdicts
from ortune.backends.cpu import Cpu
from ortune.core.backend import Backend
from ortune.core.facts import Facts
from ortune.core.profile import NO_STEP, Action, Kernel, Profile
from ortune.core.trial import Interval
from ortune.core.workload import Workload
from ortune.graph.analysis.dataflow import Origin
from ortune.graph.analysis.facts import read_facts
from ortune.measurement.process import query_capabilities
from ortune.measurement.workloads.latency import Latency
from ortune.search.recipe.space import SearchTarget, list_recipes

HEAD = '<ir_version: 9, opset_import: ["" : 18]>'
CONV = """g (float[1,16,32,32] x) => (float[1,32,32,32] y)
<float[32,16,3,3] w = {%s}, float[32] s = {%s}, float[32] b = {%s}, float[32] m = {%s},
 float[32] v = {%s}> {
  [conv] c = Conv <pads=[1,1,1,1]> (x, w)
  [norm] n = BatchNormalization (c, s, b, m, v)
  [relu] y = Relu (n)
}"""


def in_space(action: Action, known: Facts, backend: Backend, workload: Workload) -> bool:
    """Say whether the search has a plan with the action's steps, or tries its setting."""
    found = query_capabilities(backend)
    if action.steps:
        sides = SearchTarget(backend, found).list_variants(known, workload)
        offered = (one for side in sides for one in list_recipes(known, side, found))
        wanted = set(action.steps)
        return any(wanted <= {str(step) for step in recipe.steps} for recipe in offered)
    settings = (one for group in backend.coordinates(known, found).values() for one in group)
    return bool(action.backend) and action.backend in {str(one) for one in settings}


def conv_model() -> ir.Model:
    fill = [", ".join(["0.5"] * count) for count in (32 * 16 * 9, 32, 32, 32, 32)]
    return named(f"{HEAD} {CONV % tuple(fill)}", ["conv", "norm", "relu"])


def named(text: str, names: Sequence[str]) -> ir.Model:
    for name in names:
        text = text.replace(f"[{name}]", "")
    model = model_of(text)
    for node, name in zip(model.graph, names, strict=True):
        node.name = name
    return model


def run(op: str, *sources: str, ns: float = 1e6, kind: str = "compute", **more: object) -> Kernel:
    made = kernel(op, (tensor(1, 16, 32, 32),), (tensor(1, 32, 32, 32),), ns=ns, kind=kind)
    return replace(made, name="+".join(sources) or op, sources=sources, **more)  # type: ignore[arg-type]


def found(
    model: ir.Model, *kernels: Kernel, backend: Cpu | None = None, threads: int = 1
) -> tuple[tuple[Action, ...], Facts]:
    total = sum(one.time_ns for one in kernels)
    limits = replace(CEILINGS, threads=threads)
    profile = Profile("m.onnx", "cpu", kernels, 10, total, total, ceilings=limits)
    known = read_facts(model)
    return subject.list_actions(profile, model, known, backend or Cpu(threads=threads)), known


FLOPS = 2 * 32 * 32 * 32 * 16 * 9


def test_a_batch_norm_that_runs_by_itself_is_an_action_and_a_fused_one_is_not() -> None:
    model = conv_model()
    apart = [
        run("Conv", "conv", flops=FLOPS),
        run("BatchNormalization", "norm"),
        run("Relu", "relu"),
    ]
    every, known = found(model, *apart)
    (fuse,) = [one for one in every if one.kind == "fuse" and one.steps]
    assert fuse.steps == ("fuse-batch-norm",) and "BatchNormalization" in fuse.title
    assert 0.9e6 < fuse.stake_ns < 2.1e6
    assert in_space(fuse, known, Cpu(), Latency())
    every, _ = found(model, run("FusedConv", "conv", "norm", "relu", flops=FLOPS))
    assert not [one for one in every if one.kind == "fuse"]


def test_float_layers_are_offered_the_searchs_own_quantizers() -> None:
    every, known = found(conv_model(), run("FusedConv", "conv", "norm", "relu", flops=FLOPS))
    (static,) = [one for one in every if one.kind == "quantize" and "int8-static" in one.steps[-1]]
    assert static.stake_ns == 1e6
    assert static.estimate_ns is not None and 0 < static.estimate_ns < static.stake_ns
    assert in_space(static, known, Cpu(), Latency())


def test_an_estimate_without_ceilings_is_not_made() -> None:
    model, one = conv_model(), run("FusedConv", "conv", "norm", "relu", flops=FLOPS)
    profile = Profile("m", "cpu", (one,), 10, 1e6, 1e6)
    every = subject.list_actions(profile, model, read_facts(model), Cpu())
    assert [a.estimate_ns for a in every if a.kind == "quantize"] == [None]


@pytest.mark.parametrize("kind", ["cast", "copy", "reorder", "transpose"])
def test_what_was_added_costs_at_most_its_time(kind: str) -> None:
    one = run("FusedConv", "conv", "norm", "relu", flops=FLOPS)
    every, known = found(conv_model(), one, run("Added", kind=kind, ns=3e5))
    (added,) = [a for a in every if a.kind == "added"]
    assert added.stake_ns == 3e5 and added.does == NO_STEP
    assert not in_space(added, known, Cpu(), Latency())
    assert "all added by the runtime" in added.title


def test_bottlenecks_below_a_hundredth_of_the_run_are_not_listed() -> None:
    one = run("FusedConv", "conv", "norm", "relu", flops=FLOPS)
    every, _ = found(conv_model(), one, run("Added", kind="cast", ns=5e3))
    assert not [a for a in every if a.kind == "added"]


def test_pairs_that_are_left_name_what_keeps_them() -> None:
    text = f"""{HEAD} g (float[4,4] x) => (float[4,4] y)
    <float s = {{0.1}}, uint8 z = {{128}}> {{
      [q] a = QuantizeLinear (x, s, z)
      [d] b = DequantizeLinear (a, s, z)
      [odd] y = Erf (b)
    }}"""
    model = named(text, ["q", "d", "odd"])
    kernels = [
        run("QuantizeLinear", "q", kind="quantize"),
        run("DequantizeLinear", "d", kind="quantize"),
        run("Erf", "odd"),
    ]
    every, _ = found(model, *kernels)
    (left,) = [a for a in every if "Q/DQ" in a.title]
    assert left.stake_ns == 2e6 and "Erf" in left.title


ATTENTION = f"""{HEAD} g (float[2,8,4] q, float[2,4,8] k, float[2,8,4] v) => (float[2,8,4] y)
<float c = {{0.5}}> {{
  [scores] a = MatMul (q, k)
  [scale] b = Mul (a, c)
  [soft] d = Softmax (b)
  [mix] y = MatMul (d, v)
}}"""


def test_attention_that_is_spelled_out_is_named_and_a_fused_one_is_not() -> None:
    names = ("scores", "scale", "soft", "mix")
    model = named(ATTENTION, names)
    ops = ("MatMul", "Mul", "Softmax", "MatMul")
    kernels = [run(op, name, flops=10) for op, name in zip(ops, names, strict=True)]
    every, _ = found(model, *kernels)
    (spelled,) = [a for a in every if "attention" in a.title]
    assert spelled.does == NO_STEP and set(spelled.kernels) == set(names)
    assert spelled.stake_ns == 2e6
    every, _ = found(model, run("Attention", *names))
    assert not [a for a in every if "attention" in a.title]


def test_many_tiny_kernels_on_several_threads_suggest_one_which_the_search_tries() -> None:
    model = conv_model()
    tiny = [
        replace(kernel("Add", (tensor(),), (tensor(),), flops=1, ns=900), name=str(n))
        for n in range(50)
    ]
    every, known = found(model, *tiny, threads=2, backend=Cpu(threads=2))
    (threads,) = [a for a in every if a.kind == "threads"]
    assert threads.backend == "cpu(threads=1)"
    assert in_space(threads, known, Cpu(threads=2), Latency())
    every, _ = found(model, *tiny, threads=1)
    assert not [a for a in every if a.kind == "threads"]


def test_denormal_weights_suggest_the_flag_that_the_search_tries() -> None:
    model = conv_model()
    known = replace(read_facts(model), denormals=0.25)
    profile = Profile("m", "cpu", (), 10, 1.0, 1.0)
    (flush,) = subject.list_actions(profile, model, known, Cpu())
    assert flush.kind == "denormals" and "flush_denormals=true" in flush.backend
    assert in_space(flush, known, Cpu(), Latency())


def test_a_step_that_no_plan_holds_is_not_in_the_space() -> None:
    known = read_facts(conv_model())
    for action in (
        Action("fuse", "", "", steps=("no-such-step",)),
        Action("threads", "", "", backend="cpu(threads=77)"),
        Action("added", "", ""),
    ):
        assert not in_space(action, known, Cpu(), Latency())


def test_products_of_unknown_size_are_not_judged() -> None:
    profile = Profile("m", "cpu", (run("QLinearConv", "c"),), 1, 1.0, 1.0, ceilings=CEILINGS)
    (verdict,) = verdicts(profile)
    assert verdict.bound == "unknown" and verdict.gain_ns == 0


@pytest.mark.parametrize("listed", [True, False])
def test_weights_that_a_runtime_packs_away_are_still_read_in_every_run(listed: bool) -> None:
    model = conv_model()
    weight = tensor(32, 16, 3, 3, constant=True)
    read = (tensor(1, 16, 32, 32), *([weight] if listed else []))
    added = tuple(find_packed_weights(read, ("conv", "norm"), Origin(model)))
    assert added == (() if listed else (weight,))


# Actions done and timed: each result goes to its own action, a failure to build says so.


ACTIONS = (
    Action("quantize", "a", "", steps=("simplify", "int8-dynamic")),
    Action("added", "b", ""),
    Action("fuse", "c", "", steps=("fuse-layer-norm",)),
    Action("threads", "d", "", backend="cpu(threads=2)"),
)


def test_every_result_goes_to_its_own_action(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []

    def race(contestants: Sequence[tuple[Path, Backend]], **_: Any) -> SimpleNamespace:
        assert all(path.is_file() for path, _ in contestants)
        seen.extend((path.name, str(backend)) for path, backend in contestants)
        ratios = [Interval(v, v - 0.1, v + 0.1) for v in (1.0, 0.5)]
        return SimpleNamespace(ratios=[*ratios, None], rows=[{}, {}, {"error": "SIGSEGV"}])

    monkeypatch.setattr(subject, "race_contestants", race)
    source = Path(ortune.__path__[0]) / "data" / "zoo" / "digit_cnn.onnx"
    profile = Profile(str(source), "cpu(threads=1)", (), 1, 1.0, 1.0, ceilings=CEILINGS)
    one, two, three, four = subject.evaluate_suggestions(profile, ACTIONS)
    assert seen == [
        ("digit_cnn.onnx", "cpu(threads=1)"),
        ("0.onnx", "cpu(threads=1)"),
        ("digit_cnn.onnx", "cpu(threads=2)"),
    ]
    assert one.measured is not None and (one.measured.value, one.note) == (0.5, "")
    assert (two.measured, two.note) == (None, "")
    assert three.measured is None and "changes nothing" in three.note
    assert four.measured is None and "SIGSEGV" in four.note


def test_nothing_to_do_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "race_contestants", None)
    source = Path(ortune.__path__[0]) / "data" / "zoo" / "digit_cnn.onnx"
    profile = Profile(str(source), "cpu(threads=1)", (), 1, 1.0, 1.0)
    assert subject.evaluate_suggestions(profile, ACTIONS[1:2]) == ACTIONS[1:2]
    assert subject.suggest(profile) == ()
