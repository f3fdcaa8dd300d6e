"""Arrays as bytes and back; nothing is made that the bytes do not justify."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from ortune.serving.protocol import datatypes
from ortune.serving.protocol.datatypes import classify, count_elements, from_raw, to_raw
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused

KINDS = ("bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")


@settings(deadline=None)
@given(
    st.sampled_from(KINDS).flatmap(
        lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=0, min_side=0))
    )
)
def test_numbers_come_back(array: NDArray[Any]) -> None:
    told = datatypes.find_datatype(array.dtype)
    back = from_raw("x", told, array.shape, bytes(to_raw(array)))
    assert back.dtype == array.dtype and back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300)))
def test_bytes_come_back(items: list[bytes]) -> None:
    array = np.array([*items, None], object)[:-1]
    back = from_raw("x", "BYTES", [len(items), 1], to_raw(array))
    assert back.shape == (len(items), 1) and back.ravel().tolist() == items


def test_what_is_not_contiguous_is_written_in_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert bytes(to_raw(array)) == array.tobytes()


def test_text_is_written_as_utf8() -> None:
    assert to_raw(np.array(["é", "ab"], object)) == to_raw(np.array(["é".encode(), b"ab"], object))
    assert to_raw(np.array(["é"])) == b"\2\0\0\0\xc3\xa9"


@pytest.mark.parametrize("offset", range(9))
def test_numbers_lie_aligned_and_without_a_copy_where_they_can(offset: int) -> None:
    held = np.zeros(64, np.uint8)  # NumPy's memory is aligned
    array = from_raw("x", "FP32", [4], held[offset : offset + 16].data)
    assert array.flags.aligned
    assert np.shares_memory(array, held) == (offset % 4 == 0)


def test_a_bool_is_0_or_1() -> None:
    assert from_raw("x", "BOOL", [3], b"\0\1\2").view(np.uint8).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "text"),
    [
        ("FP32", [2], b"1234", "input byte size mismatch for input 'x' for model 'm'. Expected 8"),
        ("FP32", [2], b"", "Expected 8, got 0"),
        ("FP32", [], b"", "Expected 4, got 0"),
        ("FP32", [1 << 40, 1 << 40], b"1234", "more elements than can be"),
        ("FP32", [0, 1 << 62, 1 << 62], b"", "more elements than can be"),
        ("FP32", [1 << 50], b"1234", "Expected 4503599627370496, got 4"),
        ("FP32", [-1, 4], b"", "Unable to parse 'shape'"),
        ("FP32", [True], b"1234", "Unable to parse 'shape'"),
        ("FP32", [1.0], b"1234", "Unable to parse 'shape'"),
        ("FP32", ["1"], b"1234", "Unable to parse 'shape'"),
        ("FP32", [1] * 33, b"1234", "33 dimensions"),
        ("FP33", [1], b"1234", "invalid datatype 'FP33'"),
        ("BYTES", [1], b"\1\0\0", "exceeds the end"),
        ("BYTES", [1], b"\xff\xff\xff\xff", "exceeds the end"),
        (
            "BYTES",
            [2],
            b"\1\0\0\0a",
            "elements 1 for inference input 'x' for model 'm', expecting 2",
        ),
        ("BYTES", [1], b"\0\0\0\0" * 1000, "elements more than 1 "),
        ("BYTES", [1 << 50], b"\0\0\0\0", "elements 1 "),
    ],
)
def test_what_does_not_fit_is_refused(
    datatype: str, shape: list[Any], data: bytes, text: str
) -> None:
    with pytest.raises(RequestRefused) as caught:
        from_raw("x", datatype, shape, data, "m")
    assert text in caught.value.text and caught.value.status is RefusalKind.INVALID


def test_nothing_times_much_is_nothing() -> None:
    assert count_elements("x", [0, 1 << 40]) == 0
    assert from_raw("x", "FP32", [0, 1 << 40], b"").shape == (0, 1 << 40)


def test_datatypes_both_ways() -> None:
    for name in ("BOOL", "UINT8", "INT64", "FP16", "BF16", "FP64", "BYTES"):
        assert datatypes.find_datatype(datatypes.find_dtype(name)) == name
    assert datatypes.find_datatype("str") == datatypes.find_datatype(np.dtype("U3")) == "BYTES"
    for odd in ("float8_e4m3fn", "", "seq(float32)", np.dtype("c8")):
        with pytest.raises(RequestRefused) as caught:
            datatypes.find_datatype(odd)
        assert caught.value.status is RefusalKind.UNSUPPORTED


# Classes are written as Triton writes them.


def test_the_highest_of_each_row() -> None:
    scores = np.array([[0.1, 3.25, -1], [1, 0, 2]], np.float32)
    assert classify(scores, 2).tolist() == [
        [b"3.250000:1", b"0.100000:0"],
        [b"2.000000:2", b"1.000000:0"],
    ]


def test_more_classes_than_there_are() -> None:
    assert classify(np.zeros((2, 3), np.float32), 9).shape == (2, 3)


def test_equal_scores_in_order_and_nan_last() -> None:
    odd = np.array([[np.nan, 1, 1, np.inf, -np.inf]])
    indices = [text.split(b":")[1] for text in classify(odd, 5)[0]]
    assert indices[:3] == [b"3", b"1", b"2"] and set(indices[3:]) == {b"0", b"4"}


@pytest.mark.parametrize("kind", ["u1", "u8", "i1", "i8"])
def test_the_ends_of_integers(kind: str) -> None:
    ends = np.iinfo(kind)
    found = classify(np.array([[ends.min, ends.max]], kind), 2)[0].tolist()
    assert found == [f"{ends.max}:1".encode(), f"{ends.min}:0".encode()]


@pytest.mark.parametrize("kind", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_floats(kind: Any) -> None:
    assert classify(np.array([[0.5, 2]], kind), 1).tolist() == [[b"2.000000:1"]]


def test_shapes() -> None:
    assert classify(np.zeros((2, 2, 3), np.float32), 4).shape == (2, 4)
    assert classify(np.zeros((2, 3), np.float32), 4, batched=False).shape == (4,)
    assert classify(np.zeros((0, 3), np.float32), 4).shape == (0, 3)
    assert classify(np.array(2.5), 4).tolist() == [b"2.500000:0"]


def test_text_has_no_scores() -> None:
    with pytest.raises(RequestRefused, match="unsupported type 'BYTES'"):
        classify(np.array([["a"]], object), 1)
