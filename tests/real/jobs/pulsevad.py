"""PulseVAD: a 2,100-parameter CNN on windows of 200 ms of a labelled phone call."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.real import speech
from tests.real import task as tasks
from tests.real.task import Run, Task, installed

WINDOW, HOP = 3200, 1600
PACKAGES = ("pulsevad==0.1.3", speech.PACKAGE)


def missing() -> str | None:
    """Return the pip line for what is not installed."""
    return tasks.missing(PACKAGES)


def task(folder: Path) -> Task:
    """Return the float model's search."""
    return search(folder, "pulsevad_2.1k.onnx")


def search(folder: Path, name: str) -> Task:
    """Return a search over labelled windows; the three noise levels of a window are one group."""
    features, labels, groups = windows((None, 15.0, 5.0), 0)
    other = windows((10.0,), HOP // 2)[0]
    for part in ("data", "calibration"):
        (folder / part).mkdir()
    np.savez(folder / "data" / "call.npz", log_mel=features, label=labels, group=groups)
    np.savez(folder / "calibration" / "call.npz", log_mel=other)
    return Task(
        (installed("pulsevad", f"pulsevad/data/{name}"),),
        "top1>=base-0.01",
        score,
        data=folder / "data",
        calibration=folder / "calibration",
    )


def score(run: Run) -> float:
    """Return the share of windows that are called right, in one batch."""
    features, labels, _ = windows((None, 15.0, 5.0), 0)
    (answer,) = run(log_mel=features).values()
    return float((answer.argmax(1) == labels).mean())


@cache
def windows(
    levels: tuple[float | None, ...], offset: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[Any]]:
    """Return log-mel features [windows, 64, 21], speech or not, and the window's number.

    Args:
        levels: Signal to noise in dB; None is the call as it is.
        offset: Of the first window, in samples.
    """
    path = installed("pulsevad", "pulsevad/frontend_np.py")
    spec = importlib.util.spec_from_file_location("pulsevad_frontend", path)
    assert spec is not None and spec.loader is not None
    frontend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(frontend)
    sound, segments = speech.call()
    active = np.zeros(len(sound), bool)
    for start, end in segments:
        active[int(start * speech.RATE) : int(end * speech.RATE)] = True
    rng = np.random.default_rng(0)
    heard = [sound if snr is None else speech.noisy(sound, snr, rng) for snr in levels]
    starts = np.arange(offset, len(sound) - WINDOW + 1, HOP)
    cuts = np.concatenate([[one[at : at + WINDOW] for at in starts] for one in heard])
    labels = np.array([active[at : at + WINDOW].mean() > 0.5 for at in starts], np.int64)
    features = np.asarray(frontend.extract_log_mel_np(cuts), np.float32)
    return features, np.tile(labels, len(levels)), np.tile(starts.astype(str), len(levels))
