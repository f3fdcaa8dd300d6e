"""A derived budget: nothing dead or swapped passes it, and good roundings do."""

import pytest
from benchmarks.accuracy.dead_outputs import (
    BFLOAT16,
    DEAD,
    DECODED,
    INT8,
    change_dead,
    change_outputs,
    judge,
    round_values,
)

from ortune.core.trial import Verdict


@pytest.mark.parametrize("name", DEAD)
def test_what_is_dead_or_swapped_fails(name: str) -> None:
    kind, change = DEAD[name]
    score, decibels = judge(kind, change_dead(kind, change))
    assert score.verdict is Verdict.FAILS
    # Halved confidence follows in every group: the bound on probabilities tells.
    assert decibels < (7 if name == "confidence, halved" else 6)


def test_the_verdict_names_the_group() -> None:
    score, _ = judge("map", change_dead(*DEAD["a quiet channel of a map"]))
    assert "place 3 of 4 along axis 1 of output 'mask' does not follow" in score.basis
    assert score.claim.endswith("and each group of outputs follows")


@pytest.mark.parametrize("kind", DECODED)
def test_good_roundings_pass(kind: str) -> None:
    for changed in (
        change_outputs(kind, round_values, BFLOAT16),
        change_outputs(kind, error=INT8),
    ):
        assert judge(kind, changed)[0].verdict is Verdict.PROVED
