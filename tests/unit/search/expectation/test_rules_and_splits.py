"""Features of plans: in one order everywhere, of the user's own plugins, of splits."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace

from tests.unit.search.test_adaptive import CAPABLE, CPU, FACTS, SPACE, view

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe, Transform
from ortune.core.trial import Plan
from ortune.measurement.workloads.throughput import Throughput
from ortune.search.expectation.candidates import list_screening_plans
from ortune.search.expectation.expectations import Expectations
from ortune.search.expectation.features import accuracy_features, latency_features
from ortune.search.recipe.space import SearchTarget

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
