"""What is tried where static int8 fails the budget."""

import pytest

from ortune.core.facts import Facts
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe, Step, Transform
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.quantizers.int8_static import Int8Static

CNN = {"Conv": 49, "Gemm": 1}
TRANSFORMER = {"MatMul": 48, "Softmax": 6}


def rescues(ops: dict[str, int], step: Int8Static) -> list[tuple[Step, ...]]:
    return list(step.rescues(Facts(ops, sum(ops.values()), 1, 1, {}, 17, 8, (), ())))


def test_the_kit_in_front_of_convolutions() -> None:
    found = rescues(CNN, Int8Static())
    assert [[str(one) for one in steps[:-1]] for steps in found[:5]] == [
        ["adaptive-rounding"],
        ["cross-layer-equalization", "adaptive-rounding"],
        ["bias-correction"],
        ["cross-layer-equalization"],
        ["clip-weights"],
    ]
    assert all(steps[-1] == Int8Static() for steps in found[:5])
    observers = {steps[0].observer.name() for steps in found[5:]}  # type: ignore[union-attr]
    assert observers == {"percentile", "mse", "entropy"}


def test_smoothing_comes_first_for_matrix_products() -> None:
    step = Int8Static(smooth=0.75, split=4, exclude=("a",))
    found = rescues(TRANSFORMER, step)
    assert [s.name() for s in found[0]] == ["smooth-quant", "adaptive-rounding", "int8-static"]
    last = Int8Static(exclude=("a",))
    assert found[0][-1] == last
    assert found[0][1].before == last  # type: ignore[union-attr]


def test_without_smoothing_it_is_tried_first_and_with_it_never_left_out() -> None:
    plain, smooth = (
        rescues(TRANSFORMER, Int8Static()),
        rescues(TRANSFORMER, Int8Static(smooth=0.75)),
    )
    assert [s.name() for s in plain[0]] == ["smooth-quant", "int8-static"]
    kit = [steps for steps in smooth if len(steps) > 1]
    assert kit and all(steps[0].name() == "smooth-quant" and len(steps) == 3 for steps in kit)


@pytest.mark.parametrize("ops", [CNN, TRANSFORMER])
def test_every_rescue_is_another_recipe_that_can_be_spelled(ops: dict[str, int]) -> None:
    step = Int8Static(keep_first=3)
    found = rescues(ops, step)
    keys = {Recipe("", steps).key for steps in [(step,), *found]}
    assert len(keys) == len(found) + 1
    for one in {one for steps in found for one in steps}:
        assert (
            parse_plugin(Quantizer if isinstance(one, Quantizer) else Transform, str(one)) == one
        )


def test_what_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    names = catalog.list_plugins
    monkeypatch.setattr(
        catalog,
        "list_plugins",
        lambda base: [n for n in names(base) if n in ("mse", "clip-weights")],
    )
    assert [str(steps[0]) for steps in rescues(CNN, Int8Static())] == [
        "clip-weights",
        "int8-static(observer=mse)",
    ]


def test_convolutions_beside_products_can_keep_float_arithmetic() -> None:
    found = rescues({"Conv": 57, "MatMul": 13}, Int8Static())
    spelled = ["int8-static(ops=[MatMul, Gemm])", "int8-weights(fold=true)"]
    assert spelled in [[str(one) for one in steps] for steps in found]


def test_rounding_at_run_time_is_saved_by_what_is_soon_built_first() -> None:
    facts = Facts(TRANSFORMER, 66, 1, 1, {}, 17, 8, (), ())
    found = [" ".join(map(str, steps)) for steps in Int8Dynamic().rescues(facts)]
    assert found == [
        "int8-dynamic(leave_worst=2)",
        "adaptive-rounding(before=int8-dynamic) int8-dynamic",
        "smooth-quant(before=int8-dynamic) adaptive-rounding(before=int8-dynamic) int8-dynamic",
        "smooth-quant(before=int8-dynamic) int8-dynamic",
    ]
    assert not list(Int8Dynamic(leave_worst=2).rescues(facts))
    assert not list(Int8Dynamic(ops=("LSTM",)).rescues(facts))
