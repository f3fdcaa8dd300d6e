"""The samples and ranges that a build may use."""

from __future__ import annotations

from dataclasses import dataclass

from ortune.core.step import Recipe
from ortune.data.feeds import Feeds
from ortune.quantizers.calibration.ranges_file import SavedRanges

_CHECKED = 2


@dataclass(frozen=True)
class Material:
    """The samples that a build may use.

    Attributes:
        feeds: Samples of the model's inputs; None when there are none that run.
        calibration: Indices that quantizers observe.
        saved_ranges: Ranges of an earlier calibration of the model that the build starts from;
            they answer first, and only what they do not hold is observed.
        planned: Recipes that may be built too: what their quantizers watch of a model is observed
            in the pass that the first of them needs.
    """

    feeds: Feeds | None = None
    calibration: tuple[int, ...] = ()
    saved_ranges: SavedRanges | None = None
    custom_ops: tuple[str, ...] = ()
    planned: tuple[Recipe, ...] = ()

    @property
    def comparison_samples(self) -> tuple[int, ...]:
        """The few samples on which rewrites are compared."""
        return tuple(range(min(_CHECKED, self.feeds.count))) if self.feeds else ()

    @property
    def key(self) -> str:
        """What builds depend on beside their steps: the file of known ranges."""
        return self.saved_ranges.digest if self.saved_ranges else ""
