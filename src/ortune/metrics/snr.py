"""Signal to noise ratio of the outputs, the baseline's being the signal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortune.core.metric import Metric
from ortune.core.session import Tensors
from ortune.scoring import outputs
from ortune.scoring.outputs import Floats

_CAP = 200.0
"""dB: beyond what float64 can tell apart."""


@dataclass(frozen=True)
class Snr(Metric):
    """10 log10(signal / noise) in dB, powers summed over all elements, float outputs and samples.

    20 dB is 10 % of error in amplitude, 40 dB 1 %; held within -200 and 200. An integer, boolean
    or text output adds to the noise the signal times the share of its positions that differ.

    Attributes:
        output: The only output that counts; empty takes all.
    """

    output: str = ""

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> tuple[float, float]:
        """Return signal and noise power; an output that changed its shape is all noise."""
        names = outputs.chosen(expected, self.output)
        if outputs.broken(expected, actual, names):
            return float("nan"), float("nan")
        signal = noise = 0.0
        for name in names:
            if not outputs.is_exact(expected[name]):
                one, two = _powers(expected, actual, name)
                signal, noise = signal + one, noise + two
        unlike, total = 0, 0
        for name in names:
            if outputs.is_exact(expected[name]):
                unlike += _unlike(expected, actual, name)
                total += max(1, expected[name].size)
        if not total:
            return signal, noise
        return (signal, noise + signal * unlike / total) if signal else (total, noise + unlike)

    def aggregate(self, records: Floats) -> float:
        """Return dB from the summed powers."""
        if not len(records):
            return float("nan")
        signal, noise = (float(total) for total in records.sum(axis=0))
        if math.isnan(signal) or math.isnan(noise):
            return float("nan")
        if noise == 0:
            return _CAP
        if signal == 0:
            return -_CAP
        return min(_CAP, max(-_CAP, 10 * (math.log10(signal) - math.log10(noise))))


def _powers(expected: Tensors, actual: Tensors, name: str) -> tuple[float, float]:
    if not outputs.alike(expected, actual, name):
        wanted = outputs.numbers(expected[name])
        power = float(np.square(wanted[np.isfinite(wanted)]).sum())
        return power, power or 1.0
    one, two = outputs.pair(expected[name], actual[name])
    error = one - two
    return float(one @ one), float(error @ error)


def _unlike(expected: Tensors, actual: Tensors, name: str) -> int:
    if not outputs.alike(expected, actual, name):
        return max(1, expected[name].size)
    return outputs.mismatches(expected[name], actual[name])
