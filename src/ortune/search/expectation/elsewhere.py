"""What plans brought other models on this kind of machine, as records for this one."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ortune.core.facts import Facts
from ortune.core.hardware.paid import Paid, PlanTally
from ortune.search.expectation import fitted
from ortune.search.expectation.priors import LAYERS
from ortune.search.expectation.surrogate import Observed

_ATTENTION = ("Attention", "com.microsoft::Attention", "com.microsoft::MultiHeadAttention")
_MOSTLY = 2 / 3
"""Share of the layers from which they name the model."""
_SIZES = (("small", 1_000_000), ("medium", 30_000_000))
"""Size -> weights below which a model has it."""


def elsewhere(paid: Paid, facts: Facts) -> Iterator[Observed]:
    """Yield what earlier searches measured of plans, for a model of these facts.

    Other models deviate from this one in what a hint and a quantizer bring them, the more so
    where their kind or size is another: those parts are shared by all that was recorded of them,
    so that many plans of one search count little more than one, and are the smaller the more
    searches there were.
    """
    own, known = model_kind(facts), fitted.load()
    strangeness = known.numbers["strange kind"], known.numbers["strange size"]
    noise = math.hypot(known.numbers["noise of a pair"], known.part("latency", "plan:").sd)
    for one in paid.tallies:
        strange = (sd for sd, a, b in zip(strangeness, own, one.model, strict=True) if a != b)
        apart = math.hypot(_deviation(one), *strange) / known.part("latency", "elsewhere:").sd
        shared = (name for name in one.features if name.startswith(("hint:", "family:")))
        deviating = {f"elsewhere:{name}": apart for name in shared}
        yield Observed({**one.features, **deviating}, one.mean, noise)


def _deviation(tally: PlanTally) -> float:
    """Return how far the next model's log-ratio may lie from the mean: one standard deviation.

    The spread that was seen is weighed with the usual one; the mean is known from a few only.
    """
    count, known = tally.searches, fitted.load()
    usual, weight = known.numbers["between models"], known.levels["usual spread"]
    spread = (weight * usual**2 + tally.squares) / (weight + count - 1)
    return math.sqrt(spread * (1 + 1 / count))


def model_kind(facts: Facts) -> tuple[str, str]:
    """Return what most of a model's layers are, and its size."""
    found = (name for name, most in _SIZES if facts.parameters < most)
    return _kind(facts), next(found, "large")


def _kind(facts: Facts) -> str:
    """Return what most of a model's layers are.

    One of ``quantized`` (it came with integer arithmetic), ``recurrent``, ``conv``, ``attention``,
    ``matmul``, ``mixed`` and ``other``.
    """
    if facts.quantized:
        return "quantized"
    if facts.has(*LAYERS["recurrent"]):
        return "recurrent"
    convolutions, products = (
        sum(facts.ops.get(op, 0) for op in LAYERS[name]) for name in ("conv", "product")
    )
    layers = convolutions + products
    if layers and convolutions >= _MOSTLY * layers:
        return "conv"
    attention = facts.has(*_ATTENTION) or facts.ops.get("Softmax", 0) > 1
    if attention and products > convolutions:
        return "attention"
    if layers and products >= _MOSTLY * layers:
        return "matmul"
    return "mixed" if layers else "other"
