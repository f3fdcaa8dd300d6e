"""Metrics whose score a function of the user's makes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Self, TypeVar

import numpy as np

from ortune.core.errors import BadData, BadSettings
from ortune.core.metric import Kind, Metric
from ortune.core.plugins import bounds, stored, user_function
from ortune.metrics.common.fidelity import check_share
from ortune.metrics.common.outputs import Floats

M = TypeVar("M", bound="UserMetric")


@dataclass(frozen=True)
class UserMetric(Metric):
    """Its direction and how it sums up are attributes of the function.

    ``higher_is_better = False`` turns the direction round. ``aggregate``, a function of the
    records as an array [samples] or [samples, numbers], gives the score in place of the mean.
    ``bounds = (0, 1)`` declares between what a record lies, so that a mean can be proved;
    ``share = 0.95`` says that this share of the samples must keep the limit, each by itself.

    Attributes:
        path: ``FILE.py:NAME``; importable where ortune runs.
        share: Of the samples that must keep the limit; 0 takes the function's own.
    """

    path: Annotated[str, stored.CODE] = ""
    share: Annotated[float, bounds.SHARE, stored.number(0, 1)] = 0.0

    def __post_init__(self) -> None:
        check_share(self.share, self.name())

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function; None where none is named. Raises BadSettings: it cannot be imported."""
        if not self.path:
            return None
        return user_function.import_function(self.path, *user_function.EVALUATE)

    # The direction is the function's, so it is known only when the function is imported.
    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """The function's attribute of that name; True when it has none."""
        return bool(getattr(self.function, "higher_is_better", True))

    @property
    def kept_by(self) -> float:
        """The field `share`, else the function's attribute.

        Raises:
            BadSettings: The attribute is no share.
        """
        attribute = getattr(self.function, "share", 0.0)
        return self.share or check_share(float(attribute), self.path)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The function's attribute of that name; None when it has none.

        Raises:
            BadSettings: It is not two numbers, the lower first.
        """
        limits = getattr(self.function, "bounds", None)
        if limits is None:
            return None
        try:
            low, high = (float(end) for end in limits)
        except (TypeError, ValueError):
            low = high = float("nan")
        if not -np.inf < low < high < np.inf:
            raise BadSettings(
                f"{self.path}: bounds are {limits!r}", fix="write fn.bounds = (0, 1)"
            )
        return low, high

    def make_unimported(self, *, lower: bool) -> Self:
        """Return it as a file of results holds it: spelled alike, its function never imported.

        A report of a stranger's run must not run the code that the run names. Whether
        lower is better only the function itself would say.
        """
        kind: Callable[..., Self] = _make_unimported_class(type(self), lower)
        return kind(path=self.path, share=self.share)

    def kind(self, baseline: Floats | None = None) -> Kind:
        """Return share where one is given, figure where the function has an ``aggregate``."""
        if self.kept_by:
            return Kind.SHARE
        return Kind.MEAN if getattr(self.function, "aggregate", None) is None else Kind.FIGURE

    def each(self, records: Floats) -> Floats:
        """Return every sample's record, or what ``aggregate`` makes of it alone."""
        if getattr(self.function, "aggregate", None) is None:
            return records[:, 0]
        return np.array([self.aggregate(row[None]) for row in records], np.float64)

    def aggregate(self, records: Floats) -> float:
        """Return the mean, or what the function's ``aggregate`` makes of the records.

        A NaN among the records gives NaN, whatever it would make of it.

        Raises:
            BadData: It fails, or returns no number.
        """
        if not len(records) or np.isnan(records).any():
            return float("nan")
        aggregator = getattr(self.function, "aggregate", None)
        if aggregator is None:
            return super().aggregate(records)
        try:
            return float(aggregator(records[:, 0] if records.shape[1] == 1 else records))
        except Exception as error:
            raise BadData(
                f"the metric's own aggregate fails: {user_function.describe_error(error)}",
                fix="return one number for an array of records",
            ) from error


@cache
def _make_unimported_class(kind: type[M], lower: bool) -> type[M]:
    namespace = {"origin": kind.name(), "higher_is_better": not lower, "function": None}
    return type(
        kind.__name__, (kind,), {**namespace, "__module__": __name__, "__doc__": kind.__doc__}
    )
