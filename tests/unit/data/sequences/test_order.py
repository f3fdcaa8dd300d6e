"""What makes a sequence, and the steps of a file."""

import numpy as np
import pytest

from ortune.core.errors import BadData, BadSettings
from ortune.core.facts import TensorSpec
from ortune.data.arrays import Column, NamedArrays
from ortune.data.sequences.request import SequenceForm
from ortune.data.sequences.rolling import StatePair
from ortune.data.sequences.steps import (
    Steps,
    describe_sequences,
    group_into_sequences,
    list_step_groups,
)

X = TensorSpec("x", "float32", ("batch", 2))
RATE = TensorSpec("rate", "int64", ())
H = TensorSpec("h", "float32", (2, "batch", 3))


def block(**arrays: object) -> NamedArrays:
    columns = {name: Column.from_array(np.asarray(array)) for name, array in arrays.items()}
    return NamedArrays("a.npz", columns)


def rows(count: int, *shape: int) -> np.ndarray:
    return np.arange(count * int(np.prod(shape)), dtype=np.float32).reshape(count, *shape)


def cut(*blocks: NamedArrays) -> list[dict[str, np.ndarray]]:
    made = Steps((X, RATE, H), ("h",))(blocks)
    return [{name: column.read() for name, column in one.columns.items()} for one in made]


def test_files_are_sequences() -> None:
    assert group_into_sequences("file", 5, None, [3, 2]) == [(0, 1, 2), (3, 4)]


def test_samples_of_a_group_need_not_be_neighbours() -> None:
    assert group_into_sequences("group", 5, list("abaab")) == [(0, 2, 3), (1, 4)]


def test_a_number_of_samples_stays_within_a_group() -> None:
    assert group_into_sequences("2", 5, None) == [(0, 1), (2, 3), (4,)]
    assert group_into_sequences("2", 5, list("aaabb")) == [(0, 1), (2,), (3, 4)]


def test_a_sequence_is_a_group_unless_its_steps_have_one() -> None:
    assert list_step_groups([(0, 1), (2,)], None) == (("sequence 0",) * 2, ("sequence 1",))
    assert list_step_groups([(0, 2), (1,)], list("aba")) == (("a", "a"), ("b",))


def test_single_steps_and_missing_groups_are_refused() -> None:
    with pytest.raises(BadData, match="every sequence has a single step"):
        group_into_sequences("file", 2, None, [1, 1])
    with pytest.raises(BadData, match="the samples have no group"):
        group_into_sequences("group", 2, None)


def test_the_pairs_are_told() -> None:
    assert describe_sequences([(0, 1), (2, 3)], [StatePair("hn", "h")]) == (
        "rolled through 2 sequences of 2 steps: hn:h"
    )


def test_an_array_with_one_more_dimension_has_the_steps_in_front() -> None:
    found = cut(block(x=rows(3, 1, 2), rate=16000, h=rows(2, 1, 3), group="call"))
    assert [one["x"].tolist() for one in found] == [[[0, 1]], [[2, 3]], [[4, 5]]]
    assert [int(one["rate"]) for one in found] == [16000] * 3
    assert ["h" in one for one in found] == [True, False, False]
    assert {str(one["group"]) for one in found} == {"call"}


def test_rows_are_steps_where_no_array_has_more_dimensions() -> None:
    found = cut(block(x=rows(3, 2), rate=8000, label=[5, 6, 7]))
    assert [one["x"].shape for one in found] == [(1, 2)] * 3
    assert [int(one["label"]) for one in found] == [5, 6, 7]


def test_a_single_label_is_of_every_step() -> None:
    assert [int(one["label"]) for one in cut(block(x=rows(2, 2), rate=1, label=4))] == [4, 4]


def test_files_may_differ_in_length() -> None:
    work = Steps((X, RATE, H), ("h",))
    assert len(list(work([block(x=rows(3, 1, 2)), block(x=rows(2, 1, 2))]))) == 5
    assert work.lengths == [3, 2]


def test_no_steps_and_different_numbers_of_them_are_refused() -> None:
    with pytest.raises(BadData, match="no array has steps: Got rate"):
        cut(block(rate=1))
    two = Steps((X, TensorSpec("z", "float32", ("batch", 2))), ())
    with pytest.raises(BadData, match="different numbers of steps: x 3, z 2"):
        list(two([block(x=rows(3, 1, 2), z=rows(2, 1, 2))]))


@pytest.mark.parametrize(
    ("given", "held"), [(None, ""), ("", ""), ("file", "file"), (" group", "group"), (8, "8")]
)
def test_words_and_numbers_are_read(given: object, held: str) -> None:
    assert SequenceForm().read(given) == held


@pytest.mark.parametrize("given", ["files", "-3", 1, 0, "1.5", True, "9" * 10, "³"])
def test_others_are_refused(given: object) -> None:
    with pytest.raises(BadSettings):
        SequenceForm().read(given)
