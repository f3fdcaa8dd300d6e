"""Regions go back in an order, and through fields that exist, whatever nodes are called."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.quantizing import quantize
from tests.unit.search.mixed_precision.models import transformer
from tests.unit.search.mixed_precision.test_switched import convolutions

from ortune.backends.cpu import Cpu
from ortune.core.errors import Refused
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe, Step, Transform
from ortune.core.trial import Interval, Plan
from ortune.graph.io import names
from ortune.quantizers.common.nodes import escape_pattern
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.quantizers.int8_static import Int8Static
from ortune.search.mixed_precision.choice import (
    RegionCosts,
    can_mix,
    exclude_nodes,
    isolate_region,
    mix_recipe,
    parse_assignment,
)
from ortune.search.mixed_precision.grouping import find_regions
from ortune.search.mixed_precision.survey import RegionCost, SharedCost, Survey

NONE = Interval(0.0, 0.0, 0.0)


def quantizers(*spelled: str) -> Recipe:
    steps = tuple(parse_plugin(Quantizer, one) for one in spelled)
    return Recipe(" + ".join(spelled), steps)


def surveyed(recipe: Recipe, **regions: tuple[str, ...]) -> Survey:
    found = (
        RegionCost(name, nodes, "p", ("MatMul",), NONE, NONE) for name, nodes in regions.items()
    )
    return Survey("key", Plan(recipe, Cpu()), tuple(found), 0.1)


def test_nodes_join_what_is_excluded_already() -> None:
    recipe = quantizers("int8-dynamic(exclude=[head])")
    survey = surveyed(recipe, a=("a", "a/gelu"), b=("b",), c=("c[0]*",))
    found = mix_recipe(survey, {"c", "a"})
    assert found.name == "int8-dynamic(exclude=[head]), 2 of 3 regions in float"
    assert str(found.steps[0]) == 'int8-dynamic(exclude=[head, a, a/gelu, "c[[]0][*]"])'
    assert parse_assignment(survey, found) == {"a", "c"}


def test_a_region_goes_by_its_layers_where_they_are_known() -> None:
    survey = surveyed(quantizers("int8-dynamic"), a=("a", "a/add", "a/gelu"), b=("b",))
    known = replace(survey.regions[0], layers=("a",))
    found = mix_recipe(survey := replace(survey, regions=(known, survey.regions[1])), {"a"})
    assert str(found.steps[0]) == "int8-dynamic(exclude=[a])"
    assert parse_assignment(survey, found) == {"a"}


def test_none_left_is_the_recipe_itself() -> None:
    survey = surveyed(quantizers("int8-static"), a=("a",))
    assert mix_recipe(survey, ()) == survey.plan.recipe
    assert parse_assignment(survey, survey.plan.recipe) == frozenset()


def test_preparing_steps_follow_the_step_they_prepare_for() -> None:
    recipe = quantizers(
        "smooth-quant(before=int8-dynamic)",
        "adaptive-rounding(before=int8-dynamic)",
        "int8-dynamic",
    )
    found = mix_recipe(surveyed(recipe, a=("a",), b=("b",)), {"b"})
    last = "int8-dynamic(exclude=[b])"
    assert [str(step) for step in found.steps] == [
        f"smooth-quant(before={last})",
        f"adaptive-rounding(before={last})",
        last,
    ]


def test_what_is_meant_by_default_is_written_out_where_it_changes() -> None:
    found = mix_recipe(surveyed(quantizers("bias-correction", "int8-static"), a=("a",)), {"a"})
    last = "int8-static(exclude=[a])"
    assert [str(step) for step in found.steps] == [f"bias-correction(before={last})", last]


def test_steps_for_another_step_stay() -> None:
    recipe = quantizers("adaptive-rounding(before=int8-static)", "int8-static", "int8-dynamic")
    found = mix_recipe(surveyed(recipe, a=("a",)), {"a"})
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
        assert parse_assignment(survey, quantizers(other)) is None, other
    assert parse_assignment(survey, Recipe("as-is")) is None
    clean = Recipe(
        "clean", (parse_plugin(Transform, "simplify"), *quantizers("int8-dynamic").steps)
    )
    assert parse_assignment(survey, clean) is None


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
    assert can_mix(quantizers(*spelled)) is can


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@settings(deadline=None, max_examples=150)
@given(st.lists(NAMES, min_size=2, max_size=5, unique=True))
@example(["re:a", "/layer.0/MatMul, (2)", 'say "no"', "a[0]*?", "true", "\\", "ä\n"])
def test_every_name_comes_back_from_its_spelling(nodes: list[str]) -> None:
    recipe = quantizers("adaptive-rounding(before=int8-dynamic)", "int8-dynamic")
    survey = surveyed(recipe, one=tuple(nodes[:-1]), two=tuple(nodes[-1:]))
    found = mix_recipe(survey, {"one"})
    read = tuple(parse_plugin(Quantizer, str(step)) for step in found.steps)
    assert read == found.steps
    steps: list[Step] = [codec.decode(Quantizer, codec.encode(step)) for step in found.steps]
    assert tuple(steps) == found.steps
    assert parse_assignment(survey, Recipe("whatever", read)) == {"one"}
    assert getattr(read[-1], "exclude") == tuple(map(escape_pattern, nodes[:-1]))  # noqa: B009


def test_a_region_left_out_from_the_start_is_not_given_back() -> None:
    survey = surveyed(quantizers("int8-dynamic(exclude=[a])"), a=("a",), b=("b",))
    assert parse_assignment(survey, mix_recipe(survey, {"b"})) == {"b"}


# --- a step that leaves nodes out ----------------------------------------------------------------


def test_names_are_left_out_literally() -> None:
    model = transformer(1)
    names.make_names_unique(model)
    first, *_ = find_regions(model)
    step = exclude_nodes(Int8Dynamic(exclude=("MatMul_0",)), model, ["odd[1]", *first.layers])
    assert step.exclude == tuple(
        dict.fromkeys(["MatMul_0", escape_pattern("odd[1]"), *first.layers])
    )


def test_rules_by_place_are_written_out_as_names() -> None:
    model = convolutions()
    names.make_names_unique(model)
    one, two, three, head = find_regions(model)
    step = Int8Static(keep_first=1, min_side=8)
    found = exclude_nodes(step, model, [two.name])
    assert (found.keep_first, found.head) == (0, True)
    assert set(found.exclude) == {one.name, two.name, head.name}
    assert [layer.node.name for layer in found.select_layers(model.clone())] == [three.name]


def test_alone_takes_one_region_and_no_other() -> None:
    model = transformer(2)
    names.make_names_unique(model)
    found = find_regions(model)
    every = [name for region in found for name in region.layers]
    for region in found:
        step = isolate_region(Int8Dynamic(min_side=8), model, region.layers, every)
        assert quantize(model.clone(), step) == len(region.layers)


def test_a_step_without_names_is_refused() -> None:
    step = parse_plugin(Quantizer, "drop-pairs")
    with pytest.raises(Refused, match="leaves no node out by name"):
        exclude_nodes(step, transformer(1), [])


# --- the order -----------------------------------------------------------------------------------


def measured(*rows: tuple[str, float, float], shared: tuple[SharedCost, ...] = ()) -> RegionCosts:
    """Return costs of regions: name, loss, time saved."""
    found = tuple(
        RegionCost(n, (n,), n, ("MatMul",), Interval(a, a, a), Interval(t, t - 1e-4, t + 1e-4))
        for n, a, t in rows
    )
    return RegionCosts.from_survey(
        Survey("key", Plan(quantizers("int8-dynamic"), Cpu()), found, 1, shared=shared)
    )


def test_most_accuracy_for_its_time_comes_first() -> None:
    costs = measured(
        ("dear", 0.4, 0.4), ("cheap", 0.3, 0.1), ("slow", 0.0, -0.1), ("none", 0, 0.2)
    )
    assert costs.order_moves() == [("slow",), ("cheap",), ("dear",), ("none",)]
    assert costs.total_loss() == pytest.approx(0.7)
    assert costs.total_loss({"cheap", "slow"}) == pytest.approx(0.4)
    assert costs.time_cost({"cheap", "slow"}) == pytest.approx(0.0)


def test_neighbours_that_round_one_tensor_go_back_together() -> None:
    """Of EfficientNet-Lite0 two layers lost 0.26 and 0.32; one back brought nothing, both 0.34."""
    rows = ("a", 0.26, 0.1), ("b", 0.32, 0.1), ("c", 0.1, 0.1), ("d", 0.2, 0.1)
    apart = measured(*rows)
    assert apart.order_moves() == [("b",), ("a",), ("d",), ("c",)]
    shared = measured(*rows, shared=(SharedCost("a", "b", 0.24),))
    assert shared.order_moves()[:2] == [("d",), ("a", "b")]
    assert shared.total_loss() == pytest.approx(0.64)
    assert shared.total_loss({"a"}) == pytest.approx(0.62), (
        "the other still rounds what they share"
    )
    assert shared.total_loss({"a", "b"}) == pytest.approx(0.3)


def test_what_is_left_of_a_chain_counts_once_its_neighbour_is_back() -> None:
    chain = SharedCost("a", "b", 0.3), SharedCost("b", "c", 0.2)
    costs = measured(("a", 0.3, 0.1), ("b", 0.5, 0.1), ("c", 0.2, 0.1), shared=chain)
    assert costs.order_moves() == [("a", "b"), ("c",)]
    assert costs.total_loss() == pytest.approx(0.5)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-0.1, 1)), min_size=1, max_size=8), st.data())
def test_every_region_goes_back_once_and_losses_only_fall(
    rows: list[tuple[float, float]], data: st.DataObject
) -> None:
    names_of = [f"r{at}" for at in range(len(rows))]
    pairs = tuple(
        SharedCost(one, two, data.draw(st.floats(0, 1)) * min(rows[at][0], rows[at + 1][0]) / 2)
        for at, (one, two) in enumerate(pairwise(names_of))
    )
    costs = measured(*((n, *row) for n, row in zip(names_of, rows, strict=True)), shared=pairs)
    order = costs.order_moves()
    assert sorted(name for move in order for name in move) == sorted(costs.losses)
    back: set[str] = set()
    losses = [costs.total_loss(back := back | {*move}) for move in order]
    assert all(one >= two - 1e-9 for one, two in pairwise(losses))
    assert losses[-1:] in ([], [pytest.approx(0.0, abs=1e-9)])


def test_what_was_not_measured_and_what_makes_no_difference_have_no_place() -> None:
    nothing = measured(("a", 0.3, 0.1), ("late", float("nan"), 0.1), ("own", 0.0, 0.0))
    assert nothing.order_moves() == [("a",)]
    assert nothing.unmeasured == {"late"}
