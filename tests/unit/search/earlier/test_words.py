"""Words and features of plans: stable, without names of the user's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.plugins.spelling import parse
from ortune.core.step import AS_IS, Quantizer, Recipe, Transform
from ortune.core.trial import Plan
from ortune.recipe.space import Space, Target
from ortune.search.earlier.tallies import WORDS, plain
from ortune.search.earlier.words import backend_words, expanded, features, kind, size, words
from ortune.workloads.latency import Latency


def facts(parameters: int = 5_000_000, **ops: int) -> Facts:
    return Facts(ops, sum(ops.values()), parameters, 4 * parameters, {}, 17, 8, (), ())


CONV = facts(Conv=20, Gemm=1, Relu=20)
PREPARED = "backend=cpu cpu.threads=1 step=clean step=cross-layer-equalization"
BERT = facts(MatMul=72, Softmax=12, Gemm=1)


def plan(steps: str, backend: str) -> Plan:
    found = [
        parse(Quantizer if one.startswith(("int", "clip")) else Transform, one)
        for one in steps.split()
    ]
    return Plan(Recipe("given", tuple(found)), parse(Cpu.__mro__[1], backend))  # type: ignore[type-abstract]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (CONV, "conv"),
        (BERT, "attention"),
        (facts(MatMul=4, Softmax=1), "matmul"),
        (facts(Conv=3, MatMul=3), "mixed"),
        (facts(Conv=3, LSTM=1), "recurrent"),
        (facts(Relu=3), "other"),
        (facts(QLinearConv=9), "quantized"),
    ],
)
def test_a_model_is_called_by_most_of_its_layers(given: Facts, found: str) -> None:
    assert kind(given) == found


@pytest.mark.parametrize(
    ("parameters", "found"),
    [(0, "small"), (999_999, "small"), (1_000_000, "medium"), (30_000_000, "large")],
)
def test_sizes_go_by_weights(parameters: int, found: str) -> None:
    assert size(facts(parameters)) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (plan("", "cpu"), "backend=cpu recipe=as-is"),
        (plan("fuse-gelu simplify", "openvino"), "backend=openvino(f32) recipe=clean"),
        (
            plan("simplify int8-static", "openvino(precision=bf16,hint=throughput)"),
            "backend=openvino(bf16) openvino.hint=throughput step=clean recipe=int8-static",
        ),
        (
            plan("cross-layer-equalization clip-weights int8-dynamic", "cpu(threads=1)"),
            f"{PREPARED} recipe=clip-weights recipe=int8-dynamic",
        ),
    ],
)
def test_words_say_what_a_plan_is(given: Plan, found: str) -> None:
    assert words(given, CONV) == ("model=conv", "size=medium", *found.split(" "))


def test_options_are_words_and_names_of_the_model_are_only_counted() -> None:
    step = 'int8-static(exclude=["/my/secret/node","b"],keep_first=1,observer=entropy,ops=[Conv])'
    found = words(plan(step.replace(" ", ""), 'cpu(affinity="2;3",disable=[SkipLayerNormFusion])'),
                  CONV)  # fmt: skip
    assert found[3:] == (
        "cpu.disable=[SkipLayerNormFusion]",
        "cpu.affinity",
        "recipe=int8-static",
        "int8-static.observer=entropy",
        "int8-static.ops=[Conv]",
        "int8-static.keep_first=1",
        "int8-static.exclude=2",
    )


def test_a_quantizer_inside_another_hides_no_names() -> None:
    inner = parse(Quantizer, 'requantize(step=int8-dynamic(exclude=["secret"]))')  # type: ignore[type-abstract]
    found = words(Plan(Recipe("x", (inner,)), Cpu()), CONV)
    assert found[3:] == (
        "recipe=requantize",
        "requantize.step=int8-dynamic",
        "requantize.step.exclude=1",
    )


def test_libraries_and_free_settings_stay_at_home() -> None:
    backend = Cpu(custom_ops=("/home/me/secret.so",), config=("session.x=/home/me",))
    assert backend_words(backend) == ("backend=cpu", "cpu.config=1")
    openvino = Openvino(config=("CACHE_DIR=/home/me",))
    assert backend_words(openvino) == ("backend=openvino(f32)", "openvino.config=1")


def test_behind_buckets_the_inner_backend_counts() -> None:
    inner = Openvino(precision="bf16", streams=2)
    found = Bucketed(threads=1, inner=inner, mask="mask", inputs=("ids",), lengths=(16, 32))
    assert backend_words(found) == (
        "backend=openvino(bf16)",
        "padding=cut",
        "openvino.threads=1",
        "openvino.streams=2",
    )


def test_features_are_words_and_what_may_behave_in_a_way_of_its_own() -> None:
    given = plan("simplify int8-dynamic", "cpu(disable=[SkipLayerNormFusion])")
    assert features(given, BERT) == (
        "backend=cpu",
        "cpu.disable=[SkipLayerNormFusion]",
        "step=clean",
        "recipe=int8-dynamic",
        "backend=cpu|recipe=int8-dynamic",
        "model=attention|backend=cpu",
        "model=attention|recipe=int8-dynamic",
        "model=attention|backend=cpu|recipe=int8-dynamic",
        "size=medium|recipe=int8-dynamic",
        "model=attention|cpu.disable=[SkipLayerNormFusion]",
        "recipe=int8-dynamic|cpu.disable=[SkipLayerNormFusion]",
    )
    assert features(given, BERT) == expanded(words(given, BERT))


@pytest.mark.parametrize(
    "ops",
    [
        {"Conv": 20, "Gemm": 1, "Add": 5},
        {"MatMul": 72, "Softmax": 12, "Gather": 3, "LayerNormalization": 12},
        {"LSTM": 2, "Conv": 3, "MatMul": 2},
    ],
)
def test_plans_of_a_search_are_told_apart_and_may_be_recorded(ops: dict[str, int]) -> None:
    given, every = facts(**ops), list[Plan]()
    flags = "avx2 avx512_vnni avx512_bf16 avx512_fp16 amx_bf16"
    offered = Capabilities(effective_cpus=2, instruction_sets=tuple(flags.split()))
    targets = [Target(one, offered, frozenset({"threads"})) for one in (Cpu(1), Openvino(1))]
    space = Space(given, targets, Latency(), Cpu(1))
    for target in targets:
        for backend in space.variants(target):
            every += [Plan(recipe, backend) for recipe in space.recipes(target, backend)]
    every += [rescue for one in every for rescue in space.rescues(one)]
    for one in (every[1], every[-1]):
        every += [plan for plans in space.neighbours(one).values() for plan in plans]
    found = {one.spelled: words(one, given) for one in every}
    assert len(found) > 40
    assert len({frozenset(expanded(said)) for said in found.values()}) == len(found)
    assert all(map(plain, {word for said in found.values() for word in said}))
    assert max(map(len, found.values())) <= WORDS


def test_what_a_recipe_is_called_is_no_feature() -> None:
    given = plan("simplify int8-static", "cpu")
    other = replace(given, recipe=replace(given.recipe, name="another"))
    assert features(given, CONV) == features(other, CONV)
    assert features(Plan(AS_IS, Cpu()), CONV)[1] == "recipe=as-is"
