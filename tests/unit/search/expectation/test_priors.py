"""What is expected before the first trial."""

import math
from dataclasses import replace

import pytest
from tests.unit.search.test_adaptive import BASE, CPU, FACTS, OPENVINO, SPACE, view

from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe, Step
from ortune.core.trial import Block, Burst, Interval, Measurement, Pair, Plan, Score, Verdict
from ortune.quantizers.bias_correction import BiasCorrection
from ortune.quantizers.clip_weights import ClipWeights
from ortune.quantizers.int8_static import Int8Static
from ortune.quantizers.smooth_quant import SmoothQuant
from ortune.search.expectation.expectations import Expectations
from ortune.search.expectation.surrogate import Normal
from ortune.search.policy import View
from ortune.transforms.cross_layer_equalization import CrossLayerEqualization

MS = 1_000_000


def timed(ms: float, weight_bytes: int) -> View:
    """A view of a network of that many bytes whose original takes so long."""
    burst = Burst((round(ms * MS),) * 3, (0.0,) * 3)
    taken = Measurement((Pair((Block(burst, burst),)),), MS, MS, 1)
    facts = replace(FACTS, weight_bytes=weight_bytes)
    return replace(view(), facts=facts, trials=(replace(BASE, measurement=taken),))


def expected(asked: View, steps: str, backend: Backend = CPU) -> Normal:
    made = tuple(parse_plugin(Quantizer, one) for one in steps.split())
    recipe = Recipe(steps, made) if made else AS_IS
    return Expectations(asked).estimate_plans([Plan(recipe, backend)])[0].latency


def test_a_network_that_reads_weights_all_the_time_is_as_fast_as_they_are_small() -> None:
    reads, computes = timed(20.0, 367_000_000), timed(169.0, 436_000_000)
    half = timed(49.0, 367_000_000)
    of = [expected(one, "int4-weights").mean for one in (reads, half, computes)]
    assert math.log(0.05) < of[0] < of[1] - 0.3 and of[1] < of[2] < 0
    assert of[0] < expected(reads, "int8-weights").mean < math.log(0.5)


def test_dynamic_ranges_behind_static_ones_bring_what_recurrent_layers_take() -> None:
    """Alone they brought a voice detector nothing, and behind static ranges a tenth."""
    made = replace(view(), by_operator={"Conv": 0.5, "LSTM": 0.4})
    static, joined = (expected(made, one) for one in ("int8-static", "int8-static int8-dynamic"))
    gain = joined.mean - static.mean
    assert gain == pytest.approx(math.log(1 - 0.4 + 0.4 / 3.0), rel=0.3)
    bare = replace(view(), by_operator={"Conv": 0.9})
    static, joined = (expected(bare, one) for one in ("int8-static", "int8-static int8-dynamic"))
    assert joined.mean == pytest.approx(static.mean, abs=0.05)


KIT = (BiasCorrection(), ClipWeights(), SmoothQuant(), CrossLayerEqualization())


@pytest.mark.parametrize("kit", KIT, ids=lambda one: one.name())
def test_a_step_of_the_kit_takes_half_as_much_off_the_strain_of_decibels(kit: Step) -> None:
    """What it takes of the error is power, and that strain is of an amplitude."""
    steps: tuple[tuple[Step, ...], ...] = ((Int8Static(),), (kit, Int8Static()))

    def brought(budget: str) -> tuple[float, float]:
        plans = [Plan(Recipe("", made), CPU) for made in steps]
        asked = replace(view(), budget=Budget.parse(budget))
        alone, after = (
            found.log_budget_utilization for found in Expectations(asked).estimate_plans(plans)
        )
        return after.mean - alone.mean, math.sqrt(after.sd**2 - alone.sd**2)

    power, amplitude = brought("cosine>=0.99"), brought("snr>=30")
    assert power[0] < 0 or kit.name() not in ("smooth-quant", "bias-correction")
    assert amplitude == pytest.approx([part / 2 for part in power], rel=0.2)


def test_without_a_measurement_products_alone_count() -> None:
    bare = expected(view(), "int4-weights").mean
    assert bare == pytest.approx(expected(timed(10_000.0, 1), "int4-weights").mean)
    assert 0.6 < math.exp(bare) < 1


@pytest.mark.parametrize("backend", [CPU, OPENVINO])
def test_a_setting_around_a_plan_is_expected_to_bring_nothing(backend: Backend) -> None:
    name = "arena=False" if backend is CPU else "streams=1"
    field, _, value = name.partition("=")
    other = replace(backend, **{field: value != "False" and int(value)})
    plain, changed = expected(view(), "", backend), expected(view(), "", other)
    assert abs(changed.mean - plain.mean) < 0.03
    assert math.sqrt(changed.sd**2 - plain.sd**2) < 0.05


def test_on_several_threads_settings_are_less_known() -> None:
    several = tuple(replace(t, backend=replace(t.backend, threads=4)) for t in SPACE.targets)
    asked = view(space=replace(SPACE, targets=several))
    base = replace(OPENVINO, threads=4)
    plain, changed = expected(asked, "", base), expected(asked, "", replace(base, streams=2))
    assert math.sqrt(changed.sd**2 - plain.sd**2) > 0.055
    assert changed.mean == pytest.approx(plain.mean)


def test_a_fusion_that_is_off_in_a_variant_may_bring_much() -> None:
    variant = replace(CPU, disable=("SkipLayerNormFusion",))
    other = replace(CPU, disable=("MatMulScaleFusion",))
    plain = expected(view(), "").sd
    assert math.sqrt(expected(view(), "", variant).sd ** 2 - plain**2) > 0.055
    assert math.sqrt(expected(view(), "", other).sd ** 2 - plain**2) < 0.05


def test_a_fast_mix_speaks_for_its_first_quantizer_alone() -> None:
    """Gains of two quantizers do not add up: a layer is quantized once."""
    reads = timed(20.0, 367_000_000)
    steps = [parse_plugin(Quantizer, one) for one in ("int4-weights(head=false)", "int8-dynamic")]
    mix = Recipe("mix", tuple(steps))
    first = reads.trials[0]
    fast = replace(
        first, key="mix", plan=Plan(mix, CPU), ratio=Interval(0.2, 0.19, 0.21), stage="search"
    )
    asked = replace(reads, trials=(first, fast))
    alone = expected(asked, "int4-weights(block=128)")
    assert math.exp(alone.mean) < 0.28
    assert alone.probability_below(math.log(0.18)) > 0.2


def test_tables_are_not_read() -> None:
    reads = timed(20.0, 367_000_000)
    half = replace(reads, facts=replace(reads.facts, table_bytes=183_500_000))
    assert math.exp(expected(half, "int4-weights").mean) > 0.4


def test_a_hint_does_not_read_weights_faster() -> None:
    bf16 = replace(OPENVINO, precision="bf16")
    reads, computes = timed(20.0, 367_000_000), timed(2000.0, 367_000_000)
    plain, hinted = (expected(reads, "int4-weights", one).mean for one in (OPENVINO, bf16))
    assert hinted == pytest.approx(plain, abs=0.15)
    plain, hinted = (expected(computes, "int4-weights", one).mean for one in (OPENVINO, bf16))
    assert hinted - plain == pytest.approx(expected(reads, "", bf16).mean, abs=0.15)


def test_what_packed_weights_bring_on_one_backend_says_little_of_another() -> None:
    reads = timed(20.0, 367_000_000)
    recipe = Recipe("int4-weights", (parse_plugin(Quantizer, "int4-weights"),))
    first = reads.trials[0]
    slow = replace(
        first, key="s", plan=Plan(recipe, OPENVINO), ratio=Interval(0.65, 0.6, 0.7), stage="search"
    )
    asked = replace(reads, trials=(first, slow))
    assert math.exp(expected(asked, "int4-weights", OPENVINO).mean) == pytest.approx(
        0.65, abs=0.03
    )
    assert math.exp(expected(asked, "int4-weights").mean) < 0.3


def test_integers_under_a_hint_for_half_floats_are_feared_and_measured_all_the_same() -> None:
    found = expected(view(), "int8-static", replace(OPENVINO, precision="f16"))
    assert found.mean > expected(view(), "int8-static", OPENVINO).mean + 1
    assert found.probability_below(math.log(0.5)) > 0.02


def test_losses_of_a_mix_speak_of_its_first_quantizer() -> None:
    """A mix that keeps the budget easily makes what it is mostly made of likelier."""
    steps = tuple(
        parse_plugin(Quantizer, one) for one in ("int4-weights(head=false)", "int8-dynamic")
    )
    first = view().trials[0]
    score = Score("cosine", 0.998, 1.0, 0.998, 1.0, 32, Verdict.PROVED)
    mixed = replace(
        first, key="mix", plan=Plan(Recipe("mix", steps), CPU), ratio=Interval(0.2, 0.19, 0.21),
        stage="search", scores=(score,),
    )  # fmt: skip
    asked, plain = replace(view(), trials=(first, mixed)), Plan(Recipe("n", steps[:1]), CPU)
    before, after = (Expectations(one).estimate_plans([plain])[0].keeps for one in (view(), asked))
    assert after > before + 0.2
