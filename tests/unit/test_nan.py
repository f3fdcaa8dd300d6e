"""NaN never scores well: not in metrics, and not where benchmarks and tests compare answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ortune.bundle.engine.golden import snr_db
from ortune.core.budget import Budget
from ortune.core.step import Transform
from ortune.core.trial import Verdict
from ortune.measurement.accuracy import judge_accuracy
from tests.unit import quantizing
from tests.unit.rewriting import model_of, transformed
from tests.unit.transforms.test_random_graphs import snr as of_random_graphs

GOOD = np.linspace(1, 2, 8).astype(np.float32)
BAD = np.where(np.arange(8) == 3, np.nan, GOOD).astype(np.float32)

Snr = Callable[[list[np.ndarray], list[np.ndarray]], float]
RATIOS: list[Snr] = [
    of_random_graphs,
    lambda one, two: min(quantizing.snr(a, b) for a, b in zip(one, two, strict=True)),
    lambda one, two: snr_db(dict(enumerate(one)), dict(enumerate(two))),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("place", [0, 1])
def test_no_ratio_of_decibels_takes_it_for_equal(ratio: Snr, place: int) -> None:
    answers = [GOOD, GOOD]
    answers[place] = BAD
    assert ratio([GOOD, GOOD], [GOOD, GOOD]) > 100
    assert ratio([GOOD, GOOD], answers) == -np.inf


class _Doubled(Transform):
    """Not what a rewrite may do."""

    def apply(self, model: object) -> int:
        (node,) = model.graph  # type: ignore[attr-defined]
        node.replace_input_with(1, node.inputs[0])
        return 1


def test_a_rewrite_is_compared_beside_it() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21]>
        agraph (float[4] x, float[4] y) => (float[4] z) { z = Add(x, y) }
        """
    feeds = {"x": np.array([1, 2, np.nan, 4], np.float32), "y": np.ones(4, np.float32)}
    with pytest.raises(AssertionError):
        transformed(model_of(text), _Doubled(), [feeds])


@pytest.mark.parametrize(
    "spelled",
    [
        "cosine>=-1",
        "snr>=-1000",
        "max-error<=1e9",
        "agreement>=0",
        "top1>=base-1",
        "top5>=-1",
        "score>=-9",
        "cosine(share=0)>=-1",
        "snr(share=0)>=-1000",
        "max-error(share=0)<=1e9",
    ],
)
@pytest.mark.parametrize("side", ["candidate", "baseline"])
def test_no_verdict_lets_it_pass(spelled: str, side: str) -> None:
    records = np.ones((100, 2))
    broken = records.copy()
    broken[7] = np.nan
    pair = (broken, records) if side == "candidate" else (records, broken)
    score = judge_accuracy(Budget.parse(spelled), *pair, exact=True, snr_db=200.0)
    assert score.verdict is Verdict.FAILS
    score = judge_accuracy(Budget.parse(spelled), *pair, proof=range(50, 100))
    assert score.verdict is Verdict.FAILS
