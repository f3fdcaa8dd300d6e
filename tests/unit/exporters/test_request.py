"""How inputs and dynamic dimensions are spelled."""

from __future__ import annotations

import pytest

from ortune.core.errors import BadSettings
from ortune.core.facts import TensorSpec
from ortune.exporters.request import DynamicAxes, Export, InputSpecs


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
