"""What plans are made of: stable, and as few parts as tell most of them apart."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from tests.unit.search.test_adaptive import CAPABLE, CPU, FACTS, SPACE, view

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
from ortune.measurement.workloads.throughput import Throughput
from ortune.search.expectation.candidates import list_screening_plans
from ortune.search.expectation.expectations import Expectations
from ortune.search.expectation.features import accuracy_features, latency_features
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


# Features of plans: in one order everywhere, of the user's own plugins, of splits.


ORDER = """
from ortune.core.plugins.spelling import parse_plugin
from ortune.backends.cpu import Cpu
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Plan
from ortune.search.expectation.features import latency_features, accuracy_features
names = ("int8-static", "int8-dynamic", "int4-weights", "smooth-quant", "clip-weights", "fp8")
steps = tuple(parse_plugin(Quantizer, name) for name in names)
print([*accuracy_features(Recipe("all", steps))])
print([*latency_features(Plan(Recipe("all", steps), Cpu()))])
"""


def test_the_order_of_features_is_the_same_in_every_process() -> None:
    found = set()
    for seed in range(4):
        env = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", ORDER]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1


@dataclass(frozen=True)
class Demanding(Quantizer):
    """A quantizer of a user's without a role, and with a field that has no default."""

    bits: int
    ops: tuple[str, ...] = ()

    def apply(self, model: object, ranges: object) -> int:
        return 0


def test_a_field_without_a_default_is_an_option() -> None:
    recipe = Recipe("own", (Demanding(4),))
    name = Demanding(4).name()
    assert f"option:{name}.bits=4" in latency_features(Plan(recipe, CPU))
    assert f"family:{name}" in accuracy_features(recipe)


def test_threads_count_behind_buckets_too() -> None:
    plan = Plan(AS_IS, Bucketed(threads=2, inner=Cpu()))
    assert latency_features(plan)["set:cpu.threads=2"] == 1.0


def test_a_rule_of_the_users_may_bring_much() -> None:
    rule = parse_plugin(Transform, "widen-groups")
    steps = (parse_plugin(Transform, "simplify"), rule)
    plan = Plan(Recipe("clean + rules", steps), CPU)
    targets = [replace(one, rules=(rule,)) for one in SPACE.targets]
    asked = view(space=replace(SPACE, targets=targets))
    own, usual = (Expectations(one).estimate_plans([plan])[0].latency for one in (asked, view()))
    assert own.sd**2 - usual.sd**2 > 0.15**2


def test_of_splits_the_best_bet_and_all_cpus_are_screened() -> None:
    splits = Throughput().splits(8)
    targets = [SearchTarget(one, CAPABLE, splits=splits) for one in (Cpu(), Openvino())]
    space = replace(SPACE, targets=targets, workload=Throughput(), baseline=Cpu())
    found = [one.plan.backend for one in list_screening_plans(view(space=space))]
    assert {backend.threads for backend in found if isinstance(backend, Cpu)} == {1}
    assert {backend.threads for backend in found if isinstance(backend, Openvino)} == {0, 1}


def test_a_split_that_was_not_tried_may_bring_much() -> None:
    splits = Throughput().splits(8)
    targets = [SearchTarget(one, CAPABLE, splits=splits) for one in (Cpu(), Openvino())]
    asked = view(space=replace(SPACE, targets=targets, facts=FACTS))
    plan = Plan(AS_IS, Cpu(threads=4))
    assert Expectations(asked).estimate_plans([plan])[0].latency.sd > 0.4
