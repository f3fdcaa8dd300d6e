"""A lip-sync UNet: lower halves of faces and sound features in, mouths that speak it out.

    python -m examples.lip_sync.network FOLDER

writes FOLDER/lip_sync.onnx and FOLDER/data, random weights and inputs: its speed is real.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from benchmarks.speed.networks import UNet

_SAMPLES = 24


def make() -> UNet:
    """Return the module, the same for every caller: what the ONNX file was exported from."""
    torch.manual_seed(0)
    model = UNet().train()
    with torch.no_grad():
        for _ in range(3):  # normalizations see what they normalize
            model(*_frames(2))
    return model.eval()


def write(folder: Path) -> Path:
    """Write the model and its samples."""
    rng, path = np.random.default_rng(0), folder / "lip_sync.onnx"
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for index in range(_SAMPLES):
        image = rng.random((1, 6, 320, 320), np.float32)
        sound = rng.standard_normal((1, 512, 1, 8), np.float32)
        np.savez(folder / "data" / f"{index:03}.npz", image=image, sound=sound)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            make(), _frames(1), path, input_names=["image", "sound"], output_names=["mouth"],
            opset_version=17, dynamo=False,
        )  # fmt: skip
    return path


def _frames(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(batch, 6, 320, 320), torch.randn(batch, 512, 1, 8)


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
