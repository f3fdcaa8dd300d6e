"""A step that leaves regions in float leaves what it left before, and nothing else."""

from __future__ import annotations

import pytest
from tests.unit.quantizing import quantize
from tests.unit.regions.models import transformer
from tests.unit.regions.test_switched import convolutions

from ortune.core.errors import Refused
from ortune.core.plugins.spelling import parse
from ortune.core.step import Quantizer, Step, Transform
from ortune.model.io import names
from ortune.quantization.node_filter import literally
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.quantizers.int8_static import Int8Static
from ortune.regions.forms import weighted
from ortune.regions.leaving import alone, in_float, leaving, without


def test_names_are_left_out_literally() -> None:
    model = transformer(1)
    names.unique(model)
    first, *_ = weighted(model)
    step = leaving(Int8Dynamic(exclude=("MatMul_0",)), model, ["odd[1]", *first.layers])
    assert step.exclude == tuple(dict.fromkeys(["MatMul_0", literally("odd[1]"), *first.layers]))


def test_rules_by_place_are_written_out_as_names() -> None:
    model = convolutions()
    names.unique(model)
    one, two, three, head = weighted(model)
    step = Int8Static(keep_first=1, min_side=8)
    found = leaving(step, model, [two.name])
    assert (found.keep_first, found.head) == (0, True)
    assert set(found.exclude) == {one.name, two.name, head.name}
    assert [layer.node.name for layer in found.chosen(model.clone())] == [three.name]


def test_alone_takes_one_region_and_no_other() -> None:
    model = transformer(2)
    names.unique(model)
    found = weighted(model)
    every = [name for region in found for name in region.layers]
    for region in found:
        step = alone(Int8Dynamic(min_side=8), model, region.layers, every)
        assert quantize(model.clone(), step) == len(region.layers)


def test_a_step_without_names_is_refused() -> None:
    step = parse(Quantizer, "drop-pairs")
    with pytest.raises(Refused, match="leaves no node out by name"):
        leaving(step, transformer(1), [])


def test_preparing_steps_follow_the_one_that_decides() -> None:
    model = transformer(1)
    names.unique(model)
    last, first = Int8Static(), parse(Transform, "simplify")
    rounding = parse(Quantizer, "adaptive-rounding")
    steps: tuple[Step, ...] = (first, rounding, last)
    found = without(steps, model, ["MatMul_0"])
    assert found[0] == first
    assert found[2] == leaving(last, model, ["MatMul_0"])
    assert getattr(found[1], "before", None) == found[2]
    assert in_float(steps) == (first,)


def test_a_recipe_that_decides_nothing_is_refused() -> None:
    with pytest.raises(Refused, match="decides"):
        without((parse(Transform, "simplify"),), transformer(1), [])
