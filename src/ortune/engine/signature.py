"""The check of what a caller gives, before the runtime sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ortune.core import wording
from ortune.core.errors import BadData, with_article
from ortune.core.facts import TensorSpec


@dataclass(frozen=True, slots=True)
class Wanted:
    """One input as the check needs it.

    Attributes:
        dtype: None takes any: text, sequences, and types that NumPy has no name for.
        rank: None takes any.
        fixed: Axis and size of every dimension that is not dynamic.
    """

    spec: TensorSpec
    dtype: np.dtype[Any] | None
    rank: int | None
    fixed: tuple[tuple[int, int], ...]

    def takes(self, value: Any) -> bool:
        """Whether a value has the dtype, rank and fixed dimensions of the input."""
        if self.dtype is None:
            return True
        if not isinstance(value, np.ndarray):
            return False
        if value.dtype is not self.dtype and value.dtype != self.dtype:  # `is` is a tenth of `!=`
            return False
        shape = value.shape
        if self.rank is not None and len(shape) != self.rank:
            return False
        for axis, size in self.fixed:  # noqa: SIM110 (a generator costs as much as all the rest)
            if shape[axis] != size:
                return False
        return True


def wanted(inputs: Sequence[TensorSpec]) -> dict[str, Wanted]:
    """Prepare the check of a model's inputs."""
    return {spec.name: _wanted(spec) for spec in inputs}


def check(given: Mapping[str, Any], inputs: Mapping[str, Wanted], model: str) -> None:
    """Refuse what the runtime would refuse, in words a person can use. Costs under 2 us.

    Raises:
        BadData: A name is unknown or missing; a dtype, rank or fixed dimension is wrong.
    """
    if given.keys() != inputs.keys():
        _names(given, inputs, model)
    for name, value in given.items():
        if not inputs[name].takes(value):
            _value(name, value, inputs[name])


def _names(given: Mapping[str, Any], inputs: Mapping[str, Wanted], model: str) -> NoReturn:
    unknown = sorted(given.keys() - inputs.keys())
    missing = sorted(inputs.keys() - given.keys())
    parts = [f"no input '{name}'" for name in unknown[:3]]
    parts += [f"input '{name}' is missing" for name in missing[:3]]
    raise BadData(
        f"{model}: {', '.join(parts)}. Got: {', '.join(given) or 'none'}; "
        f"expected: {', '.join(inputs) or 'none'}",
        fix="name the arrays like the inputs; engine(**{'odd.name': array}) takes any name",
    )


def _value(name: str, value: Any, expected: Wanted) -> NoReturn:
    got = (
        f"{value.dtype}{list(value.shape)}"
        if isinstance(value, np.ndarray)
        else with_article(type(value).__name__)
    )
    spec = expected.spec
    raise BadData(
        f"input '{name}': Got {got}, expected {spec.dtype}{_dims(spec)}",
        fix=_fix(value, expected),
    )


def _fix(value: Any, expected: Wanted) -> str:
    if not isinstance(value, np.ndarray):
        return f"give numpy.asarray(value, dtype='{expected.spec.dtype}')"
    if value.dtype != expected.dtype:
        return f"convert it with .astype('{expected.spec.dtype}')"
    if value.ndim != expected.rank:
        rank = wording.count(expected.rank or 0, "dimension")
        return f"give {rank}; a batch of one is array[None]"
    return "give the dimensions that are numbers exactly; names and ? are free"


def _dims(spec: TensorSpec) -> str:
    if spec.shape is None:
        return ""
    return f"[{', '.join('?' if dim is None else str(dim) for dim in spec.shape)}]"


def _wanted(spec: TensorSpec) -> Wanted:
    if spec.shape is None:
        return Wanted(spec, _dtype(spec.dtype), None, ())
    fixed = tuple((axis, dim) for axis, dim in enumerate(spec.shape) if isinstance(dim, int))
    return Wanted(spec, _dtype(spec.dtype), len(spec.shape), fixed)


def _dtype(name: str) -> np.dtype[Any] | None:
    try:
        found = np.dtype(name) if name else None
    except TypeError:
        return None
    return None if found is None or found.kind in "OUST" else found
