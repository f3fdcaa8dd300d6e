"""The user's own metric: a function of expected outputs, actual outputs and label."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData, BadSettings
from ortune.core.plugins import user_function
from ortune.core.session import Tensors
from ortune.metrics.common.outputs import has_broken_values
from ortune.metrics.common.user_metric import UserMetric


@dataclass(frozen=True)
class Function(UserMetric):
    """``fn(expected, actual, label)`` scores one sample; the mean counts.

    It gets two dicts of arrays by output name and the label or None, and returns a number, or
    several when it has an attribute ``aggregate``: a function of what it returned for all samples,
    as an array [samples] or [samples, numbers], that gives the score. An attribute
    ``higher_is_better = False`` turns the direction round.

    Attributes:
        path: ``FILE.py:NAME``; importable where ortune runs.
    """

    @property
    def function(self) -> Callable[..., Any]:
        """The function. Raises BadSettings: none is named, or it cannot be imported."""
        if not self.path:
            raise BadSettings("the metric 'function' has no path", fix="write FILE.py:NAME>=0.9")
        return user_function.import_function(self.path, *user_function.METRIC)

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> Sequence[float]:
        """Return what the function returned.

        Raises:
            BadData: The function fails, or returns something else than numbers.
        """
        function = self.function
        try:
            returned = function(dict(expected), dict(actual), label)
            numbers = np.asarray(returned, np.float64).reshape(-1)
        except Exception as error:
            raise BadData(
                f"{self.path} fails: {user_function.describe_error(error)}",
                fix="it gets (expected, actual, label) of one sample and returns a number",
            ) from error
        if returned is None or not len(numbers):
            raise BadData(f"{self.path} returned {returned!r}", fix="return a number a sample")
        is_broken = has_broken_values(expected, actual, list(expected))
        return [float("nan")] * len(numbers) if is_broken else list(numbers)

    def reads(self, outputs: Tensors, label: Any) -> frozenset[str]:
        """Return the outputs that the function asks for; all where it fails."""
        seen = _RecordingOutputs(outputs)
        try:
            self.function(dict(outputs), seen, label)
        except Exception:  # it says so itself when it scores
            return frozenset(outputs)
        return frozenset(seen.read_names)


class _RecordingOutputs(dict[str, NDArray[Any]]):
    """Outputs that remember which of them were asked for."""

    def __init__(self, outputs: Tensors) -> None:
        super().__init__(outputs)
        self.read_names: set[str] = set()

    def __getitem__(self, name: str) -> NDArray[Any]:
        self.read_names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read_names.add(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self.read_names.update(self.keys())
        return super().__iter__()

    def values(self) -> Any:
        self.read_names.update(self.keys())
        return super().values()

    def items(self) -> Any:
        self.read_names.update(self.keys())
        return super().items()
