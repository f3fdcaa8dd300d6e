"""A request to infer, its answer, and what is refused, whichever front they came through."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.facts import TensorSpec
from ortune.serving.protocol.datatypes import (
    RAW_ONLY,
    count_elements,
    find_datatype,
    find_dtype,
    make_json_refusal,
)
from ortune.serving.protocol.refusals import RequestRefused


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """An output that a request names; its data may be wanted behind the JSON, over gRPC always.

    So many classes with the highest scores are wanted in place of the scores; 0: the scores.
    """

    name: str
    binary: bool = False
    classes: int = 0


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request to infer; its data fits its shapes, but may not fit the model.

    Attributes:
        inputs: Name -> array; of datatype BYTES an object array of ``bytes``. Numeric ones may be
            views of the request's body, which they keep alive.
        outputs: What is asked for; empty for all.
        id: Echoed in the answer.
        binary: Outputs that are not named go behind the JSON.
        timeout_us: Microseconds after which nobody waits for the answer; 0 for none.
        parameters: All others, known or not.
        datatypes: Input -> the datatype that the request declares.
    """

    inputs: Mapping[str, NDArray[Any]]
    outputs: tuple[OutputRequest, ...] = ()
    id: str = ""
    binary: bool = False
    timeout_us: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    datatypes: Mapping[str, str] = field(default_factory=dict)


SMALL_BYTES = 1 << 16
"""What is parsed at once: more is declared first, and then read where it holds nobody up."""


@dataclass(frozen=True, slots=True)
class DeclaredRequest:
    """A request by what it says of its tensors: their inputs have shapes, and no values yet.

    A reader reads an input's data, and may raise `RequestRefused`; `parsed_bytes` of it are parsed
    element by element, not taken as they lie.
    """

    request: InferRequest
    readers: Mapping[str, Callable[[], NDArray[Any]]]
    parsed_bytes: int = 0

    def read(self) -> InferRequest:
        """Return the request with its data. Raises RequestRefused: it does not fit the shapes."""
        return replace(self.request, inputs={name: read() for name, read in self.readers.items()})


def declare_tensor(name: str, datatype: str, shape: Sequence[int]) -> NDArray[Any]:
    """Return an array that takes no memory; RequestRefused where type or shape are none."""
    kind = find_dtype(datatype)
    count_elements(name, shape)
    return np.broadcast_to(np.zeros((), kind), tuple(shape))


@dataclass(frozen=True, slots=True)
class Output:
    """One output of an answer; of datatype BYTES an object array of ``bytes`` or ``str``."""

    name: str
    datatype: str
    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class InferResponse:
    """An answer; outputs in the order asked, or all in the model's."""

    model: str
    version: str
    id: str
    outputs: Sequence[Output]
    parameters: Mapping[str, Any] = field(default_factory=dict)


_MOST_US = 2**63 - 1


def validate_timeout(value: Any) -> int:
    """Return a request's microseconds, 0 for no limit; RequestRefused where they are none."""
    if type(value) is not int or not 0 <= value <= _MOST_US:
        raise RequestRefused("Unable to parse 'timeout': a whole number of microseconds is wanted")
    return value


def validate_class_count(value: Any, output: str) -> int:
    """Return how many classes are asked for; RequestRefused where it is no such number."""
    if type(value) is not int or value < 0:
        raise RequestRefused(
            f"invalid value for 'classification' of output '{output}', expected >= 0"
        )
    return value


def validate_parameters(
    parameters: Mapping[str, Any], allowed: frozenset[str] = frozenset()
) -> Mapping[str, Any]:
    """Return parameters that nobody here knows, as they are.

    Raises RequestRefused: one is no text, number or truth value, or has a name that Triton keeps
    for itself.
    """
    for name, value in parameters.items():
        if name.startswith("triton_") and name not in allowed:
            raise RequestRefused(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should "
                "not be specified."
            )
        if not isinstance(value, (str, int, float)):
            raise RequestRefused(f"parameter '{name}' is no string, number or truth value")
    return parameters


def refuse_shared_memory(parameters: Mapping[str, Any], tensor: str) -> None:
    """Raise RequestRefused for a tensor in shared memory: none is ever registered here."""
    if "shared_memory_region" in parameters:
        raise RequestRefused(
            f"Unable to find shared memory region of {tensor}",
            fix="send the data in the request: shared memory is not served",
        )


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
            dims = _format_list([dim if isinstance(dim, int) else -1 for dim in spec.shape or ()])
            raise RequestRefused(
                f"unexpected shape for input '{spec.name}' for model '{model}'. "
                f"Expected {dims}, got {_format_list(array.shape)}"
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
