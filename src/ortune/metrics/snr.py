"""Signal to noise ratio of the outputs, the baseline's being the signal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ortune.core.session import Tensors
from ortune.metrics.common import outputs
from ortune.metrics.common.fidelity import Fidelity

_CAP = 200.0  # dB: beyond what float64 can tell apart


@dataclass(frozen=True)
class Snr(Fidelity):
    """10 log10(signal / noise) in dB of a sample, powers summed over elements and float outputs.

    20 dB is 10 % of error in amplitude, 40 dB 1 %; held within -200 and 200. An integer, boolean
    or text output adds to the noise the signal times the share of its positions that differ. With
    ``share=0`` powers are summed over all samples too, where loud samples hide quiet ones.
    """

    decibels: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (-_CAP, _CAP)

    def chance(self, labels: Sequence[Any]) -> float:
        return 0.0

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> tuple[float, float]:
        """Return signal and noise power; an output that changed its shape is all noise."""
        names = self.select_outputs(expected)
        if outputs.has_broken_values(expected, actual, names):
            return float("nan"), float("nan")
        signal = noise = 0.0
        unlike = total = 0
        for name in names:
            reference, same = expected[name], outputs.has_same_shape(expected, actual, name)
            if outputs.is_exact(reference):
                size = max(1, reference.size)
                total += size
                unlike += outputs.count_mismatches(reference, actual[name]) if same else size
            elif same:
                clean, noisy = outputs.pair_finite(reference, actual[name])
                signal, noise = (
                    signal + float(clean @ clean),
                    noise + float((clean - noisy) @ (clean - noisy)),
                )
            else:
                values = outputs.to_floats(reference)
                power = float(np.square(values[np.isfinite(values)]).sum())
                signal, noise = signal + power, noise + (power or 1.0)
        if not total:
            return signal, noise
        return (signal, noise + signal * unlike / total) if signal else (total, noise + unlike)

    def aggregate(self, records: outputs.Floats) -> float:
        if not len(records):
            return float("nan")
        return float(compute_decibels(records.sum(axis=0, keepdims=True))[0])

    def each(self, records: outputs.Floats) -> outputs.Floats:
        return compute_decibels(records)


def compute_decibels(powers: outputs.Floats) -> outputs.Floats:
    """Return dB of rows (signal, noise); equal zeros are equal outputs."""
    signal, noise = powers[:, 0], powers[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        decibels = 10 * (np.log10(signal) - np.log10(noise))
    decibels[noise == 0] = _CAP
    decibels[np.isnan(signal) | np.isnan(noise)] = np.nan
    return np.asarray(np.clip(decibels, -_CAP, _CAP), np.float64)
