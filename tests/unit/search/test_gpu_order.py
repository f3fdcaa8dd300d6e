"""What a search tries on a GPU, in the time that an H100 took for each: 60 s were not enough."""

from dataclasses import replace

import pytest
from tests.unit.search.test_adaptive import CAPABLE, trial, view

from ortune.backends.cpu import Cpu
from ortune.backends.cuda import Cuda
from ortune.core.facts import Facts
from ortune.core.step import AS_IS
from ortune.core.trial import Block, Burst, Interval, Measurement, Pair, Plan, Status, Trial
from ortune.measurement.workloads.latency import Latency
from ortune.search.adaptive import Adaptive
from ortune.search.expectation.priors import Durations
from ortune.search.recipe.space import SearchTarget, Space

CPU, CUDA = Cpu(), Cuda()
CNN = {"Conv": 53, "Relu": 49, "Add": 16, "Gemm": 1}
ENCODER = {"MatMul": 96, "Add": 120, "LayerNormalization": 25, "Softmax": 12, "Gelu": 12}
SHAPES = {
    "resnet50": (Facts(CNN, 121, 1, 102_000_000, {}, 17, 8, (), ()), 9.7, 0.28),
    "bert": (Facts(ENCODER, 440, 1, 438_000_000, {}, 18, 8, (), ()), 39.6, 0.095),
}
"""Facts of the model, ms of a run on 16 CPUs, and CUDA's latency over that, in float32."""


def started(shape: str) -> tuple[Space, Trial]:
    """Return the space of both backends and the original's trial."""
    facts, ms, _ = SHAPES[shape]
    targets = tuple(SearchTarget(one, CAPABLE, frozenset()) for one in (CPU, CUDA))
    burst = Burst((round(1e6 * ms),) * 3, (0.0,) * 3)
    taken = Measurement((Pair((Block(burst, burst),)),), 1, 1, 1)
    base = Trial(
        "base", Plan(AS_IS, CPU), "search", Status.OK, Interval(1, 1, 1),
        stage="baseline", measurement=taken, seconds=6.0,
    )  # fmt: skip
    return Space(facts, targets, Latency(), CPU), base


def measured(plan: Plan, on_cuda: float) -> float:
    """Return a plan's latency over the original's, by what the card's table says."""
    if not isinstance(plan.backend, Cuda):
        return 4.0 if plan.recipe.steps else 1.0
    half = 0.7 if "fp16" in str(plan.recipe) else 1.0
    replayed = 0.45 if plan.backend.cuda_graph else 1.0
    return on_cuda * half * replayed


@pytest.mark.parametrize("shape", SHAPES)
def test_half_precision_with_a_cuda_graph_is_found_within_a_minute(shape: str) -> None:
    space, base = started(shape)
    facts, _, on_cuda = SHAPES[shape]
    trials: dict[str, Trial] = {}
    left = 36.0  # of a minute: fresh pairs of the finalists took the rest
    while left > 0:
        now = replace(view(list(trials.values()), left), facts=facts, space=space)
        now = replace(now, trials=(base, *trials.values()))
        proposal = Adaptive().next(now)
        if proposal is None:
            break
        seconds = 5.0 + Durations(now).building_s(proposal.plan.recipe) * 0.5
        made = trial(proposal, measured(proposal.plan, on_cuda), seconds=seconds)
        trials.pop(made.key, None)
        trials[made.key], left = made, left - seconds
    found = [one.plan for one in trials.values() if isinstance(one.plan.backend, Cuda)]
    assert any("fp16" in str(plan.recipe) and plan.backend.cuda_graph for plan in found)  # type: ignore[attr-defined]
