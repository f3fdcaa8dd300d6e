"""Silero VAD v6: nested If, an LSTM, state fed back frame by frame; a labelled phone call."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.real import speech
from tests.real import task as tasks
from tests.real.task import Run, Task, installed

FRAME, CONTEXT = 512, 64
PACKAGES = ("silero-vad==6.2.3", speech.PACKAGE)


def missing() -> str | None:
    """Return the pip line for what is not installed."""
    return tasks.missing(PACKAGES)


def task(folder: Path) -> Task:
    """Return a search that is scored by the frames' F1."""
    return Task(
        (installed("silero-vad", "silero_vad/data/silero_vad.onnx"),),
        "score>=base-0.01",
        lambda run: f1(np.array(evaluate(run))),
        evaluate=f"{__name__}:evaluate",
    )


def evaluate(run: Run) -> list[tuple[bool, bool]]:
    """Return (said, true) of every frame of the call: clean, and with noise at 10 and 0 dB."""
    return [
        row for sound, truth in conditions() for row in zip(said(run, sound), truth, strict=True)
    ]


def f1(rows: NDArray[Any]) -> float:
    """Return F1 of the frames called speech."""
    found, true = rows[:, 0] > 0.5, rows[:, 1] > 0.5
    return 2 * float((found & true).sum()) / float(found.sum() + true.sum())


evaluate.aggregate = f1  # type: ignore[attr-defined]


def said(run: Run, sound: NDArray[np.float32]) -> list[bool]:
    """Run frame by frame; the recurrent state and 64 samples of context are fed back."""
    state = np.zeros((2, 1, 128), np.float32)
    context = np.zeros(CONTEXT, np.float32)
    found = []
    for start in range(0, len(sound) - FRAME + 1, FRAME):
        frame = sound[start : start + FRAME]
        answer = run(
            input=np.concatenate([context, frame])[None], state=state, sr=np.array(16000, np.int64)
        )
        state, context = answer["stateN"], frame[-CONTEXT:]
        found.append(bool(answer["output"][0, 0] > 0.5))
    return found


@cache
def conditions() -> tuple[tuple[NDArray[np.float32], tuple[bool, ...]], ...]:
    """Return waveforms with the truth of every frame's middle."""
    sound, segments = speech.call()
    middles = (np.arange(len(sound) // FRAME) + 0.5) * FRAME / speech.RATE
    truth = tuple(any(start <= at < end for start, end in segments) for at in middles)
    rng = np.random.default_rng(0)
    noisy = [speech.noisy(sound, snr, rng) for snr in (10, 0)]
    return tuple((one, truth) for one in (sound, *noisy))
