"""Scores of models of texts: ranks, vectors of sentences, F1."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ortune.core.budget import Budget
from ortune.core.errors import BadData
from ortune.measurement.accuracy import judge_accuracy
from ortune.metrics.f1 import F1
from ortune.metrics.perplexity import Perplexity
from ortune.metrics.sentence_cosine import SentenceCosine
from ortune.metrics.spearman import Spearman
from ortune.metrics.wer import Wer, collapse_path, count_edits

RNG = np.random.default_rng(0)


def test_ranks_are_scipys_with_ties() -> None:
    pairs = np.column_stack([RNG.integers(0, 9, 60), RNG.integers(0, 5, 60)]).astype(float)
    assert Spearman().aggregate(pairs) == pytest.approx(stats.spearmanr(*pairs.T)[0])
    assert Spearman().aggregate(np.ones((4, 2))) == 0
    turned = np.column_stack([-pairs[:, 0], pairs[:, 1], pairs[:, 0]])
    assert Spearman().aggregate_base(turned) == Spearman().aggregate(pairs)
    assert np.isnan(Spearman().aggregate(np.array([[np.nan, 1.0], [1.0, 2.0]])))


def test_a_pair_is_the_cosine_of_its_pooled_rows() -> None:
    hidden = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    mask = np.array([[1, 1, 1], [1, 1, 0]])
    first, second = hidden[0].mean(0), hidden[1, :2].mean(0)
    wanted = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    side, inputs = {"last_hidden_state": hidden}, {"attention_mask": mask}
    expected = pytest.approx([wanted, 0.5, wanted])
    assert Spearman().record_with(side, side, 0.5, inputs) == expected
    changed = {"last_hidden_state": hidden.copy()}
    changed["last_hidden_state"][1, 2] = 1e6
    assert Spearman().record_with(side, changed, 0.5, inputs) == expected
    assert SentenceCosine().record_with(side, changed, None, inputs) == pytest.approx(1)
    for pooling in ("last", "max"):
        score = SentenceCosine(pooling=pooling).record_with(side, changed, None, inputs)
        assert score == pytest.approx(1)
    assert SentenceCosine().record_with(side, changed, None, {}) < 0.9
    assert SentenceCosine(pooling="cls").record_with(
        side, {"last_hidden_state": -hidden}, None, inputs
    ) == pytest.approx(-1)


def test_one_number_is_ranked_too() -> None:
    side = {"logits": np.array([[2.5]], np.float32)}
    assert Spearman().record_with(side, side, 4, {}) == (2.5, 4.0, 2.5)
    other = {"logits": np.array([[1.5]], np.float32)}
    assert Spearman().record_with(side, other, 4, {}) == (1.5, 4.0, 2.5)
    with pytest.raises(BadData, match="neither two sentences"):
        Spearman().record({"x": np.ones((3, 4))}, {"x": np.ones((3, 4))}, 1)
    with pytest.raises(BadData, match="is no number"):
        Spearman().record(side, side, "good")


def test_a_rank_correlation_is_likely_at_best() -> None:
    numbers = RNG.normal(size=300)
    base = np.column_stack([numbers + RNG.normal(size=300), numbers])
    budget = Budget.parse("spearman>=base-0.01")
    same = judge_accuracy(budget, base, base)
    assert (same.verdict, same.needed) == ("likely", None)
    worse = np.column_stack([base[:, 0] + RNG.normal(size=300), base[:, 1]])
    assert judge_accuracy(budget, worse, base).verdict == "fails"


def test_f1_is_the_textbooks() -> None:
    labels = np.array([0, 1, 2, 1, 0, 2, -100, 1])
    logits = np.eye(3, dtype=np.float32)[[0, 1, 1, 1, 2, 2, 0, 0]][None]
    side = {"logits": logits}
    rows = F1().records([side], [side], [labels.tolist()])
    # Of classes 1 and 2: hits 2 and 1, decided 3 and 2, labelled 3 and 2.
    assert F1(without=0).aggregate(rows) == pytest.approx(2 * 3 / 10)
    # Class 0: 1 hit, 2 decided, 2 labelled.
    assert F1(average="macro").aggregate(rows) == pytest.approx((1 / 2 + 2 / 3 + 1 / 2) / 3)
    with pytest.raises(BadData, match="wrong labels"):
        F1().record(side, side, [1, 2])
    empty = F1(without=0).records([side], [{"logits": -logits * 0}], [[-100] * 8])
    assert F1(without=0).each(empty).tolist() == [1.0]


def test_perplexity_is_that_of_all_next_tokens_together() -> None:
    logits = RNG.normal(size=(2, 1, 4, 7)).astype(np.float32)
    labels = np.array([[1, 2, 3, -100], [6, -100, -100, -100]])
    metric = Perplexity()
    sides = [{"logits": row, "present.0.key": row} for row in logits]
    records = metric.records(sides, sides, labels.tolist())
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = [shares[0, 0, 0, 1], shares[0, 0, 1, 2], shares[0, 0, 2, 3], shares[1, 0, 0, 6]]
    wanted = np.exp(-np.mean(np.log(chosen)))
    assert metric.aggregate(records) == pytest.approx(wanted, rel=1e-5)
    flat = [{"logits": np.zeros_like(row)} for row in logits]
    flattened = metric.records(sides, flat, labels.tolist())
    assert metric.aggregate(flattened) == pytest.approx(7)
    assert metric.aggregate_base(flattened) == pytest.approx(wanted, rel=1e-5)
    assert metric.each(flattened) == pytest.approx([7, 7])
    nothing = [{"logits": np.full_like(row, np.nan)} for row in logits]
    broken = metric.records(sides, nothing, labels.tolist())
    assert np.isnan(metric.aggregate(broken))
    with pytest.raises(BadData, match="Got 3, expected 4"):
        metric.record(sides[0], sides[0], [1, 2, 3])


def test_a_perplexity_is_likely_at_best() -> None:
    surprise = RNG.uniform(1, 2, 60)
    records = np.column_stack([surprise + 0.001, np.ones(60), surprise])
    base = np.column_stack([surprise, np.ones(60), surprise])
    budget = Budget.parse("perplexity<=base+0.5")
    assert judge_accuracy(budget, records, base).verdict == "likely"
    records[:, 0] += 1
    assert judge_accuracy(budget, records, base).verdict == "fails"


def spell(*path: int) -> dict[str, np.ndarray]:
    return {"logits": np.eye(5, dtype=np.float32)[None, list(path)]}


def test_equal_tokens_side_by_side_are_one_and_blanks_are_none() -> None:
    assert collapse_path(spell(0, 1, 1, 0, 1, 2, 2, 0)["logits"], 0) == [1, 1, 2]
    assert collapse_path(spell(0, 0)["logits"], 0) == []


@pytest.mark.parametrize(
    ("first", "second", "edits"),
    [("", "", 0), ("", "ab", 2), ("abc", "", 3), ("kitten", "sitting", 3), ("abcd", "bcda", 2)],
)
def test_edits(first: str, second: str, edits: int) -> None:
    assert count_edits(first, second) == count_edits(second, first) == edits


def test_words_and_tokens_that_are_wrong() -> None:
    """Words 1 2, 3 and 1 of the original against 1 2, 2 and 1; token 4 is between them."""
    base, other = spell(1, 2, 4, 3, 4, 1), spell(1, 2, 4, 2, 4, 1)
    words = Wer(delimiter=4)
    assert words.record(base, other, None) == pytest.approx(1 / 3)
    assert words.record(base, other, [1, 2, 4, 2, 4, 1]) == 0
    assert words.record(base, base, [[1, 2, 4, 2]]) == 1, "2 of 2: one wrong and one too many"
    assert Wer().record(base, other, None) == pytest.approx(1 / 6)
    assert Wer().record(base, spell(1, 2), None) == 1, "another number of frames"
    assert Wer().record(spell(0, 0), spell(1, 0), None) == 1
    assert np.isnan(Wer().record(base, {"logits": base["logits"] * np.nan}, None))
    with pytest.raises(BadData, match="'good' is no list of tokens\n  fix: "):
        Wer().record(base, other, "good")


def test_word_errors_are_proved_of_a_mean_and_of_a_share() -> None:
    good, bad = np.zeros((600, 1)), np.ones((600, 1))
    for text in ("wer<=base+0.01", "wer(share=0.95)<=0.01"):
        budget = Budget.parse(text)
        assert judge_accuracy(budget, good, good).verdict == "proved"
        assert judge_accuracy(budget, bad, good).verdict != "proved"
