"""What counts as the same answer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from ortune.core.errors import BadSettings
from ortune.core.facts import TensorSpec
from ortune.data.stream import Stream
from ortune.exporters.export import (
    FLOAT32,
    SHORT,
    choose_tolerance,
    compare_outputs,
    name_dimensions,
    size_to_trace,
)
from ortune.exporters.request import DynamicAxes, Export, InputSpecs

ONE = {"y": np.array([1.0, -4.0], np.float32), "ids": np.array([1, 2])}


def test_the_error_is_a_share_of_the_largest_value() -> None:
    found = {**ONE, "y": np.array([1.0, -4.004], np.float32)}
    error, what = compare_outputs(ONE, found)
    assert error == pytest.approx(1e-3, rel=1e-3)
    assert "'y'" in what
    assert compare_outputs(ONE, ONE)[0] == 0


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"ids": ONE["ids"]}, "missing"),
        ({**ONE, "y": np.ones((1, 2), np.float32)}, "shape"),
        ({**ONE, "y": ONE["y"].astype(np.float64)}, "float64"),
        ({**ONE, "y": np.array([np.nan, -4], np.float32)}, "finite"),
        ({**ONE, "ids": np.array([1, 3])}, "1 of 2"),
    ],
)
def test_what_cannot_be_rounding_is_infinite(found: dict[str, np.ndarray], said: str) -> None:
    error, what = compare_outputs(ONE, found)
    assert math.isinf(error)
    assert said in what


def test_nan_and_infinity_at_the_same_place_are_the_same() -> None:
    one = {"y": np.array([np.nan, np.inf, 1], np.float32)}
    assert compare_outputs(one, one)[0] == 0
    other = {"y": np.array([np.nan, -np.inf, 1], np.float32)}
    assert math.isinf(compare_outputs(one, other)[0])


def test_16_bit_outputs_may_differ_by_more() -> None:
    assert choose_tolerance(ONE) == FLOAT32
    assert choose_tolerance({"y": np.ones(2, np.float16)}) == SHORT


IMAGE, IDS = TensorSpec("image", "float32", (1, 3, 8, 8)), TensorSpec("ids", "int64", (1, 16), 50)
AXES = (("image", 0, "batch"), ("ids", 0, "batch"), ("ids", 1, "length"))


def test_every_dimension_grows_beyond_the_example() -> None:
    found = name_dimensions((IMAGE, IDS), AXES)
    assert found.specs[1].shape == ("batch", "length")
    assert found.axes == AXES
    tried = found.list_sizes()
    assert tried[:3] == [
        {"batch": 1, "length": 16},
        {"batch": 2, "length": 17},
        {"batch": 3, "length": 33},
    ]
    assert {"batch": 2, "length": 32} in tried, "multiples, where PyTorch takes no others"
    assert any(one["length"] < 16 for one in tried), "smaller ones, where it takes no larger"


def test_without_a_dynamic_dimension_there_is_one_size() -> None:
    assert name_dimensions((IMAGE,), ()).list_sizes() == [{}]


def test_it_is_traced_where_no_dimension_is_1() -> None:
    tried = name_dimensions((IMAGE, IDS), AXES).list_sizes()[:3]
    assert size_to_trace(tried) == 1
    assert size_to_trace([{}]) == 0


def test_inputs_are_made_up_at_a_size(tmp_path: Path) -> None:
    found = name_dimensions((IMAGE, IDS), AXES)
    path = found.write_samples(
        tmp_path, {"batch": 2, "length": 5}, {"ids": (7, 9), "other": (0, 1)}, 3, 0
    )
    rows = list(Stream(path))
    assert len(rows) == 3
    assert rows[0]["image"].shape == (2, 3, 8, 8)
    assert all(((row["ids"] >= 7) & (row["ids"] <= 9)).all() for row in rows)


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ((("sound", 0, "batch"),), "no input of the module"),
        ((("ids", 2, "batch"),), "of 2 axes"),
        ((("image", 0, "n"), ("image", 1, "n")), "1 and 3"),
    ],
)
def test_what_does_not_fit_the_inputs_is_said(
    axes: tuple[tuple[str, int, str], ...], said: str
) -> None:
    with pytest.raises(BadSettings, match=said):
        name_dimensions((IMAGE, IDS), axes)


def asked(**more: object) -> Export:
    return Export("m:f", out="o.onnx", **more)  # type: ignore[arg-type]


def test_inputs_have_a_shape_and_a_type() -> None:
    found = asked(inputs=["image=1x3x8x8", "ids=1x16:i64", "rate=:f32", "flag=2:bool"]).inputs
    assert found == (
        TensorSpec("image", "float32", (1, 3, 8, 8)),
        TensorSpec("ids", "int64", (1, 16)),
        TensorSpec("rate", "float32", ()),
        TensorSpec("flag", "bool", (2,)),
    )
    assert asked(inputs=InputSpecs().spell(found)).inputs == found


@pytest.mark.parametrize("text", ["image", "image=axb", "image=1x2:f8", "=1x2", "i=1xx2"])
def test_what_is_no_input_is_said(text: str) -> None:
    with pytest.raises(BadSettings, match="cannot read the input"):
        asked(inputs=[text])


def test_one_name_is_one_input() -> None:
    with pytest.raises(BadSettings, match="one name"):
        asked(inputs=["x=1x2", "x=1x3"])


def test_dimensions_are_given_one_by_one_or_by_comma() -> None:
    wanted = (("image", 0, "batch"), ("ids", 1, "length"))
    assert asked(dynamic="image:0=batch,ids:1=length").dynamic == wanted
    assert asked(dynamic=["image:0=batch", "ids:1=length"]).dynamic == wanted
    assert asked(dynamic=DynamicAxes().spell(wanted)).dynamic == wanted


@pytest.mark.parametrize("text", ["image", "image:0", "image:x=batch", "image:0=2"])
def test_what_is_no_dimension_is_said(text: str) -> None:
    with pytest.raises(BadSettings, match="cannot read the dimension"):
        asked(dynamic=[text])


def test_one_axis_has_one_name() -> None:
    with pytest.raises(BadSettings, match="twice"):
        asked(dynamic="x:0=batch,x:0=rows")
