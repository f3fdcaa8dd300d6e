"""Benchmark shapes with random weights: their speed is real, their accuracy only indicative.

    python -m benchmarks.speed.shapes [name ...]

Exported with torch, shapes static and batch 1, and kept under ``.cache/shapes`` for as long as
this file and ``networks.py`` stay as they are; each with random samples beside it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.speed.networks import Bert, DenseUNet, Gpt2, GptStep, Recurrent, ResNet50, UNet

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "shapes"
_CALIBRATION, _SAMPLES = 24, 24


def write(name: str) -> Path:
    """Return a folder with ``model.onnx``, ``data`` and ``calibration`` of a shape."""
    folder = CACHE / f"{name}-{_digest()}"
    if (folder / "model.onnx").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        _EXPORTS[name](folder / "draft.onnx")
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
    code = b"".join(path.read_bytes() for path in (here, here.with_name("networks.py")))
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


def _unet(path: Path) -> None:
    _script(_settled(UNet(), lambda: _frames(2), 3), _frames(1), path, ["image", "sound"], ["y"])


def _dunet(path: Path) -> None:
    model = _settled(DenseUNet(), lambda: _frames(2), 2)
    _script(model, _frames(1), path, ["image", "sound"], ["y"])


def _resnet(path: Path) -> None:
    model = _settled(ResNet50(), lambda: (torch.randn(8, 3, 224, 224),), 4)
    _script(model, (torch.randn(1, 3, 224, 224),), path)


def _lstm(path: Path) -> None:
    _script(Recurrent().eval(), (torch.randn(1, 100, 128),), path)


def _gptkv(path: Path) -> None:
    past = [torch.randn(1, 12, _PAST, 64) for _ in range(12)]
    outputs = ["logits", *(f"kept_{name}" for name in _KEPT)]
    ids = torch.randint(0, 30000, (1, 1))
    _script(GptStep().eval(), (ids, *past), path, ["ids", *_KEPT], outputs)


def _script(
    model: nn.Module,
    example: tuple[torch.Tensor, ...],
    path: Path,
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
) -> None:
    torch.onnx.export(
        model, example, path, input_names=list(inputs), output_names=list(outputs),
        opset_version=17, dynamo=False,
    )  # fmt: skip


def _bert(path: Path) -> None:
    example = (torch.randint(0, 30000, (1, 128)), torch.ones(1, 128, dtype=torch.long))
    _graph(Bert().eval(), example, path, ["input_ids", "attention_mask"], "hidden")


def _gpt2(path: Path) -> None:
    example = (torch.randint(0, 50000, (1, 64)),)
    _graph(Gpt2().eval(), example, path, ["input_ids"], "logits")


def _graph(
    model: nn.Module, example: tuple[torch.Tensor, ...], path: Path, inputs: list[str], output: str
) -> None:
    torch.onnx.export(
        model, example, path, input_names=inputs, output_names=[output], opset_version=18,
        dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip


def _tokens(rng: np.random.Generator) -> dict[str, np.ndarray]:
    ids = rng.integers(0, 30000, (1, 128), np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _image(rng: np.random.Generator) -> dict[str, np.ndarray]:
    sound = rng.standard_normal((1, 512, 1, 8), np.float32)
    return {"image": rng.random((1, 6, 320, 320), np.float32), "sound": sound}


def _step(rng: np.random.Generator) -> dict[str, np.ndarray]:
    past = {name: _SMALL * rng.standard_normal((1, 12, _PAST, 64), np.float32) for name in _KEPT}
    return {"ids": rng.integers(0, 30000, (1, 1), np.int64), **past}


_PAST, _SMALL = 128, np.float32(0.3)
_KEPT = tuple(f"{part}_{block}" for block in range(6) for part in ("key", "value"))
_EXPORTS = {
    "resnet50": _resnet,
    "unet": _unet,
    "dunet": _dunet,
    "bert": _bert,
    "gpt2": _gpt2,
    "gptkv": _gptkv,
    "lstm": _lstm,
}
_INPUTS = {
    "resnet50": lambda rng: {"x": rng.standard_normal((1, 3, 224, 224), np.float32)},
    "unet": _image,
    "dunet": _image,
    "bert": _tokens,
    "gpt2": lambda rng: {"input_ids": rng.integers(0, 50000, (1, 64), np.int64)},
    "gptkv": _step,
    "lstm": lambda rng: {"x": rng.standard_normal((1, 100, 128), np.float32)},
}


if __name__ == "__main__":
    for one in sys.argv[1:] or _EXPORTS:
        print(one, write(one), flush=True)
