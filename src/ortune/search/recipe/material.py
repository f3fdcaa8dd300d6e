"""The samples and ranges that a build may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortune.core.plugins import codec
from ortune.core.step import Quantizer, Recipe, Step
from ortune.data.feeds import Feeds
from ortune.quantizers.calibration.ranges_file import SavedRanges
from ortune.search.recipe.shared import SharedCache

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
        shared: Where others may have built or calibrated the same.
    """

    feeds: Feeds | None = None
    calibration: tuple[int, ...] = ()
    saved_ranges: SavedRanges | None = None
    custom_ops: tuple[str, ...] = ()
    planned: tuple[Recipe, ...] = ()
    shared: SharedCache | None = None

    @property
    def comparison_samples(self) -> tuple[int, ...]:
        """The few samples on which rewrites are compared."""
        return tuple(range(min(_CHECKED, self.feeds.count))) if self.feeds else ()

    def compute_key(self, steps: Sequence[Step]) -> str:
        """Return what a build depends on beside its steps.

        That is the file of known ranges and, where a quantizer may calibrate, the samples that it
        observes: a run that goes on with more of them builds anew.
        """
        saved = self.saved_ranges.digest if self.saved_ranges else ""
        if not self.calibration or not any(isinstance(step, Quantizer) for step in steps):
            return saved
        return codec.digest([saved, self.calibration])
