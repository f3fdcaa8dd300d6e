"""A labelled phone call: 30 s, two speakers, and a human's record of who speaks when (MIT)."""

from __future__ import annotations

import wave

import numpy as np
from numpy.typing import NDArray

from tests.real.task import installed

PACKAGE = "pyannote.audio==4.0.7"
RATE = 16000


def call() -> tuple[NDArray[np.float32], list[tuple[float, float]]]:
    """Return the waveform in [-1, 1] and the speech segments in seconds."""
    folder = installed("pyannote.audio", "pyannote/audio/sample")
    with wave.open(str(folder / "sample.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    lines = [line.split() for line in (folder / "sample.rttm").read_text().splitlines() if line]
    segments = [(float(x[3]), float(x[3]) + float(x[4])) for x in lines]
    return samples.astype(np.float32) / 32768, segments


def noisy(
    signal: NDArray[np.float32], snr_db: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Add white noise."""
    scale = np.sqrt(np.mean(signal**2) / 10 ** (snr_db / 10))
    noise = rng.standard_normal(len(signal)).astype(np.float32)
    return (signal + noise * scale).astype(np.float32)
