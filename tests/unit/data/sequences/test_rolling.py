"""States, caches, masks and positions, step by step, against a loop written by hand."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.plugins import codec
from ortune.data.sequences.rolling import Rolling, StatePair, roll_sequence

X = TensorSpec("x", "float32", ("batch", 2))
H = TensorSpec("h", "float32", ("batch", 2))
CELL = Rolling((X, H), (StatePair("hn", "h"),))
IDS = TensorSpec("ids", "int64", ("batch", "seq"))
MASK = TensorSpec("attention_mask", "int64", ("batch", "total"))
PLACES = TensorSpec("position_ids", "int64", ("batch", "seq"))
PAST = TensorSpec("past", "float32", ("batch", 2, "past_length", 3))
DECODER = Rolling((IDS, MASK, PLACES, PAST), (StatePair("present", "past"),))


def added(sample: Mapping[str, Any]) -> dict[str, Any]:
    return {"hn": sample["x"] + 2 * sample["h"]}


def grown(sample: Mapping[str, Any]) -> dict[str, Any]:
    ids, past = sample["ids"], sample["past"]
    new = np.ones((len(ids), 2, ids.shape[1], 3), np.float32) * ids[:, None, :, None]
    return {"present": np.concatenate([past, new], axis=2).astype(np.float32)}


def steps(*values: float, rows: int = 1) -> list[dict[str, np.ndarray]]:
    return [{"x": np.full((rows, 2), value, np.float32)} for value in values]


def tokens(*lengths: int) -> list[dict[str, np.ndarray]]:
    return [{"ids": np.full((1, length), at + 1, np.int64)} for at, length in enumerate(lengths)]


def test_a_state_begins_with_zeros_and_takes_what_the_model_gave() -> None:
    found = [
        sample["h"] for sample in roll_sequence(CELL, steps(1, 10, 100, rows=3), added, "here")
    ]
    assert [one.tolist() for one in found] == [[[v] * 2] * 3 for v in (0.0, 1.0, 12.0)]
    assert all(one.dtype == np.float32 for one in found)


def test_a_sequence_begins_with_the_state_that_its_first_step_gives() -> None:
    given = [{**step, "h": np.full((1, 2), 7, np.float32)} for step in steps(1, 1)]
    assert [s["h"][0, 0] for s in roll_sequence(CELL, given, added, "here")] == [7, 15]


def test_the_model_does_not_run_on_the_last_step() -> None:
    runs = []
    list(
        roll_sequence(CELL, steps(1, 2, 3), lambda sample: runs.append(1) or added(sample), "here")
    )
    assert len(runs) == 2


def test_a_cache_grows_and_masks_and_positions_are_made() -> None:
    assert DECODER.optional_inputs == {"past", "attention_mask", "position_ids"}
    found = list(roll_sequence(DECODER, tokens(3, 1, 2), grown, "here"))
    assert [sample["past"].shape[2] for sample in found] == [0, 3, 4]
    assert found[2]["past"][0, 0, :, 0].tolist() == [1, 1, 1, 2]
    assert [sample["attention_mask"].tolist() for sample in found] == [
        [[1] * 3], [[1] * 4], [[1] * 6],
    ]  # fmt: skip
    assert [sample["position_ids"].tolist() for sample in found] == [[[0, 1, 2]], [[3]], [[4, 5]]]
    assert [list(sample) for sample in found] == [[one.name for one in DECODER.inputs]] * 3


def test_a_mask_of_the_new_positions_is_put_behind_those_before() -> None:
    given = tokens(3, 1, 1)
    for step, mask in zip(given, ([0, 1, 1], [1], [0]), strict=True):
        step["attention_mask"] = np.array([mask], np.int64)
    found = [
        sample["attention_mask"][0].tolist()
        for sample in roll_sequence(DECODER, given, grown, "a")
    ]
    assert found == [[0, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1, 0]]


def test_a_mask_of_all_positions_is_taken_as_it_is() -> None:
    given = tokens(2, 1)
    given[0]["attention_mask"] = np.array([[0, 1]], np.int64)
    given[1]["attention_mask"] = np.array([[1, 0, 1]], np.int64)
    found = [
        sample["attention_mask"][0].tolist()
        for sample in roll_sequence(DECODER, given, grown, "a")
    ]
    assert found == [[0, 1], [1, 0, 1]]


def test_a_mask_of_another_length_is_refused() -> None:
    given = tokens(2, 1)
    given[1]["attention_mask"] = np.ones((1, 2), np.int64)
    with pytest.raises(BadData) as error:
        list(roll_sequence(DECODER, given, grown, "sequence 4"))
    assert "sequence 4 step 1: 'attention_mask' is [1, 2]" in error.value.what
    assert "1 or of 3 positions" in error.value.fix


def test_a_mask_that_the_model_names_like_its_tokens_does_not_grow() -> None:
    own = TensorSpec("mask", "int64", ("batch", "seq"))
    how = Rolling((IDS, own, PAST), DECODER.pairs)
    found = [sample["mask"].shape for sample in roll_sequence(how, tokens(3, 1), grown, "here")]
    assert found == [(1, 3), (1, 1)]


def test_without_growing_states_masks_and_positions_are_asked_for() -> None:
    how = Rolling((X, MASK, PLACES, H), CELL.pairs)
    assert how.optional_inputs == {"h"}


@pytest.mark.parametrize(
    ("made", "got"),
    [
        (np.zeros((1, 3), np.float32), "float32 [1, 3]"),
        (np.zeros((1, 2, 1), np.float32), "float32 [1, 2, 1]"),
        (np.zeros((1, 2), np.float64), "float64 [1, 2]"),
    ],
)
def test_what_does_not_fit_the_input_is_refused(made: np.ndarray, got: str) -> None:
    with pytest.raises(BadData) as error:
        list(roll_sequence(CELL, steps(1, 2), lambda sample: {"hn": made}, "sequence 0"))
    assert error.value.what == (
        f"sequence 0 step 1: state 'hn:h' does not fit: Got {got}, expected float32 [batch, 2]"
    )


def test_a_state_that_is_not_finite_is_refused() -> None:
    bad = np.array([[1, np.inf]], np.float32)
    with pytest.raises(BadData, match=r"step 1: state 'hn:h'.*holds inf"):
        list(roll_sequence(CELL, steps(1, 2), lambda sample: {"hn": bad}, "sequence 0"))


@pytest.mark.parametrize(
    ("shape", "first"),
    [((2, None, 8), (2, 3, 8)), (("b", 8), (3, 8)), ((1, "batch_size", 8), (1, 3, 8))],
)
def test_dimensions_of_the_first_state_come_from_the_batch(
    shape: tuple[int | str | None, ...], first: tuple[int, ...]
) -> None:
    how = Rolling((X, TensorSpec("h", "float32", shape)), CELL.pairs)
    found = next(iter(roll_sequence(how, steps(1, rows=3), added, "here")))
    assert found["h"].shape == first


def test_a_dimension_that_is_not_known_is_asked_for_and_may_be_given() -> None:
    wide = (X, TensorSpec("h", "float32", ("layers", "width", "depth")))
    with pytest.raises(BadData) as error:
        list(roll_sequence(Rolling(wide, CELL.pairs), steps(1), added, "here"))
    assert "dimension 1 is not known" in error.value.what and "--shape h:" in error.value.fix
    how = Rolling(wide, CELL.pairs, {"h": (2, 5, 7)})
    assert next(iter(roll_sequence(how, steps(1), added, "here")))["h"].shape == (2, 5, 7)


def test_a_plan_travels_to_the_worker_unchanged() -> None:
    how = Rolling(DECODER.inputs, DECODER.pairs, {"past": (1, 2, 0, 3)})
    assert codec.decode(Rolling, codec.encode(how)) == how
