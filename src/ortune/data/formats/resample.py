"""Sound at another rate, by a windowed sinc in phases."""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

_HALF, _BETA = 10, 5.0
"""Zero crossings on each side, and the Kaiser window's shape: scipy.signal.resample_poly's."""
_BLOCK = 1 << 16
"""Outputs at once."""
_LARGEST = 50_000
"""Of both sides of the ratio in lowest terms: the filter has twenty times as many taps."""


def fits(own: int, wanted: int) -> bool:
    """Say whether a signal can be brought from one rate in Hz to the other."""
    return max(own, wanted) // math.gcd(own, wanted) <= _LARGEST


def resampled(signal: NDArray[np.float32], own: int, wanted: int) -> NDArray[np.float32]:
    """Return a signal [n] at another rate, [ceil(n * wanted / own)].

    The filter passes what is below half of the lower rate.

    Args:
        own: Its rate in Hz.
        wanted: The new one, which `fits`.
    """
    common = math.gcd(own, wanted)
    up, down = wanted // common, own // common
    if up == down or not len(signal):
        return signal
    half = _HALF * max(up, down)
    taps = up * _kernel(half, max(up, down))
    width = math.ceil(len(taps) / up)
    # Row p holds the taps p, p + up, ...: output n weighs inputs before (n * down + half) // up.
    phases = np.zeros((up, width))
    for phase in range(up):
        own_taps = taps[phase::up]
        phases[phase, width - len(own_taps) :] = own_taps[::-1]
    count = math.ceil(len(signal) * up / down)
    last = ((count - 1) * down + half) // up
    after = max(0, last + 1 - len(signal))
    windows = sliding_window_view(np.pad(signal.astype(np.float64), (width - 1, after)), width)
    made = np.empty(count, np.float32)
    for start in range(0, count, _BLOCK):
        places = np.arange(start, min(start + _BLOCK, count), dtype=np.int64) * down + half
        made[start : start + len(places)] = np.einsum(
            "nk,nk->n", windows[places // up], phases[places % up]
        )
    return made


def _kernel(half: int, ratio: int) -> NDArray[np.float64]:
    """Return a low-pass filter of 2 half + 1 taps that passes 1 / ratio of the band, of sum 1."""
    at = np.arange(-half, half + 1)
    taps = np.sinc(at / ratio) * np.kaiser(2 * half + 1, _BETA)
    return np.asarray(taps / taps.sum(), np.float64)
