"""Fixes of steps are followed: what they say is spelled as a step, and the model takes it."""

from __future__ import annotations

import re

import pytest

from ortune.core.reading import read_step
from ortune.core.step import Quantizer
from tests.unit.following import refuse
from tests.unit.quantizing import model_of

RELU = "g (float[b, 8] x) => (float[b, 8] y) { y = Relu(x) }"
FIXED = "g (float[2, 8] x) => (float[2, 8] y) { y = Relu(x) }"
PICTURE = "g (float[b, 3, h, w] x) => (float[b, 3, h, w] y) { y = Relu(x) }"
TWO = "g ({0} x, {1} z) => ({0} y, {1} v) {{ y = Abs(x) v = Relu(z) }}"
INTEGERS = TWO.format("int64[b, 8]", "float[b, 8]")
VECTOR = TWO.format("float[b, 8]", "float[b, 3, 6, 6]")
COUNTS = TWO.format("int64[b, 3, 6, 6]", "float[b, 3, 6, 6]")
SEQUENCE = """g (float[b, 8] x) => (float[b, 8] y) {
    i = Constant<value = int64 {0}>() r = Relu(x) s = SequenceConstruct(r)
    a = SequenceAt(s, i) y = Relu(a) }"""
FLOAT4 = """<ir_version: 11, opset_import: ["": 23]>
g (float[b, 8] x) => (float[b, 8] y) { c = Cast<to = 23>(x) y = Cast<to = 1>(c) }"""
FUNCTION = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
g (float[b, 8] x) => (float[b, 8] y) { y = own.twice(x) }
<domain: "own", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }"""

STEPS = {
    "a dimension without a size": (
        RELU,
        "fix-dims(dims=[b])",
        "write DIMENSION:SIZE",
        "fix-dims(dims=[b:2])",
    ),
    "a dimension of another size": (
        FIXED,
        "fix-dims(dims=[x.0:3])",
        "free-dims makes it dynamic first",
        "free-dims(dims=[x.0:b]) fix-dims(dims=[x.0:3])",
    ),
    "a dimension given twice": (
        RELU,
        "fix-dims(dims=[b:3,x.0:4])",
        "or give it once",
        "fix-dims(dims=[b:3])",
    ),
    "an output of integers": (
        INTEGERS,
        "fold-postprocess(give=argmax,output=y)",
        "set output to another of: v$",
        "fold-postprocess(give=argmax,output=v)",
    ),
    "the only output, of integers": (
        RELU.replace("float", "int32"),
        "fold-postprocess(give=argmax)",
        "whose output holds floats",
        "",
    ),
    "more than there are": (
        RELU,
        "fold-postprocess(give=top-k,k=9)",
        "set k to less",
        "fold-postprocess(give=top-k,k=8)",
    ),
    "an input that takes no pictures": (
        VECTOR,
        "fold-preprocess(input=x)",
        r"the input that does, of shape \[batch, channels, height, width\]",
        "fold-preprocess(input=z)",
    ),
    "an input of numbers that are no picture": (
        COUNTS,
        "fold-preprocess(input=x)",
        "an input of floats or bytes",
        "fold-preprocess(input=z)",
    ),
    "a scale of nothing": (
        PICTURE,
        "fold-preprocess(scale=0)",
        "give a factor",
        "fold-preprocess(scale=0.5)",
    ),
    "a crop larger than the picture": (
        PICTURE,
        "fold-preprocess(resize=[6,6],crop=[8,8])",
        "resize to more first, or crop less",
        "fold-preprocess(resize=[9,9],crop=[8,8])",
    ),
    "a feature of a later IR version": (
        FUNCTION,
        "ir-version(to=7)",
        "give 8 or more",
        "ir-version(to=9)",
    ),
    "a function of another opset": (
        FUNCTION.replace("8,", "11,").replace('["": 17,', '["": 23,'),
        "lower-opset(to=21)",
        "without functions",
        "",
    ),
    "a sequence between two types": (
        SEQUENCE,
        "fp16(block=[SequenceAt])",
        "all operators that make and read it in the step's `block`",
        "fp16(block=[SequenceAt,SequenceConstruct])",
    ),
    "a node without a way down": (
        FLOAT4,
        "lower-opset(to=21)",
        "lower it less",
        "lower-opset(to=23)",
    ),
}
"""Name -> a model, a step that is refused, what the fix says, and the steps that it asks for."""


def apply(text: str, steps: str) -> None:
    """Apply steps, as they are spelled, to a model."""
    model = model_of(text)
    for step in steps.split():
        read = read_step(step)
        read.apply(model, {}) if isinstance(read, Quantizer) else read.apply(model)


@pytest.mark.parametrize("name", STEPS)
def test_steps_that_a_fix_asks_for_apply(name: str) -> None:
    text, wrong, said, followed = STEPS[name]
    error = refuse(lambda: apply(text, wrong))
    assert re.search(said, error.fix), error.fix
    apply(text, followed)
