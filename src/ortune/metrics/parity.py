"""The output that differs most from the baseline's, each by what it is, in decibels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ortune.core.session import Tensors
from ortune.metrics.agreement import compute_agreement
from ortune.metrics.common import outputs
from ortune.metrics.common.fidelity import Fidelity
from ortune.metrics.snr import compute_decibels

_FEW = 16
"""Elements below which a sample's own power is no scale: a regressed angle passes through 0."""
_OWN = 10
"""What the signal of a state counts: 20 dB are 30 there, for nothing but the model reads it."""
_DECIDED = 10
"""Share of decisions that may change at 30 dB, over the noise that may be there: 1 % for 0.1 %."""


@dataclass(frozen=True)
class Parity(Fidelity):
    """Signal to noise of a sample's worst output, so that a loud output hides no quiet one.

    It is that of `snr` for each output by itself; for `probabilities` the signal is 1 at every
    element, and for `decisions` 10 over the share that changes: 99 % of decisions kept are 30 dB.
    The signal of an output of fewer than 16 numbers is at least its mean over the samples. A
    state, which the model takes at its next step, may have ten times the noise: 20 dB are 30.

    Attributes:
        decisions: Outputs of class scores along the last axis; integer, boolean and text outputs
            are among them unasked.
        probabilities: Outputs that lie between 0 and 1, each element a probability by itself.
        states: Outputs that the model takes at its next step.
    """

    decibels: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (-200.0, 200.0)

    decisions: tuple[str, ...] = ()
    probabilities: tuple[str, ...] = ()
    states: tuple[str, ...] = ()

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> Sequence[float]:
        """Return how many outputs there are, then of each: elements, signal and noise power."""
        names = self.select_outputs(expected)
        broken = outputs.has_broken_values(expected, actual, names)
        row = [float(len(names))]
        for name in names:
            reference = expected[name]
            size = float(reference.size)
            if broken:
                row += [size, float("nan"), float("nan")]
            elif outputs.is_exact(reference) or name in self.decisions:
                changed = 1 - compute_agreement(expected, actual, name)
                row += [_FEW, 1.0, changed / _DECIDED]
            elif not outputs.has_same_shape(expected, actual, name):
                values = outputs.to_floats(reference)
                power = float(np.square(values[np.isfinite(values)]).sum()) or 1.0
                row += [size, power, power]
            else:
                clean, noisy = outputs.pair_finite(reference, actual[name])
                signal = size if name in self.probabilities else float(clean @ clean)
                signal *= _OWN if name in self.states else 1
                row += [size, signal, float((clean - noisy) @ (clean - noisy))]
        return row

    def aggregate(self, records: outputs.Floats) -> float:
        """Return the dB of the worst output from its powers, summed over the samples."""
        if not len(records):
            return float("nan")
        sums = self._read_powers(records)[:, :, 1:].sum(axis=0)
        return float(compute_decibels(sums).min(initial=self.bounds[1]))

    def each(self, records: outputs.Floats) -> outputs.Floats:
        powers = self._read_powers(records)
        if not powers.size:
            return np.full(len(records), self.bounds[1])
        few = powers[:, :, 0] < _FEW
        signal = np.where(
            few, np.maximum(powers[:, :, 1], powers[:, :, 1].mean(axis=0)), powers[:, :, 1]
        )
        pairs = np.stack([signal, powers[:, :, 2]], axis=-1)
        worst = compute_decibels(pairs.reshape(-1, 2)).reshape(signal.shape).min(axis=1)
        return np.asarray(worst, np.float64)

    def _read_powers(self, records: outputs.Floats) -> outputs.Floats:
        """Return elements, signal and noise of each output, [samples, outputs, 3]."""
        count = int(records[0, 0]) if len(records) else 0
        return records[:, 1 : 1 + 3 * count].reshape(len(records), count, 3)
