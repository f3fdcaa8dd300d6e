"""What follows from a plan that holds: the same with more layers in integers."""

from __future__ import annotations

import pytest

from ortune.backends.cpu import Cpu
from ortune.core.facts import Facts
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe, Step, Transform
from ortune.core.trial import Plan
from ortune.search.recipe.space import Space, list_extension_plans


def facts(ops: dict[str, int]) -> Facts:
    return Facts(ops, sum(ops.values()), 1, 1, {}, 17, 8, (), ())


CNN = facts({"Conv": 49, "Gemm": 1})
WHOLE = "int8-static(head=true)"


def steps(text: str) -> tuple[Step, ...]:
    found: list[Step] = []
    for one in text.split(" + "):
        kind = Quantizer if one.split("(")[0] in catalog.list_plugins(Quantizer) else Transform
        found.append(parse_plugin(kind, one))
    return tuple(found)


def plan(text: str, *, before: str = "") -> Plan:
    return Plan(Recipe(text, (*(steps(before) if before else ()), *steps(text))), Cpu(1))


@pytest.mark.parametrize(
    ("kept", "more"),
    [
        ("int8-static", WHOLE),
        (
            "cross-layer-equalization + adaptive-rounding + int8-static",
            f"cross-layer-equalization + adaptive-rounding(before={WHOLE}) + {WHOLE}",
        ),
    ],
)
def test_the_head_of_a_convolutional_network(kept: str, more: str) -> None:
    (found,) = list_extension_plans(plan(kept, before="simplify + fuse-clip"), CNN)
    assert found == plan(more, before="simplify + fuse-clip")
    assert found.recipe.name == more
    assert not list(list_extension_plans(found, CNN))


@pytest.mark.parametrize("kept", ["int8-dynamic", "fp16", "simplify"])
def test_nothing_goes_further(kept: str) -> None:
    assert not list(list_extension_plans(plan(kept), CNN))


def test_the_original_and_networks_without_a_head_have_none() -> None:
    assert not list(list_extension_plans(Plan(AS_IS, Cpu(1)), CNN))
    assert not list(list_extension_plans(plan("int8-static"), facts({"MatMul": 48, "Softmax": 6})))


def test_offers_have_it_too() -> None:
    """A plan that follows is the one that was offered, not a second of the same kind."""
    offered = Space(CNN, [], None, Cpu(1)).list_extensions(plan("int8-static"))  # type: ignore[arg-type]
    assert [one.spelling for one in offered] == [plan(WHOLE).spelling]
