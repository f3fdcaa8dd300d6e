"""Parameters of requests, which both fronts read alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ortune.protocol.status import Refused

_MOST_US = 2**63 - 1


def timeout(given: Any) -> int:
    """Return the microseconds that a request may take; 0 for no limit.

    Raises:
        Refused: It is no number of microseconds.
    """
    if type(given) is not int or not 0 <= given <= _MOST_US:
        raise Refused("Unable to parse 'timeout': a whole number of microseconds is wanted")
    return given


def classes(given: Any, output: str) -> int:
    """Return how many classes are asked for in the place of an output.

    Raises:
        Refused: It is no number of classes.
    """
    if type(given) is not int or given < 0:
        raise Refused(f"invalid value for 'classification' of output '{output}', expected >= 0")
    return given


def plain(
    parameters: Mapping[str, Any], allowed: frozenset[str] = frozenset()
) -> Mapping[str, Any]:
    """Return parameters that nobody here knows, as they are.

    Raises:
        Refused: One is no text, number or truth value, or has a name that Triton keeps for itself.
    """
    for name, value in parameters.items():
        if name.startswith("triton_") and name not in allowed:
            raise Refused(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should "
                "not be specified."
            )
        if not isinstance(value, (str, int, float)):
            raise Refused(f"parameter '{name}' is no string, number or truth value")
    return parameters


def no_shared_memory(parameters: Mapping[str, Any], tensor: str) -> None:
    """Refuse a tensor that lies in shared memory: none is ever registered here.

    Raises:
        Refused: It does.
    """
    if "shared_memory_region" in parameters:
        raise Refused(
            f"Unable to find shared memory region of {tensor}",
            fix="send the data in the request: shared memory is not served",
        )
