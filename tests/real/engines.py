"""The models that the engine is tried on, with samples that are all different."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tests.real.samples import sample, written
from tests.real.task import installed, missing

Arrays = dict[str, NDArray[np.generic]]
NAMES = ("digit-cnn", "efficientnet-lite0", "minilm", "silero", "unet")
_SILERO = "silero-vad==6.2.3"
_FRAME = 576


def absent(name: str) -> str | None:
    """Return what to install for a model, or None."""
    if name == "silero":
        return missing((_SILERO,))
    if name == "unet":
        return missing(("torch",))
    return sample(name).missing()


def model(name: str) -> tuple[Path, list[Arrays]]:
    """Return the file and up to 16 samples of batch 1; of the UNet, which is slow, 4."""
    if name == "silero":
        path = installed("silero-vad", "silero_vad/data/silero_vad.onnx")
        return path, list(_frames(path, 16))
    if name == "unet":
        from benchmarks.speed.shapes import write

        folder = write("unet")
    else:
        folder = written(name)
    path = folder / "model.onnx"
    return path, list(islice(_read(path, folder / "data"), 4 if name == "unet" else 16))


def bare(path: Path, threads: int = 1) -> ort.InferenceSession:
    """Open a session without ortune, with the settings of ``cpu(threads=...)``."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _read(path: Path, folder: Path) -> Iterator[Arrays]:
    """Yield samples of batch 1 from files of one or of many."""
    names = [one.name for one in bare(path).get_inputs()]
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as held:
            arrays = {name: held[name] for name in names}
        for row in range(len(arrays[names[0]])):
            yield {name: array[row : row + 1] for name, array in arrays.items()}


def _frames(path: Path, count: int) -> Iterator[Arrays]:
    """Yield frames of noise, each with the state that those before it left."""
    rng, session = np.random.default_rng(0), bare(path)
    state = np.zeros((2, 1, 128), np.float32)
    for _ in range(count):
        sound = 0.3 * rng.standard_normal((1, _FRAME)).astype(np.float32)
        one = {"input": sound, "state": state, "sr": np.array(16000, np.int64)}
        yield one
        state = session.run(["stateN"], one)[0]
