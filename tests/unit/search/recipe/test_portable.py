"""What --portable leaves out: plans that are bound to the CPU they were found on."""

from dataclasses import replace

import pytest

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadSettings
from ortune.core.facts import Facts
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe, Step, Transform
from ortune.core.trial import Plan
from ortune.measurement.workloads.latency import Latency
from ortune.search.optimize import run
from ortune.search.recipe.space import SearchTarget, Space, list_extension_plans
from ortune.search.request import Optimize

HERE = Capabilities(
    effective_cpus=4,
    usable_cpus=(0, 1, 2, 3),
    instruction_sets=("avx512_vnni", "avx512_bf16", "avx512_fp16"),
    machine={"system": "Linux x86_64"},
)
FACTS = Facts({"Conv": 4, "MatMul": 2, "LSTM": 1}, 7, 100, 400, {"float32": 400}, 17, 8, (), ())


@pytest.mark.parametrize(
    ("backend", "portable"),
    [
        (Cpu(), True),
        (Cpu(threads=3), True),
        (Cpu(affinity="2", threads=2), False),
        (Cpu(parallel=True, inter_threads=1), True),
        (Cpu(parallel=True, inter_threads=2), False),
        (Openvino(), True),
        (Openvino(precision="f16"), False),
        (Openvino(precision="bf16"), False),
        (Openvino(pinning="off"), True),
        (Openvino(pinning="on"), False),
        (Openvino(streams=1), True),
        (Openvino(streams=2), False),
        (Openvino(hyper_threading="off"), False),
        (Openvino(cores="performance"), False),
        (Bucketed(inner=Openvino()), True),
        (Bucketed(inner=Openvino(precision="bf16")), False),
    ],
)
def test_backends(backend: Backend, portable: bool) -> None:
    assert backend.portable is portable


@pytest.mark.parametrize(
    ("step", "made"),
    [
        ("int8-static", "int8-static(reduce_range=true)"),
        ("int8-static(activations=s8)", ""),
        ("int8-static(weights=u8)", ""),
        ("int8-static(reduce_range=true)", ""),
        (
            "int8-static(target=openvino, activations=s8)",
            "int8-static(target=openvino, activations=s8, reduce_range=true)",
        ),
        ("int8-dynamic", "int8-dynamic(reduce_range=true)"),
        ("int8-dynamic(weights=u8)", ""),
        ("int8-weights", ""),
        ("requantize", "requantize(step=int8-static(reduce_range=true))"),
    ],
)
def test_integer_layers_that_saturate_without_vnni_take_seven_bits(step: str, made: str) -> None:
    found = parse_plugin(Quantizer, step)
    assert found.portable is (not made)
    if made:
        assert found.made_portable() == parse_plugin(Quantizer, made)
        assert found.made_portable().portable


class Bound(type(parse_plugin(Quantizer, "fp16"))):  # type: ignore[misc]
    """A step that no settings make portable."""

    portable = False


def test_a_recipe_leaves_out_bound_transforms_and_is_none_with_a_bound_quantizer() -> None:
    simplify, moved = parse_plugin(Transform, "simplify"), parse_plugin(Transform, "u8s8")
    static = parse_plugin(Quantizer, "int8-static")
    found = Recipe("int8-static", (simplify, moved, static)).made_portable()
    assert found.name == "int8-static(reduce_range=true)"
    assert found.steps == (simplify, static.made_portable())
    assert AS_IS.made_portable() == AS_IS
    assert Recipe("x", (simplify, Bound())).made_portable() is None


def space(target: SearchTarget) -> Space:
    return Space(FACTS, [target], Latency(), Cpu())


@pytest.mark.parametrize("backend", [Cpu(), Openvino()])
def test_a_portable_space_offers_portable_plans_alone_and_some(backend: Backend) -> None:
    target = SearchTarget(backend, HERE, portable=True)
    made = space(target)
    variants = made.list_variants(target)
    assert variants and all(one.portable and one.threads <= 1 for one in variants)
    assert len(variants) <= len(made.list_variants(replace(target, portable=False)))
    for variant in variants:
        offered = list(made.list_recipes(target, variant))
        assert len({one.key for one in offered}) == len(offered)
        assert any(one.lossy for one in offered)
        assert all(step.portable for one in offered for step in one.steps)
    around = made.list_neighbours(Plan(AS_IS, variants[0]))
    plans = [plan for some in around.values() for plan in some]
    assert plans and all(p.backend.portable and p.backend.threads <= 1 for p in plans)


def test_without_it_the_space_is_as_before() -> None:
    target = SearchTarget(Openvino(), HERE)
    made = space(target)
    assert any(not one.portable for one in made.list_variants(target))
    offered = list(made.list_recipes(target, Openvino()))
    assert any(not step.portable for one in offered for step in one.steps)


def test_threads_that_the_user_pins_stay() -> None:
    target = SearchTarget(Cpu(threads=3), HERE, frozenset({"threads"}), portable=True)
    assert {one.threads for one in space(target).list_variants(target)} == {3}


def test_pins_that_are_bound_to_this_machine_are_refused() -> None:
    asked = Optimize("m.onnx", on='cpu(threads=2, affinity="2")', portable=True)
    with pytest.raises(BadSettings, match="is bound to this machine's CPU") as error:
        run(asked)
    assert "--portable" in error.value.fix


# What follows from a plan that holds: the same with more layers in integers.


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
