import numpy as np
import pytest

from ortune.core.errors import BadData
from ortune.data.derive import derive_budget

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
    budget, rule = derive_budget(outputs, labels)
    assert len(rule.splitlines()) == 1
    return str(budget)


def test_labels_that_are_classes() -> None:
    scores = logits()
    assert spelled({"out": scores}, best(scores)) == "top1>=base-0.01"
    assert spelled({"out": scores}, [3] * N) == "snr>=30"
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
    assert spelled({"out": probabilities(1, 2, 7, 5)}) == "snr>=30"


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
    assert spelled({"last_hidden_state": hidden(32), "other": logits(31)}) == "snr>=30"


def test_anything_else() -> None:
    assert spelled({"out": logits()}) == "snr>=30"
    assert spelled({"prob": [np.full((1, 1), 0.5)] * N}) == "snr>=30"
    assert spelled({"image": [np.ones((1, 3, 8, 8), np.float32)] * N}) == "snr>=30"
    assert spelled({"scores": logits(), "boxes": [np.ones((1, 4, 4, 4))] * N}) == "snr>=30"
    assert spelled({"value": [np.float32(3)] * N}) == "snr>=30"


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
    assert derive_budget(tokens)[1].endswith("95 % of inputs must keep 99 % of their decisions")
    answers = {"logits": [np.eye(1, 4, k, np.float32) for k in range(3)]}
    assert derive_budget(answers)[1].endswith("99 % of inputs must keep their decision")
    assert derive_budget({"y": [np.full((1, 3), 7.0)] * 3})[1].endswith(
        "95 % of inputs must keep 30 dB"
    )
