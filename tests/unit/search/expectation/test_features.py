"""What plans are made of: stable, and as few parts as tell most of them apart."""

from __future__ import annotations

import pytest

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe, Transform
from ortune.core.trial import Plan
from ortune.measurement.workloads.latency import Latency
from ortune.search.expectation.features import latency_features
from ortune.search.recipe.space import SearchTarget, Space


def plan(steps: str, backend: str) -> Plan:
    found = [
        parse_plugin(Quantizer if one.startswith(("int", "clip", "req")) else Transform, one)
        for one in steps.split()
    ]
    return Plan(Recipe("given", tuple(found)), parse_plugin(Backend, backend))  # type: ignore[type-abstract]


def parts(given: Plan) -> list[str]:
    first, *rest = latency_features(given)
    assert first == f"plan:{given.spelling}"
    return rest


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (plan("", "cpu"), "kind:cpu hint:cpu"),
        (plan("fuse-gelu simplify", "openvino"), "kind:openvino hint:openvino/f32 clean:"),
        (
            plan("simplify", "openvino(precision=bf16,hint=throughput)"),
            "kind:openvino hint:openvino/bf16 clean: set:openvino.hint=throughput",
        ),
        (
            plan("cross-layer-equalization clip-weights int8-dynamic", "cpu(threads=1)"),
            (
                "kind:cpu hint:cpu family:int8-dynamic family@kind:int8-dynamic@cpu "
                "family@hint:int8-dynamic@cpu step:cross-layer-equalization step:clip-weights "
                "set:cpu.threads=1"
            ),
        ),
        (
            plan("int8-static(keep_first=1,ops=[Conv])", "cpu(disable=[SkipLayerNormFusion])"),
            (
                "kind:cpu hint:cpu family:int8-static family@kind:int8-static@cpu "
                "family@hint:int8-static@cpu option:int8-static.ops=('Conv',) "
                "option:int8-static.keep_first=1 set:cpu.disable=SkipLayerNormFusion"
            ),
        ),
    ],
)
def test_features_say_what_a_plan_is(given: Plan, found: str) -> None:
    assert parts(given) == found.split(" ")


def test_what_stays_float_is_all_that_the_hint_moves() -> None:
    found = latency_features(plan("int8-dynamic", "cpu"))
    assert found["kind:cpu"] == found["hint:cpu"] < found["family:int8-dynamic"] == 1


def test_what_static_ranges_take_they_take_whatever_comes_behind() -> None:
    joined = dict(latency_features(plan("int8-static int8-dynamic", "cpu")))
    alone = dict(latency_features(plan("int8-static", "cpu")))
    assert joined.pop("behind:int8-dynamic") == 1
    for found in (joined, alone):
        assert len([found.pop(name) for name in list(found) if name.startswith("plan:")]) == 1
    assert joined == alone
    assert not [n for n in latency_features(plan("int8-dynamic", "cpu")) if n.startswith("behind")]


def test_of_a_mix_each_quantizer_stands_for_a_share_of_the_layers() -> None:
    found = latency_features(plan("int4-weights(head=false) int8-dynamic", "cpu"))
    assert found["family:int4-weights"] == pytest.approx(0.7)
    assert found["family@hint:int8-dynamic@cpu"] == pytest.approx(0.3)
    alone = latency_features(plan("int4-weights", "cpu"))
    dynamic = latency_features(plan("int8-dynamic", "cpu"))
    assert found["hint:cpu"] == pytest.approx(0.7 * alone["hint:cpu"] + 0.3 * dynamic["hint:cpu"])


def test_behind_buckets_the_inner_backend_counts() -> None:
    inner = Openvino(precision="bf16", streams=2)
    found = Bucketed(threads=1, inner=inner, mask="mask", inputs=("ids",), lengths=(16, 32))
    assert parts(Plan(AS_IS, found)) == [
        "kind:openvino",
        "hint:openvino/bf16",
        "set:openvino.streams=2",
        "bucketed:",
        "set:openvino.threads=1",
    ]


@pytest.mark.parametrize(
    "ops",
    [
        {"Conv": 20, "Gemm": 1, "Add": 5},
        {"MatMul": 72, "Softmax": 12, "Gather": 3, "LayerNormalization": 12},
        {"LSTM": 2, "Conv": 3, "MatMul": 2},
    ],
)
def test_most_plans_of_a_search_are_told_apart(ops: dict[str, int]) -> None:
    given, every = Facts(ops, 9, 5_000_000, 9, {}, 17, 8, (), ()), list[Plan]()
    flags = "avx2 avx512_vnni avx512_bf16 avx512_fp16 amx_bf16"
    offered = Capabilities(effective_cpus=2, instruction_sets=tuple(flags.split()))
    targets = [SearchTarget(one, offered, frozenset({"threads"})) for one in (Cpu(1), Openvino(1))]
    space = Space(given, targets, Latency(), Cpu(1))
    for target in targets:
        for backend in space.list_variants(target):
            every += [Plan(recipe, backend) for recipe in space.list_recipes(target, backend)]
    every += [rescue for one in every for rescue in space.list_rescues(one)]
    for one in (every[1], every[-1]):
        every += [plan for plans in space.list_neighbours(one).values() for plan in plans]
    found = {one.spelling: tuple(parts(one)) for one in every}
    assert len(found) > 40
    assert len(set(found.values())) > 0.8 * len(found)
