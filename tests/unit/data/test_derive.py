import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ortune.core import hub
from ortune.core.budget import Budget
from ortune.core.errors import BadData
from ortune.core.wording import shorten_groups
from ortune.data.derive import derive_budget
from ortune.metrics.agreement import Agreement
from ortune.metrics.common.fidelity import Fidelity
from ortune.metrics.perplexity import Perplexity
from ortune.search.experiment.budget import budget_for
from ortune.search.experiment.context import list_shown_metrics

RNG = np.random.default_rng(0)
N = 40


def logits(classes: int = 10) -> list[np.ndarray]:
    return [RNG.standard_normal((1, classes)).astype(np.float32) for _ in range(N)]


def hidden(width: int = 32) -> list[np.ndarray]:
    return [RNG.standard_normal((1, 5 + at % 3, width)).astype(np.float32) for at in range(N)]


def probabilities(*shape: int) -> list[np.ndarray]:
    rows = RNG.random((N, *shape))
    return list((rows / rows.sum(-1, keepdims=True)).astype(np.float16))


def unit(width: int = 32) -> list[np.ndarray]:
    rows = RNG.standard_normal((N, 1, width))
    return list((rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32))


def best(arrays: list[np.ndarray]) -> list[object]:
    return [array.argmax(-1).squeeze().tolist() for array in arrays]


def spelled(outputs: dict[str, list[np.ndarray]], labels: list[object] | None = None) -> str:
    """Spell the budget without its groups and without what probabilities may change by."""
    budget, rule = derive_budget(outputs, labels)
    assert len(rule.splitlines()) == 1
    assert Budget.parse(str(budget)) == budget
    if isinstance(budget.metric, Fidelity):
        metric = replace(budget.metric, groups=())
        budget = replace(
            budget, metric=replace(metric, change=1.0) if isinstance(metric, Agreement) else metric
        )
    return str(budget)


def grouped(outputs: dict[str, list[np.ndarray]]) -> tuple[str, ...]:
    metric = derive_budget(outputs)[0].metric
    assert isinstance(metric, Fidelity)
    return metric.groups


def test_labels_that_are_classes() -> None:
    scores = logits()
    assert spelled({"out": scores}, best(scores)) == "top1>=base-0.01"
    assert spelled({"out": scores}, [3] * N) == "parity>=30"
    rows = [RNG.standard_normal((1, 4, 6)) for _ in range(N)]
    assert spelled({"out": rows}, best(rows)) == "top1>=base-0.01"


def test_labels_choose_the_output_they_fit() -> None:
    scores, other = logits(10), logits(64)
    budget = spelled({"features": other, "logits": scores}, best(scores))
    assert budget == "top1(output=logits)>=base-0.01"
    boxes = [np.ones((1, 5, 1))] * N
    assert spelled({"logits": scores, "boxes": boxes}, best(scores)) == "top1>=base-0.01"
    odd = {"a b": scores, "c": other}
    assert spelled(odd, best(scores)) == 'top1(output="a b")>=base-0.01'


@pytest.mark.parametrize(
    "labels",
    [
        [10] * N,
        [-1] * N,
        [0.5] * N,
        ["cat"] * N,
        [[1, 2]] * N,
        [1] * (N - 1),
        [[1, 2]] + [1] * (N - 1),
    ],
)
def test_labels_that_fit_no_output(labels: list[object]) -> None:
    assert spelled({"logits": logits()}, labels) == "agreement>=0.99"


def test_labels_of_something_else_than_the_output() -> None:
    assert spelled({"embedding": unit(300)}, [at % 2 for at in range(N)]) == "cosine>=0.999"
    assert spelled({"last_hidden_state": hidden()}, [0] * N) == "cosine>=0.999"


@pytest.mark.parametrize("name", ["logits", "class_probs", "my_Scores", "pred_class"])
def test_names_of_scores(name: str) -> None:
    assert spelled({name: logits()}) == "agreement>=0.99"


def test_rows_that_sum_to_one() -> None:
    assert spelled({"out": probabilities(1, 5)}) == "agreement>=0.99"
    assert spelled({"out": probabilities(1, 7, 5)}) == "agreement>=0.99"
    assert spelled({"out": probabilities(1, 2, 7, 5)}) == "parity>=30"


def test_outputs_that_are_integers() -> None:
    ids = [np.array([[1, 2, 3]])] * N
    assert spelled({"ids": ids}) == "agreement>=0.99"
    assert spelled({"label": ids, "probabilities": probabilities(1, 3)}) == "agreement>=0.99"
    assert spelled({"text": [np.array(["a"])] * N, "ok": [np.array([True])] * N}) == (
        "agreement>=0.99"
    )


def test_embeddings() -> None:
    assert spelled({"out": unit()}) == "cosine>=0.999"
    assert spelled({"out": hidden()}) == "cosine>=0.999"
    pooled = {"last_hidden_state": hidden(32), "pooler_output": logits(32)}
    assert spelled(pooled) == "cosine>=0.999"
    assert spelled({"last_hidden_state": hidden(32), "other": logits(31)}) == "parity>=30"


def test_anything_else() -> None:
    assert spelled({"out": logits()}) == "parity>=30"
    assert spelled({"prob": [np.full((1, 1), 0.5)] * N}) == "parity(probabilities=[prob])>=30"
    assert spelled({"image": [np.ones((1, 3, 8, 8), np.float32)] * N}) == "parity>=30"
    mixed = {"scores": logits(), "boxes": [np.ones((1, 4, 4, 4))] * N}
    assert spelled(mixed) == "parity(decisions=[scores])>=30"
    assert spelled({"value": [np.float32(3)] * N}) == "parity>=30"


def test_a_budget_of_many_outputs_is_read_and_shown_briefly() -> None:
    cache = {f"present.{at}.{part}": [np.ones((1, 4, 3 + k, 8)) for k in range(3)]
             for at in range(60) for part in ("key", "value")}  # fmt: skip
    budget, _ = derive_budget({"logits": logits(), 'odd "name], )': probabilities(3), **cache})
    assert Budget.parse(str(budget)) == budget
    assert shorten_groups(str(budget)) == "parity>=30 by output and group"
    assert (
        shorten_groups("cosine(share=0.9, groups=[1:a])>=0.9") == "cosine(share=0.9)>=0.9 by group"
    )
    assert shorten_groups("top1(output=a)>=base-0.01") == "top1(output=a)>=base-0.01"


def test_states_are_found_by_their_names_and_may_have_more_noise() -> None:
    state = RNG.standard_normal((2, 1, 64))
    sample = {"prob": np.full((1, 1), 0.5), "stateN": state}
    inputs = {"x": np.ones((1, 8)), "state": state}
    budget, rule = budget_for(None, [sample] * 4, None, inputs)  # type: ignore[arg-type]
    assert "30 dB of each output, 20 of the state 'stateN', and each group" in rule
    noisy = {**sample, "stateN": state * 1.05}
    plain, _ = budget_for(None, [sample] * 4, None, {"x": inputs["x"]})  # type: ignore[arg-type]
    for one, decibels in ((budget, 36), (plain, 26)):
        records = one.metric.records([sample], [noisy], None, None, sample)
        assert one.metric.aggregate(records) == pytest.approx(decibels, abs=0.1)


def test_outputs_that_cannot_be_judged() -> None:
    broken = logits()
    broken[7][0, 3] = np.nan
    with pytest.raises(BadData, match="own output 'y' holds NaN on sample 7"):
        derive_budget({"y": broken})
    for nothing in ({}, {"y": []}):
        with pytest.raises(BadData, match="no outputs"):
            derive_budget(nothing)


def test_the_rule_says_what_is_claimed() -> None:
    tokens = {"tags": [np.zeros((1, 5), np.int64)] * 3}
    assert "95 % of inputs must keep 99 % of their decisions, and" in derive_budget(tokens)[1]
    answers = {"logits": [np.eye(1, 4, k, np.float32) for k in range(3)]}
    assert derive_budget(answers)[1].endswith(
        "99 % of inputs must keep their decision, none with a probability that changes by more "
        "than 0.2, and each group must follow the original"
    )
    assert (
        "95 % of inputs must keep 30 dB, and"
        in derive_budget({"y": [np.full((1, 3), 7.0)] * 3})[1]
    )
    unclear = derive_budget({"y": [np.ones((1, 30, 40))] * 3})[1]
    assert "'y' by each place along axes 1 and 2, as either may hold channels" in unclear
    words = derive_budget({"logits": [np.eye(1, 2000, k) for k in range(3)]})[1]
    assert "'logits' as a whole: it has no axis of 2 to 1,024 channels" in words


@pytest.mark.parametrize(
    ("name", "shapes", "groups"),
    [
        ("logits", [(1, 10)], ["1:logits"]),
        ("logits", [(1, 3, 9), (1, 5, 9)], ["2:logits"]),
        ("output0", [(1, 84, 8400)], ["1:output0"]),
        ("output0", [(1, 300, 6)], ["2:output0"]),
        ("output0", [(1, 84, 100)], ["1:output0", "2:output0"]),
        ("output0", [(8, 84, 8400)], ["0:output0", "1:output0"]),
        ("state", [(2, 1, 128)], ["0:state", "2:state"]),
        ("hidden", [(1, 7, 64)], ["2:hidden"]),
        ("image", [(1, 3, 64, 48)], ["1:image"]),
        ("image", [(1, 64, 48, 3)], ["3:image"]),
        ("map", [(1, 1, 64, 48)], ["all:map"]),
        ("value", [()], ["all:value"]),
        ("prob", [(1, 1)], ["all:prob"]),
    ],
)
def test_groups(name: str, shapes: list[tuple[int, ...]], groups: list[str]) -> None:
    arrays = [RNG.standard_normal(shapes[at % len(shapes)]) for at in range(4)]
    assert list(grouped({name: arrays})) == groups


def test_groups_of_probabilities() -> None:
    assert grouped({"out": probabilities(1, 5)}) == ("1%:out",)
    assert grouped({"prob": [RNG.random((1, 1)) for _ in range(N)]}) == ("all%:prob",)


def test_probabilities_that_lie_side_by_side() -> None:
    labels = {"class_probs": [RNG.random((1, 14)) for _ in range(N)]}
    assert spelled(labels) == "parity(probabilities=[class_probs])>=30"
    head = {"dets": [9 * RNG.random((1, 50, 4)) for _ in range(N)], "logits": logits(5)}
    assert spelled(head) == "parity(decisions=[logits])>=30"


def test_a_text_generator_is_judged_by_its_likeliest_tokens(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    )
    scores = RNG.normal(size=(1, 3, 40)).astype(np.float32)
    sample = {"logits": scores, "present.0.key": scores}
    settings = hub.find_folder(tmp_path)
    labels = [[[1, 2, -100]]] * 4
    budget, rule = budget_for(None, [sample] * 4, labels, {}, settings)  # type: ignore[arg-type]
    assert str(budget) == "agreement(output=logits)>=0.99"
    assert "text-generation" in rule
    assert Perplexity() in list_shown_metrics(budget)
    assert Agreement("logits") in list_shown_metrics(Budget.parse("perplexity<=base+1"))


def test_a_model_that_spells_is_judged_by_its_words_or_tokens(tmp_path: Path) -> None:
    config = {"model_type": "hubert", "architectures": ["HubertForCTC"], "pad_token_id": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "vocab.json").write_text('{"|": 0, "a": 1, "<pad>": 2}')
    sample = {"logits": RNG.normal(size=(1, 5, 3)).astype(np.float32)}
    settings = hub.find_folder(tmp_path)
    budget, rule = budget_for(None, [sample] * 4, [[1, 0]] * 4, {}, settings)  # type: ignore[arg-type]
    assert str(budget) == "wer(blank=2, delimiter=0)<=base+0.01" and "words" in rule
    budget, rule = budget_for(None, [sample] * 4, None, {}, settings)  # type: ignore[arg-type]
    assert str(budget) == "wer(blank=2, share=0.95)<=0.01" and "tokens" in rule


def masks(*shape: int, axis: int = 1) -> list[np.ndarray]:
    """Draw maps whose channels on an axis sum to 1 at each place."""
    scores = np.exp(4 * RNG.standard_normal((N, *shape)))
    return list((scores / scores.sum(1 + axis, keepdims=True)).astype(np.float32))


@pytest.mark.parametrize(
    ("outputs", "budget", "groups"),
    [
        ({"out": masks(1, 5, 9, 7)}, "agreement(axis=1)>=0.99", ("1:out",)),
        ({"logits": [9 * mask for mask in masks(1, 12, 8, 8)]}, "agreement(axis=1)>=0.99",
         ("1:logits",)),
        ({"seg": [9 * mask for mask in masks(1, 32, 24, 3, axis=3)]}, "agreement(axis=3)>=0.99",
         ("3:seg",)),
        ({"seg_probs": masks(1, 32, 24, 3, axis=3)}, "agreement(axis=3)>=0.99", ("3:seg_probs",)),
        ({"out": masks(1, 5, 9, 7), "aux": masks(1, 5, 9, 7)}, "agreement(axis=1)>=0.99",
         ("1:out", "1:aux")),
    ],
)  # fmt: skip
def test_masks_by_class(
    outputs: dict[str, list[np.ndarray]], budget: str, groups: tuple[str, ...]
) -> None:
    assert spelled(outputs) == budget
    assert grouped(outputs) == groups
    assert "keep the class of 99 % of their places" in derive_budget(outputs)[1]


@pytest.mark.parametrize(
    ("name", "arrays"),
    [
        ("image", [9 * mask for mask in masks(1, 3, 8, 8)]),
        ("attention_probs", masks(1, 4, 9, 9, axis=3)),
        ("class_map", [RNG.random((1, 3, 8, 8)) for _ in range(4)]),  # each by itself
        ("logits", [RNG.standard_normal((1, 1, 8, 8)) for _ in range(4)]),
    ],
)
def test_maps_that_are_no_masks(name: str, arrays: list[np.ndarray]) -> None:
    assert spelled({name: arrays}).startswith("parity")


def test_probabilities_of_classes_are_bounded_and_those_of_integers_are_not() -> None:
    assert "change=0.2" in str(derive_budget({"logits": logits()})[0])
    assert "change" not in str(derive_budget({"ids": [np.array([[1, 2, 3]])] * N})[0])
