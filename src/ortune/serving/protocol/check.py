"""The check of a request against a model, before it is queued."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from ortune.core.facts import TensorSpec
from ortune.serving.protocol.datatypes import RAW_ONLY, find_datatype, make_json_refusal
from ortune.serving.protocol.inference import InferRequest, OutputRequest
from ortune.serving.protocol.status import RequestRefused

_WRONG_NUMBER = "expected {} inputs but got {} inputs for model '{}'."
_NOT_BETWEEN = "expected number of inputs between {} and {} but got {} inputs for model '{}'."
"""Triton's words, plurals and all."""


def check_request(
    request: InferRequest,
    inputs: Sequence[TensorSpec],
    *,
    max_batch: int,
    model: str = "",
    outputs: Sequence[TensorSpec] = (),
    optional: Collection[str] = (),
) -> None:
    """Refuse what the model cannot take, in Triton's words, which name the model.

    `max_batch`: rows of the first dimension at most, which all inputs have; 0 where it is no
    batch. Without `outputs`, what is asked for is not looked at. `optional` inputs may be left
    out. Raises RequestRefused: a name, datatype, rank, dimension or number of rows is wrong; or an
    output is requested that is not there, or that JSON cannot carry.
    """
    arrays = request.inputs
    if outputs:
        _check_outputs(request, {spec.name: spec for spec in outputs}, model)
    names = [spec.name for spec in inputs]
    least, most = len(names) - len(optional), len(names)
    missing = [name for name in names if name not in arrays and name not in optional]
    odd = [name for name in arrays if name not in names]
    if not least <= len(arrays) <= most or (missing and not odd):
        wrong = (
            _NOT_BETWEEN.format(least, most, len(arrays), model)
            if optional
            else _WRONG_NUMBER.format(most, len(arrays), model)
        )
        raise RequestRefused(
            f"{wrong} Got input(s) {_quote_names(arrays)}, but missing required input(s) "
            f"{_quote_names(missing)}. Please provide all required input(s)."
        )
    if odd:
        raise RequestRefused(f"unexpected inference input '{odd[0]}' for model '{model}'")
    if max_batch:
        _check_rows(request, max_batch, model)
    for spec in inputs:
        if spec.name not in arrays:
            continue
        array = arrays[spec.name]
        declared = request.datatypes.get(spec.name) or find_datatype(array.dtype)
        expected = find_datatype(spec.dtype)
        if declared != expected:
            raise RequestRefused(
                f"inference input '{spec.name}' data-type is '{declared}', but model '{model}' "
                f"expects '{expected}'"
            )
        if not _fits_shape(array.shape, spec.shape):
            raise RequestRefused(
                f"unexpected shape for input '{spec.name}' for model '{model}'. "
                f"Expected {format_dims(spec)}, got {_format_list(array.shape)}"
            )


def count_numbers(inputs: Sequence[TensorSpec], max_batch: int) -> int | None:
    """Return how many numbers a request has at most; None where a text or a dimension is free."""
    count = 0
    for spec in inputs:
        dims = [max_batch, *(spec.shape or ())[1:]] if max_batch else spec.shape
        if dims is None or not all(isinstance(dim, int) for dim in dims) or spec.dtype == "str":
            return None
        count += math.prod(dim for dim in dims if isinstance(dim, int))
    return count


def format_dims(spec: TensorSpec) -> str:
    """Return a shape as Triton writes it: ``[-1,256]``."""
    return _format_list([dim if isinstance(dim, int) else -1 for dim in spec.shape or ()])


def _fits_shape(shape: tuple[int, ...], expected: tuple[int | str | None, ...] | None) -> bool:
    if expected is None:
        return True
    if len(shape) != len(expected):
        return False
    for got, dim in zip(shape, expected, strict=True):
        if got != dim and isinstance(dim, int):
            return False
    return True


def _check_rows(request: InferRequest, max_batch: int, model: str) -> None:
    rows = -1
    for name, array in request.inputs.items():
        if not array.ndim:
            raise RequestRefused(
                f"input '{name}' has no shape but model requires batch dimension for '{model}'"
            )
        if rows not in (-1, array.shape[0]):
            raise RequestRefused(
                f"input '{name}' batch size does not match other inputs for '{model}'"
            )
        rows = array.shape[0]
    if rows == 0:
        raise RequestRefused(f"inference request batch-size must be >= 1 for '{model}'")
    if rows > max_batch:
        raise RequestRefused(f"inference request batch-size must be <= {max_batch} for '{model}'")


def _check_outputs(request: InferRequest, outputs: dict[str, TensorSpec], model: str) -> None:
    for output_request in request.outputs or [
        OutputRequest(name, request.binary) for name in outputs
    ]:
        if output_request.name not in outputs:
            raise RequestRefused(
                f"unexpected inference output '{output_request.name}' for model '{model}'"
            )
        kind = find_datatype(outputs[output_request.name].dtype)
        if kind in RAW_ONLY and not output_request.binary and not output_request.classes:
            raise make_json_refusal(output_request.name, kind)


def _format_list(values: Sequence[int]) -> str:
    return f"[{','.join(map(str, values))}]"


def _quote_names(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"
