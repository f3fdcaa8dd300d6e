"""Records of an evaluate function as arrays."""

import pytest

from ortune.core.errors import BadData
from ortune.search.experiment.context import to_record_array


def test_rows_become_an_array() -> None:
    assert to_record_array([[1.0, 2.0], [3.0, 4.0]], 2).shape == (2, 2)
    assert to_record_array([], 0).shape[0] == 0


def test_another_number_of_records_is_refused() -> None:
    with pytest.raises(BadData, match="1 record came back, 2 from the original"):
        to_record_array([[1.0]], 2)


def test_ragged_records_are_refused() -> None:
    with pytest.raises(BadData, match="differ in length"):
        to_record_array([[1.0], [1.0, 2.0]])
