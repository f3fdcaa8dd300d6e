"""What a model cannot take is refused before it waits, in Triton's words."""

from typing import Any

import numpy as np
import pytest

from ortune.core.facts import TensorSpec
from ortune.serving.protocol.inference import InferRequest, OutputRequest, check_request
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused

INPUTS = (TensorSpec("x", "float32", ("N", 4)), TensorSpec("ids", "int64", ("N", None)))
OUTPUTS = (TensorSpec("y", "float32", ("N", 2)), TensorSpec("h", "float16", ("N",)))
F4, I8 = np.zeros((2, 4), np.float32), np.zeros((2, 7), np.int64)
MISSING = (
    "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['x'], but missing required "
    "input(s) ['ids']. Please provide all required input(s)."
)
POINT = np.zeros((), np.float32)


def refusal(request: InferRequest, max_batch: int = 8, **more: Any) -> str:
    with pytest.raises(RequestRefused) as caught:
        check_request(request, INPUTS, max_batch=max_batch, model="m", **more)
    assert caught.value.status is RefusalKind.INVALID
    return caught.value.text


def test_what_fits_passes() -> None:
    for rows in (1, 8):
        one = {"x": np.zeros((rows, 4), np.float32), "ids": np.zeros((rows, 1), np.int64)}
        check_request(InferRequest(one), INPUTS, max_batch=8)
        check_request(InferRequest(one), INPUTS, max_batch=0)
    declared = {"x": "FP32", "ids": "INT64"}
    check_request(InferRequest({"ids": I8, "x": F4}, datatypes=declared), INPUTS, max_batch=2)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x": F4}, MISSING),
        ({}, "expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing"),
        ({"x": F4, "ids": I8, "z": F4}, "expected 2 inputs but got 3 inputs for model 'm'"),
        ({"x": F4, "z": I8}, "unexpected inference input 'z' for model 'm'"),
        (
            {"x": F4.astype(np.float64), "ids": I8},
            "inference input 'x' data-type is 'FP64', but model 'm' expects 'FP32'",
        ),
        (
            {"x": F4[:, :3], "ids": I8},
            "unexpected shape for input 'x' for model 'm'. Expected [-1,4], got [2,3]",
        ),
        ({"x": F4[..., None], "ids": I8}, "Expected [-1,4], got [2,4,1]"),
        ({"x": F4, "ids": I8[:, 0]}, "Expected [-1,-1], got [2]"),
        (
            {"x": F4[0, 0].reshape(()), "ids": I8},
            "input 'x' has no shape but model requires batch",
        ),
        ({"x": F4, "ids": I8[:1]}, "input 'ids' batch size does not match other inputs for 'm'"),
        ({"x": F4[:0], "ids": I8[:0]}, "inference request batch-size must be >= 1 for 'm'"),
        (
            {"x": np.zeros((9, 4), np.float32), "ids": np.zeros((9, 1), np.int64)},
            "inference request batch-size must be <= 8 for 'm'",
        ),
    ],
)
def test_tritons_words(given: dict[str, Any], text: str) -> None:
    assert text in refusal(InferRequest(given))


def test_without_a_batch_rows_are_a_dimension_like_others() -> None:
    check_request(InferRequest({"x": F4, "ids": I8[:1]}), INPUTS, max_batch=0)
    assert "Expected [-1,4], got []" in refusal(InferRequest({"x": POINT, "ids": I8}), 0)


def test_the_declared_datatype_counts() -> None:
    text = refusal(InferRequest({"x": F4, "ids": I8}, datatypes={"x": "FP64", "ids": "INT64"}))
    assert "data-type is 'FP64'" in text


def test_an_unknown_rank_takes_any() -> None:
    check_request(InferRequest({"x": F4}), [TensorSpec("x", "float32", None)], max_batch=0)


def test_outputs_that_are_asked_for() -> None:
    fine = {"x": F4, "ids": I8}
    check_request(
        InferRequest(fine, (OutputRequest("h", True),)), INPUTS, max_batch=8, outputs=OUTPUTS
    )
    check_request(
        InferRequest(fine, (OutputRequest("h", False, 1),)), INPUTS, max_batch=8, outputs=OUTPUTS
    )
    check_request(InferRequest(fine, binary=True), INPUTS, max_batch=8, outputs=OUTPUTS)
    unknown = InferRequest(fine, (OutputRequest("z"),))
    assert refusal(unknown, outputs=OUTPUTS) == "unexpected inference output 'z' for model 'm'"
    for request in (InferRequest(fine, (OutputRequest("h"),)), InferRequest(fine)):
        assert "sending FP16 data via JSON is not supported" in refusal(request, outputs=OUTPUTS)


def test_an_input_that_may_be_left_out() -> None:
    for given in ({"x": F4}, {"x": F4, "ids": I8}):
        check_request(InferRequest(given), INPUTS, max_batch=8, optional={"ids"})
    assert refusal(InferRequest({"ids": I8}), optional={"ids"}) == (
        "expected number of inputs between 1 and 2 but got 1 inputs for model 'm'. Got input(s) "
        "['ids'], but missing required input(s) ['x']. Please provide all required input(s)."
    )
    odd = InferRequest({"x": F4, "z": I8})
    assert "unexpected inference input 'z'" in refusal(odd, optional={"ids"})
    assert "expected [" not in refusal(InferRequest({"x": F4, "ids": F4}), optional={"ids"})
