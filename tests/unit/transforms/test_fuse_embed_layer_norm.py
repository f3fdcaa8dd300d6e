"""Embeddings and their norm as one operator, compared on the CPU provider's kernel."""

import numpy as np
import pytest
from tests.unit.rewriting import left_alone, ops, transformed

from ortune.backends.cpu import Cpu
from ortune.core.capabilities import Capabilities
from ortune.transforms.fuse_embed_layer_norm import FuseEmbedLayerNorm

STEP = FuseEmbedLayerNorm()


def feeds(batch: int, length: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "ids": generator.integers(0, 6, (batch, length)),
        "kinds": generator.integers(0, 2, (batch, length)),
        "places": np.arange(length)[None].astype(np.int64),
    }


def numbers(count: int) -> str:
    return ", ".join(str(round(float(np.sin(i)), 3)) for i in range(count))


def text(
    body: str, *, places: str = "1, s", norm: str = "LayerNormalization(t, scale, shift)"
) -> str:
    return f"""<ir_version: 10, opset_import: ["": 20]>
        g (int64[b, s] ids, int64[b, s] kinds, int64[{places}] places) => (float[b, s, 4] y)
        <float[6, 4] words = {{{numbers(24)}}}, float[5, 4] position = {{{numbers(20)}}},
         float[2, 4] segment = {{{numbers(8)}}}, float[4] scale = {{1, 2, 3, 4}},
         float[4] shift = {{4, 3, 2, 1}}> {{
        w = Gather(words, ids) k = Gather(segment, kinds) p = Gather(position, places)
        {body} y = {norm} }}"""


@pytest.mark.parametrize(
    "body", ["a = Add(w, k) t = Add(a, p)", "a = Add(p, w) t = Add(k, a)", "t = Add(w, p)"]
)
@pytest.mark.parametrize("places", ["1, s", "1, d"])
def test_orders(body: str, places: str) -> None:
    source = text(body, places=places)
    given = [feeds(2, 3), feeds(1, 5)]
    model, count = transformed(source, STEP, given, tolerance=1e-5, may_grow=True)
    assert count == 1 and ops(model)["EmbedLayerNormalization"] == 1
    assert set(ops(model)) == {"EmbedLayerNormalization", "Cast"}


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (text("t = Add(w, p)", norm="LayerNormalization(t, scale)"), "no shift"),
        (text("t = Add(w, p)", places="c, s"), "fit each other"),
    ],
)
def test_refusals_have_a_reason(source: str, why: str) -> None:
    left_alone(source, STEP, why)


def test_other_summands_are_left_alone() -> None:
    left_alone(text("n = Neg(p) t = Add(w, n)"), STEP)
    assert not STEP.suits(Cpu(), Capabilities())
