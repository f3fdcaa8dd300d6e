"""Benchmark shapes with random weights: their speed is real, their accuracy only indicative.

    python -m benchmarks.speed.shapes [name ...]

Exported with torch, shapes static and batch 1, and kept under ``.cache/shapes`` for as long as
this file and ``networks.py`` stay as they are; each with random samples beside it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.speed import int8_networks
from benchmarks.speed.networks import Bert, DenseUNet, Gpt2, GptStep, Recurrent, ResNet50, UNet

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "shapes"
_CALIBRATION, _SAMPLES = 24, 80
"""With fewer samples nothing that rounds is called likely of three finalists (`accuracy.md`)."""


def write(name: str) -> Path:
    """Return a folder with ``model.onnx``, ``data`` and ``calibration`` of a shape."""
    folder = CACHE / f"{name}-{_digest()}"
    if (folder / "model.onnx").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        _export(name, folder / "draft.onnx")
    rng = np.random.default_rng(0)
    for part, count in (("calibration", _CALIBRATION), ("data", _SAMPLES)):
        (folder / part).mkdir(exist_ok=True)
        for index in range(count):
            np.savez(folder / part / f"{index:03}.npz", **_INPUTS[name](rng))
    (folder / "draft.onnx").rename(folder / "model.onnx")
    return folder


def _digest() -> str:
    """What the files hang on: they are made anew when the code changes."""
    here = Path(__file__)
    files = (here, *(here.with_name(f"{name}networks.py") for name in ("", "int8_")))
    code = b"".join(path.read_bytes() for path in files)
    return sha256(code).hexdigest()[:12]


def _settled(
    model: nn.Module, feed: Callable[[], tuple[torch.Tensor, ...]], times: int
) -> nn.Module:
    """Let normalizations see what they normalize."""
    model.train()
    for _ in range(times):
        model(*feed())
    return model.eval()


def _frames(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(batch, 6, 320, 320), torch.randn(batch, 512, 1, 8)


def _images(batch: int, side: int) -> tuple[torch.Tensor]:
    return (torch.rand(batch, 3, side, side),)


def network(name: str) -> nn.Module:
    """Return a shape's module with the weights of its file, on the CPU, ready to run."""
    torch.manual_seed(0)
    with torch.no_grad():
        return _NETWORKS[name]().eval()


def _export(name: str, path: Path) -> None:
    """Write a shape's file; inputs are named, shaped and ordered as its samples are."""
    sample = _INPUTS[name](np.random.default_rng(0))
    form: dict[str, Any] = {"opset_version": 17, "dynamo": False}
    if name in _BY_GRAPH:
        form = {"opset_version": 18, "dynamo": True, "external_data": False, "verbose": False}
    torch.onnx.export(
        network(name), tuple(map(torch.from_numpy, sample.values())), path,
        input_names=list(sample), output_names=_OUTPUTS.get(name, ["y"]), **form,
    )  # fmt: skip


def _tokens(rng: np.random.Generator) -> dict[str, np.ndarray]:
    ids = rng.integers(0, 30000, (1, 128), np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _image(rng: np.random.Generator) -> dict[str, np.ndarray]:
    sound = rng.standard_normal((1, 512, 1, 8), np.float32)
    return {"image": rng.random((1, 6, 320, 320), np.float32), "sound": sound}


def _picture(rng: np.random.Generator, side: int) -> dict[str, np.ndarray]:
    """Return random shades in patches of several sizes: edges, as pictures have them."""
    shades = sum(
        np.kron(rng.random((3, side // size, side // size)), np.ones((size, size)))
        for size in (1, 2, 4, 8)
    )
    return {"x": (shades[None] / 4).astype(np.float32)}


def _step(rng: np.random.Generator) -> dict[str, np.ndarray]:
    past = {name: _SMALL * rng.standard_normal((1, 12, _PAST, 64), np.float32) for name in _KEPT}
    return {"ids": rng.integers(0, 30000, (1, 1), np.int64), **past}


_PAST, _SMALL = 128, np.float32(0.3)
_KEPT = tuple(f"{part}_{block}" for block in range(6) for part in ("key", "value"))
_NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: _settled(ResNet50(), lambda: (torch.randn(8, 3, 224, 224),), 4),
    "unet": lambda: _settled(UNet(), lambda: _frames(2), 3),
    "dunet": lambda: _settled(DenseUNet(), lambda: _frames(2), 2),
    "bert": Bert,
    "gpt2": Gpt2,
    "gptkv": GptStep,
    "lstm": Recurrent,
    "mobilenet-v2": lambda: _settled(int8_networks.MobileNetV2(), lambda: _images(8, 224), 4),
    "keras-resnet": lambda: _settled(int8_networks.KerasResNet(), lambda: _images(4, 224), 4),
    "silu-unet": lambda: _settled(int8_networks.SiluUNet(), lambda: _images(2, 256), 4),
    "detector": lambda: _settled(int8_networks.Detector(), lambda: _images(1, 320), 6),
    "layout": lambda: _settled(int8_networks.Layout(), lambda: _images(2, 416), 4),
    "spindles": lambda: _settled(int8_networks.Spindles(), lambda: (torch.randn(2, 2, 3000),), 4),
    "queries": lambda: _settled(int8_networks.Queries(), lambda: _images(1, 320), 4),
    "conformer": lambda: _settled(
        int8_networks.Conformer(), lambda: (torch.randn(2, 200, 80),), 4
    ),
    "vit": int8_networks.Vit,
}
_BY_GRAPH = ("bert", "gpt2", "queries", "vit")
"""Exported from torch's graph; the others by the older exporter, which traces a run."""
_OUTPUTS = {
    "bert": ["hidden"],
    "layout": ["classes", "boxes"],
    "queries": ["classes", "boxes"],
    "gpt2": ["logits"],
    "gptkv": ["logits", *(f"kept_{name}" for name in _KEPT)],
}
_INPUTS = {
    "resnet50": lambda rng: {"x": rng.standard_normal((1, 3, 224, 224), np.float32)},
    "unet": _image,
    "dunet": _image,
    "bert": _tokens,
    "gpt2": lambda rng: {"input_ids": rng.integers(0, 50000, (1, 64), np.int64)},
    "gptkv": _step,
    "lstm": lambda rng: {"x": rng.standard_normal((1, 100, 128), np.float32)},
    "spindles": lambda rng: {"x": rng.standard_normal((1, 2, 3000), np.float32)},
    "conformer": lambda rng: {"x": rng.standard_normal((1, 200, 80), np.float32)},
    **{
        name: partial(_picture, side=side)
        for name, side in (
            ("mobilenet-v2", 224),
            ("keras-resnet", 224),
            ("silu-unet", 256),
            ("detector", 320),
            ("layout", 416),
            ("queries", 320),
            ("vit", 224),
        )
    },
}


if __name__ == "__main__":
    for one in sys.argv[1:] or _NETWORKS:
        print(one, write(one), flush=True)
