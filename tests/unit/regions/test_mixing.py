"""Regions are left in float through fields that exist, whatever their nodes are called."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ortune.backends.cpu import Cpu
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse
from ortune.core.step import Quantizer, Recipe, Step, Transform
from ortune.core.trial import Interval, Plan
from ortune.quantization.node_filter import literally
from ortune.regions.mixing import GivenBack, bare, mixable, mixed, parted
from ortune.regions.survey import RegionCost, Survey

NONE = Interval(0.0, 0.0, 0.0)


def quantizers(*spelled: str) -> Recipe:
    steps = tuple(parse(Quantizer, one) for one in spelled)
    return Recipe(" + ".join(spelled), steps)


def surveyed(recipe: Recipe, **regions: tuple[str, ...]) -> Survey:
    found = (
        RegionCost(name, nodes, "p", ("MatMul",), NONE, NONE) for name, nodes in regions.items()
    )
    return Survey("key", Plan(recipe, Cpu()), tuple(found), 0.1)


def back(left: Iterable[str]) -> GivenBack:
    """Return that regions stay in float."""
    return GivenBack(frozenset(left))


def test_nodes_join_what_is_excluded_already() -> None:
    recipe = quantizers("int8-dynamic(exclude=[head])")
    survey = surveyed(recipe, a=("a", "a/gelu"), b=("b",), c=("c[0]*",))
    found = mixed(survey, back({"c", "a"}))
    assert found.name == "int8-dynamic(exclude=[head]), 2 of 3 regions in float"
    assert str(found.steps[0]) == 'int8-dynamic(exclude=[head, a, a/gelu, "c[[]0][*]"])'
    assert parted(survey, found) == back({"a", "c"})


def test_a_region_goes_by_its_layers_where_they_are_known() -> None:
    survey = surveyed(quantizers("int8-dynamic"), a=("a", "a/add", "a/gelu"), b=("b",))
    known = replace(survey.regions[0], layers=("a",))
    found = mixed(survey := replace(survey, regions=(known, survey.regions[1])), back(["a"]))
    assert str(found.steps[0]) == "int8-dynamic(exclude=[a])"
    assert parted(survey, found) == back({"a"})


@pytest.mark.parametrize("rest", ["int8-weights", "int8-weights(form=nbits, exclude=[x])"])
def test_weights_of_regions_are_stored_by_a_step_behind(rest: str) -> None:
    recipe = quantizers("smooth-quant(before=int8-dynamic)", "int8-dynamic")
    survey = surveyed(recipe, a=("a",), b=("b[0]",), c=("c",), d=("d",))
    step = parse(Quantizer, rest)
    parts = GivenBack(frozenset("a"), frozenset({"b", "c"}), bare(step))
    found = mixed(survey, replace(parts, step=step))
    last = 'int8-dynamic(exclude=[a, "b[[]0]", c])'
    assert [str(one) for one in found.steps] == [
        f"smooth-quant(before={last})",
        last,
        str(replace(bare(step), include=("b[[]0]", "c"))),
    ]
    assert found.name.endswith(f", 1 of 4 regions in float, 2 of 4 regions in {step.name()}")
    assert parted(survey, found) == parts
    assert mixable(found)
    assert parted(survey, Recipe("", found.steps[:2])) == back("abc")


def test_a_step_behind_that_takes_other_nodes_is_no_mixture() -> None:
    survey = surveyed(quantizers("int8-dynamic"), a=("a", "a2"), b=("b",))
    for first, last in (
        ("int8-dynamic(exclude=[a, a2])", "int8-weights(include=[a])"),
        ("int8-dynamic(exclude=[b])", "int8-weights(include=[z])"),
        ("int8-dynamic", "int8-weights(include=[b])"),
        ("int8-dynamic(exclude=[b])", "int8-weights(include=[b], exclude=[a])"),
        ("int8-dynamic(exclude=[b])", "int8-weights"),
    ):
        assert parted(survey, quantizers(first, last)) is None, (first, last)


def test_none_left_is_the_recipe_itself() -> None:
    survey = surveyed(quantizers("int8-static"), a=("a",))
    assert mixed(survey, back(())) == survey.plan.recipe
    assert parted(survey, survey.plan.recipe) == back(frozenset())


def test_preparing_steps_follow_the_step_they_prepare_for() -> None:
    recipe = quantizers(
        "smooth-quant(before=int8-dynamic)",
        "adaptive-rounding(before=int8-dynamic)",
        "int8-dynamic",
    )
    found = mixed(surveyed(recipe, a=("a",), b=("b",)), back(["b"]))
    last = "int8-dynamic(exclude=[b])"
    assert [str(step) for step in found.steps] == [
        f"smooth-quant(before={last})",
        f"adaptive-rounding(before={last})",
        last,
    ]


def test_what_is_meant_by_default_is_written_out_where_it_changes() -> None:
    found = mixed(surveyed(quantizers("bias-correction", "int8-static"), a=("a",)), back(["a"]))
    last = "int8-static(exclude=[a])"
    assert [str(step) for step in found.steps] == [f"bias-correction(before={last})", last]


def test_steps_for_another_step_stay() -> None:
    recipe = quantizers("adaptive-rounding(before=int8-static)", "int8-static", "int8-dynamic")
    found = mixed(surveyed(recipe, a=("a",)), back(["a"]))
    assert found.steps[:2] == recipe.steps[:2]
    assert str(found.steps[2]) == "int8-dynamic(exclude=[a])"


def test_another_recipe_is_no_mixture() -> None:
    survey = surveyed(quantizers("int8-dynamic"), a=("a", "a2"), b=("b",))
    for other in (
        "int8-dynamic(exclude=[a])",
        "int8-dynamic(exclude=[b, z])",
        "int8-dynamic(per_channel=false, exclude=[b])",
        "int8-static(exclude=[b])",
        "fp16",
    ):
        assert parted(survey, quantizers(other)) is None, other
    assert parted(survey, Recipe("as-is")) is None
    clean = Recipe("clean", (parse(Transform, "simplify"), *quantizers("int8-dynamic").steps))
    assert parted(survey, clean) is None


@pytest.mark.parametrize(
    ("spelled", "can"),
    [
        (("int8-static",), True),
        (("int4-weights",), True),
        (("int8-weights(fold=true)",), True),
        (("smooth-quant", "int8-static"), True),
        (("fp16",), True),
        (("requantize",), False),
        (("smooth-quant",), False),
        ((), False),
    ],
)
def test_what_decides_and_excludes_can_be_mixed(spelled: tuple[str, ...], can: bool) -> None:
    assert mixable(quantizers(*spelled)) is can


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@settings(deadline=None, max_examples=150)
@given(st.lists(NAMES, min_size=2, max_size=5, unique=True))
@example(["re:a", "/layer.0/MatMul, (2)", 'say "no"', "a[0]*?", "true", "\\", "ä\n"])
def test_every_name_comes_back_from_its_spelling(nodes: list[str]) -> None:
    recipe = quantizers("adaptive-rounding(before=int8-dynamic)", "int8-dynamic")
    survey = surveyed(recipe, one=tuple(nodes[:-1]), two=tuple(nodes[-1:]))
    found = mixed(survey, back(["one"]))
    read = tuple(parse(Quantizer, str(step)) for step in found.steps)
    assert read == found.steps
    steps: list[Step] = [codec.decode(Quantizer, codec.encode(step)) for step in found.steps]
    assert tuple(steps) == found.steps
    assert parted(survey, Recipe("whatever", read)) == back({"one"})
    assert getattr(read[-1], "exclude") == tuple(map(literally, nodes[:-1]))  # noqa: B009


def test_a_region_left_out_from_the_start_is_not_given_back() -> None:
    survey = surveyed(quantizers("int8-dynamic(exclude=[a])"), a=("a",), b=("b",))
    assert parted(survey, mixed(survey, back(["b"]))) == back({"b"})
