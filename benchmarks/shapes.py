"""Benchmark shapes with random weights: their speed is real, their accuracy only indicative.

Exported with torch and kept under ``.cache/shapes``; each with random samples beside it.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "shapes"
_CALIBRATION, _SAMPLES = 24, 24


class Bottleneck(nn.Module):
    """ResNet's block: 1x1, 3x3, 1x1 convolutions beside a shortcut."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        outer = 4 * width
        self.main = nn.Sequential(
            nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outer, 1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        self.side = nn.Identity()
        if stride != 1 or inner != outer:
            self.side = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.side(x))


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]  # fmt: skip
        inner = 64
        for count, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
            for index in range(count):
                blocks.append(Bottleneck(inner, width, stride if index == 0 else 1))
                inner = 4 * width
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(2048, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(512, 256, 1, batch_first=True)
        self.head = nn.Linear(256, 500)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.lstm(x)[0])[0])


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(attn_implementation="eager")
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=input_ids, attention_mask=attention_mask)[0]


class Gpt2(nn.Module):
    """Six blocks; the head is the embedding table, transposed."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(n_layer=6, attn_implementation="eager", use_cache=False)
        self.gpt2 = GPT2LMHeadModel(config)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.gpt2(input_ids=input_ids).logits


def write(name: str) -> Path:
    """Return a folder with ``model.onnx``, ``data`` and ``calibration`` of a shape."""
    folder = CACHE / name
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


class DenseUNet(nn.Module):
    """Dense 3x3 convolutions, transposed ones on the way up, a skip at each level."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.first = _normed(6, widths[0])
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(
            [nn.Sequential(_normed(a, b, 2), _normed(b, b)) for a, b in pairs]
        )
        self.wide = nn.ModuleList([nn.ConvTranspose2d(b, a, 4, 2, 1) for a, b in reversed(pairs)])
        self.up = nn.ModuleList([_normed(2 * a, a) for a, _ in reversed(pairs)])
        self.last = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.first(x)]
        for step in self.down:
            kept.append(step(kept[-1]))
        found = kept.pop()
        for wide, step in zip(self.wide, self.up, strict=True):
            found = step(torch.cat([torch.relu(wide(found)), kept.pop()], 1))
        return torch.sigmoid(self.last(found))


def _normed(inner: int, outer: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inner, outer, 3, stride, 1)
    return nn.Sequential(conv, nn.BatchNorm2d(outer), nn.ReLU())


def _dunet(path: Path) -> None:
    model = DenseUNet().train()
    for _ in range(2):
        model(torch.randn(2, 6, 160, 160))
    _script(model.eval(), torch.randn(1, 6, 320, 320), path)


def _resnet(path: Path) -> None:
    model = ResNet50().train()
    for _ in range(4):
        model(torch.randn(8, 3, 224, 224))
    _script(model.eval(), torch.randn(1, 3, 224, 224), path)


def _lstm(path: Path) -> None:
    _script(Recurrent().eval(), torch.randn(1, 100, 128), path)


def _script(model: nn.Module, example: torch.Tensor, path: Path) -> None:
    torch.onnx.export(
        model, (example,), path, input_names=["x"], output_names=["y"],
        dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}}, opset_version=17, dynamo=False,
    )  # fmt: skip


def _bert(path: Path) -> None:
    example = (torch.randint(0, 30000, (2, 128)), torch.ones(2, 128, dtype=torch.long))
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", min=2, max=512)
    dims = {0: batch, 1: length}
    torch.onnx.export(
        Bert().eval(), example, path, input_names=["input_ids", "attention_mask"],
        output_names=["hidden"], dynamic_shapes=(dims, dims), opset_version=18, dynamo=True,
        external_data=False, verbose=False,
    )  # fmt: skip


def _gpt2(path: Path) -> None:
    example = torch.randint(0, 50000, (1, 64))
    dims = {1: torch.export.Dim("length", min=2, max=1024)}
    torch.onnx.export(
        Gpt2().eval(), (example,), path, input_names=["input_ids"], output_names=["logits"],
        dynamic_shapes=(dims,), opset_version=18, dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip


def _tokens(rng: np.random.Generator) -> dict[str, np.ndarray]:
    ids = rng.integers(0, 30000, (1, 128), np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


_EXPORTS = {"dunet": _dunet, "resnet50": _resnet, "lstm": _lstm, "bert": _bert, "gpt2": _gpt2}
_INPUTS = {
    "dunet": lambda rng: {"x": rng.standard_normal((1, 6, 320, 320), np.float32)},
    "resnet50": lambda rng: {"x": rng.standard_normal((1, 3, 224, 224), np.float32)},
    "lstm": lambda rng: {"x": rng.standard_normal((1, 100, 128), np.float32)},
    "bert": _tokens,
    "gpt2": lambda rng: {"input_ids": rng.integers(0, 50000, (1, 64), np.int64)},
}
