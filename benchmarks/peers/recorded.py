"""Two real models whose samples are made here: Silero VAD's frames and PP-OCRv6's lines."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tests.real import rendered, speech
from tests.real.jobs import silero
from tests.real.task import installed

from benchmarks.peers.environments import CACHE
from ortune.core.atomic_write import open_draft

Arrays = dict[str, NDArray[np.generic]]
_FRAMES, _LINES = 200, 32


def write(name: str) -> Path:
    """Return a folder with ``model.onnx``, ``data`` and ``calibration``."""
    folder = CACHE / "models" / name
    if folder.is_dir():
        return folder
    with open_draft(folder) as draft:
        draft.mkdir()
        shutil.copy(_SOURCES[name](), draft / "model.onnx")
        for part, samples in _SAMPLES[name](draft / "model.onnx").items():
            (draft / part).mkdir()
            for count, sample in enumerate(samples):
                np.savez(draft / part / f"{count:04}.npz", **sample)
    return folder


def _silero(model: Path) -> dict[str, Iterator[Arrays]]:
    """Frames with the state that the float32 model had: the call clean, and with 20 dB of noise.

    There is no second recording: the same voices calibrate, under a noise that is in no score.
    """
    sound, _ = speech.call()
    noisy = speech.noisy(sound, 20, np.random.default_rng(1))
    return {"data": _frames(model, sound), "calibration": _frames(model, noisy)}


def _frames(model: Path, sound: NDArray[np.float32]) -> Iterator[Arrays]:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    state, context = np.zeros((2, 1, 128), np.float32), np.zeros(silero.CONTEXT, np.float32)
    every = max(1, len(sound) // silero.FRAME // _FRAMES)
    for count in range(len(sound) // silero.FRAME):
        frame = sound[count * silero.FRAME :][: silero.FRAME]
        feed = {"input": np.concatenate([context, frame])[None], "state": state}
        feed["sr"] = np.array(16000, np.int64)
        if count % every == 0:
            yield dict(feed)
        state, context = session.run(["stateN"], feed)[0], frame[-silero.CONTEXT :]


def _lines(model: Path) -> dict[str, Iterator[Arrays]]:
    """Review lines to judge by, beginnings of news documents to calibrate with."""
    return {"data": _drawn(rendered.reviews(), 0), "calibration": _drawn(rendered.news(), 1)}


def _drawn(texts: list[str], seed: int) -> Iterator[Arrays]:
    rng = np.random.default_rng(seed)
    for text in texts[:_LINES]:
        yield {"x": rendered.strip(rendered.line(text, rng))}


_SOURCES = {
    "silero-vad-16k": lambda: installed("silero-vad", "silero_vad/data/silero_vad_16k_op15.onnx"),
    "ppocr-rec": lambda: installed("rapidocr", "rapidocr/models/PP-OCRv6_rec_small.onnx"),
}
_SAMPLES = {"silero-vad-16k": _silero, "ppocr-rec": _lines}
