"""A request to infer with its parameters, and its answer, whichever front they came through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.serving.protocol.datatypes import count_elements, find_dtype
from ortune.serving.protocol.status import RequestRefused


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """An output that a request names.

    Attributes:
        binary: Its data is wanted behind the JSON; over gRPC always.
        classes: So many classes with the highest scores are wanted in place of the scores; 0: the
            scores.
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
    """A request by what it says of its tensors: their data is not read yet.

    Attributes:
        request: Its inputs have the declared shapes and no values.
        readers: Input -> reads its data; it may raise `RequestRefused`.
        parsed_bytes: Bytes of data that are parsed element by element, not taken as they lie.
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
    """One output of an answer.

    Attributes:
        datatype: In the protocol's words.
        array: Of datatype BYTES an object array of ``bytes`` or ``str``.
    """

    name: str
    datatype: str
    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class InferResponse:
    """An answer.

    Attributes:
        outputs: Those asked for, in the order asked; all in the model's order without a choice.
    """

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
