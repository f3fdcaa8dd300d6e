"""A request to infer and its answer, whichever front they came through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Asked:
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
    outputs: tuple[Asked, ...] = ()
    id: str = ""
    binary: bool = False
    timeout_us: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    datatypes: Mapping[str, str] = field(default_factory=dict)


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
        model: Name of the model.
        version: Its version, a number in digits.
        id: That of the request.
        outputs: Those asked for, in the order asked; all in the model's order without a choice.
    """

    model: str
    version: str
    id: str
    outputs: Sequence[Output]
    parameters: Mapping[str, Any] = field(default_factory=dict)
