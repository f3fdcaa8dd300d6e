"""Networks whose int8 files OpenVINO executes in ways of their own, with random weights.

Each has one trait: strides in 1x1 convolutions, SiLU, hard-swish, circular padding, a patch
embedding, queries beside an encoder, gated depthwise convolutions over time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def _convolve(
    inner: int,
    outer: int,
    kernel: int = 3,
    stride: int = 1,
    *,
    groups: int = 1,
    act: Any = nn.SiLU,
) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outer),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


class EarlyStride(nn.Module):
    """ResNet's block as Keras has it: the stride stands in the first 1x1 convolution."""

    def __init__(self, inner: int, width: int, stride: int, *, project: bool) -> None:
        super().__init__()
        self.main = nn.Sequential(
            _convolve(inner, width, 1, stride, act=nn.ReLU),
            _convolve(width, width, 3, act=nn.ReLU),
            _convolve(width, 4 * width, 1, act=None),
        )
        self.side = _convolve(inner, 4 * width, 1, stride, act=None) if project else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.side(x))


class KerasResNet(nn.Module):
    """ResNet50 with the strides of the first paper."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [_convolve(3, 64, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
        inner = 64
        for count, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
            for index in range(count):
                step = stride if index == 0 else 1
                blocks.append(EarlyStride(inner, width, step, project=index == 0))
                inner = 4 * width
        self.body, self.head = nn.Sequential(*blocks), nn.Linear(2048, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class InvertedResidual(nn.Module):
    """MobileNet's block: 1x1 to `ratio` times the width, depthwise, 1x1 back."""

    def __init__(self, inner: int, outer: int, stride: int, ratio: int, act: Any, size: int = 3):
        super().__init__()
        wide = ratio * inner
        self.main = nn.Sequential(
            *([_convolve(inner, wide, 1, act=act)] if ratio > 1 else []),
            _convolve(wide, wide, size, stride, groups=wide, act=act),
            _convolve(wide, outer, 1, act=None),
        )
        self.shortcut = stride == 1 and inner == outer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.main(x) if self.shortcut else self.main(x)


class MobileNetV2(nn.Module):
    """The network of Sandler and others 2018, 224 x 224."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [_convolve(3, 32, 3, 2, act=nn.ReLU6)]
        inner = 32
        for ratio, outer, count, stride in (
            (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
            (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
        ):  # fmt: skip
            for index in range(count):
                step = stride if index == 0 else 1
                blocks.append(InvertedResidual(inner, outer, step, ratio, nn.ReLU6))
                inner = outer
        self.body = nn.Sequential(*blocks, _convolve(inner, 1280, 1, act=nn.ReLU6))
        self.head = nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Layout(nn.Module):
    """A layout detector: hard-swish, squeeze and excitation, three levels of boxes and classes."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.Hardswish
        widths = (32, 64, 128, 256)
        self.first = _convolve(3, widths[0], 3, 2, act=act)
        self.down = nn.ModuleList(
            [
                nn.Sequential(
                    InvertedResidual(a, b, 2, 3, act, 5), Excited(b), _convolve(b, b, act=act)
                )
                for a, b in pairwise(widths)
            ]
        )  # fmt: skip
        self.level = nn.ModuleList([_convolve(width, 96, 1, act=act) for width in widths[1:]])
        self.tower = nn.Sequential(
            _convolve(96, 96, 5, groups=96, act=act), _convolve(96, 96, 1, act=act)
        )
        self.classes, self.boxes = nn.Conv2d(96, 10, 1), nn.Conv2d(96, 32, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found, kept = self.first(x), []
        for step, level in zip(self.down, self.level, strict=True):
            found = step(found)
            kept.append(self.tower(level(found)))
        classes = torch.cat([torch.sigmoid(self.classes(one)).flatten(2) for one in kept], 2)
        return classes, torch.cat([self.boxes(one).flatten(2) for one in kept], 2)


class Excited(nn.Module):
    """Channels scaled by what is seen in the whole image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = functional.relu(self.narrow(functional.adaptive_avg_pool2d(x, 1)))
        return x * functional.hardsigmoid(self.wide(seen))


class SplitStage(nn.Module):
    """YOLOv8's stage: half of the channels go through residual pairs, all parts are joined."""

    def __init__(self, inner: int, outer: int, depth: int, *, shortcut: bool) -> None:
        super().__init__()
        self.half, self.shortcut = outer // 2, shortcut
        self.first = _convolve(inner, outer, 1)
        self.inner = nn.ModuleList(
            [
                nn.Sequential(_convolve(self.half, self.half), _convolve(self.half, self.half))
                for _ in range(depth)
            ]
        )
        self.last = _convolve((2 + depth) * self.half, outer, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).split(self.half, 1))
        for step in self.inner:
            found = step(parts[-1])
            parts.append(parts[-1] + found if self.shortcut else found)
        return self.last(torch.cat(parts, 1))


class Detector(nn.Module):
    """YOLOv8n at 320 x 320: SiLU, pyramid, boxes as expectations over 16 places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _convolve(3, 16, 3, 2), _convolve(16, 32, 3, 2), SplitStage(32, 32, 1, shortcut=True),
            _convolve(32, 64, 3, 2), SplitStage(64, 64, 2, shortcut=True),
        )  # fmt: skip
        self.middle = nn.Sequential(
            _convolve(64, 128, 3, 2), SplitStage(128, 128, 2, shortcut=True)
        )
        self.deep = nn.Sequential(
            _convolve(128, 256, 3, 2), SplitStage(256, 256, 1, shortcut=True)
        )
        self.pool = nn.ModuleList([_convolve(256, 128, 1), _convolve(512, 256, 1)])
        self.up = nn.ModuleList(
            [SplitStage(384, 128, 1, shortcut=False), SplitStage(192, 64, 1, shortcut=False)]
        )
        self.down = nn.ModuleList(
            [
                nn.ModuleList([_convolve(64, 64, 3, 2), SplitStage(192, 128, 1, shortcut=False)]),
                nn.ModuleList(
                    [_convolve(128, 128, 3, 2), SplitStage(384, 256, 1, shortcut=False)]
                ),
            ]
        )
        widths = (64, 128, 256)
        self.boxes = nn.ModuleList([self._make_head(width, 64, 64) for width in widths])
        self.classes = nn.ModuleList([self._make_head(width, 80, 80) for width in widths])

    @staticmethod
    def _make_head(width: int, inner: int, outer: int) -> nn.Sequential:
        return nn.Sequential(
            _convolve(width, inner), _convolve(inner, inner), nn.Conv2d(inner, outer, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = self.stem(x)
        middle = self.middle(near)
        far = self.pool[0](self.deep(middle))
        pooled = [far]
        for _ in range(3):
            pooled.append(functional.max_pool2d(pooled[-1], 5, 1, 2))
        far = self.pool[1](torch.cat(pooled, 1))
        middle = self.up[0](torch.cat([functional.interpolate(far, scale_factor=2.0), middle], 1))
        near = self.up[1](torch.cat([functional.interpolate(middle, scale_factor=2.0), near], 1))
        middle = self.down[0][1](torch.cat([self.down[0][0](near), middle], 1))
        far = self.down[1][1](torch.cat([self.down[1][0](middle), far], 1))
        levels = (near, middle, far)
        boxes = torch.cat([f(v).flatten(2) for f, v in zip(self.boxes, levels, strict=True)], 2)
        classes = torch.cat(
            [f(v).flatten(2) for f, v in zip(self.classes, levels, strict=True)], 2
        )
        places = boxes.view(1, 4, 16, -1).softmax(2)
        sides = (places * torch.arange(16.0).view(1, 1, 16, 1)).sum(2)
        return torch.cat([sides, classes.sigmoid()], 1)


class SiluUNet(nn.Module):
    """A U-Net of 3x3 convolutions with SiLU, nearest neighbours on the way up."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.first = _convolve(3, widths[0])
        self.down = nn.ModuleList(
            [nn.Sequential(_convolve(a, b, 3, 2), _convolve(b, b)) for a, b in pairwise(widths)]
        )
        self.up = nn.ModuleList([_convolve(a + b, a) for a, b in reversed(list(pairwise(widths)))])
        self.last = nn.Conv2d(widths[0], 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.first(x)]
        for step in self.down:
            kept.append(step(kept[-1]))
        found = kept.pop()
        for step in self.up:
            found = step(
                torch.cat([functional.interpolate(found, scale_factor=2.0), kept.pop()], 1)
            )
        return self.last(found)


class Spindles(nn.Module):
    """A detector over time: 1-D convolutions with circular padding and residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self._convolve_around(2, 64, 7)
        self.body = nn.ModuleList(
            [
                nn.Sequential(
                    self._convolve_around(64, 64, 5, 2**index), nn.BatchNorm1d(64), nn.SiLU(),
                    self._convolve_around(64, 64, 5), nn.BatchNorm1d(64),
                )
                for index in range(6)
            ]
        )  # fmt: skip
        self.last = nn.Conv1d(64, 3, 1)

    @staticmethod
    def _convolve_around(inner: int, outer: int, kernel: int, step: int = 1) -> nn.Module:
        pad = step * (kernel // 2)
        return nn.Conv1d(inner, outer, kernel, 1, pad, step, padding_mode="circular")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = functional.silu(self.first(x))
        for step in self.body:
            found = functional.silu(found + step(found))
        return torch.sigmoid(self.last(found))


class Conformer(nn.Module):
    """Four blocks of attention beside gated depthwise convolutions over time."""

    def __init__(self, width: int = 256, blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([ConformerBlock(width) for _ in range(blocks)])
        self.first, self.last = nn.Linear(80, width), nn.Linear(width, 500)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.first(x)
        for block in self.blocks:
            found = block(found)
        return self.last(found)


class ConformerBlock(nn.Module):
    """Two halves of a feed-forward around attention and convolution (Gulati and others 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(5)])
        self.wide = nn.ModuleList([nn.Linear(width, 4 * width) for _ in range(2)])
        self.narrow = nn.ModuleList([nn.Linear(4 * width, width) for _ in range(2)])
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 15, 1, 7, groups=width)
        self.norm, self.point = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.narrow[0](functional.silu(self.wide[0](self.norms[0](x))))
        x = x + self._attend(self.norms[1](x))
        x = x + self._convolve(self.norms[2](x))
        x = x + 0.5 * self.narrow[1](functional.silu(self.wide[1](self.norms[3](x))))
        return self.norms[4](x)

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        query, key, value = self.joint(x).view(batch, tokens, 3, 4, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(query @ key.transpose(2, 3) * (width / 4) ** -0.5, -1)
        return self.out((weights @ value).transpose(1, 2).reshape(batch, tokens, width))

    def _convolve(self, x: torch.Tensor) -> torch.Tensor:
        found = functional.glu(self.gate(x.transpose(1, 2)), 1)
        return self.point(functional.silu(self.norm(self.depthwise(found)))).transpose(1, 2)


class Queries(nn.Module):
    """DETR's form: a small backbone, two encoder and two decoder layers, boxes and classes."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            _convolve(3, 64, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1),
            EarlyStride(64, 32, 2, project=True), EarlyStride(128, 64, 2, project=True),
        )  # fmt: skip
        self.point = nn.Conv2d(256, width, 1)
        self.places = nn.Parameter(torch.randn(1, 400, width))
        self.queries = nn.Parameter(torch.randn(1, 100, width))
        plain = {"batch_first": True, "dim_feedforward": 1024, "dropout": 0.0}
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 8, **plain), 2)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(width, 8, **plain), 2)
        self.classes, self.boxes = (
            nn.Linear(width, 92),
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.point(self.backbone(x)).flatten(2).transpose(1, 2) + self.places
        found = self.decoder(self.queries, self.encoder(seen))
        return self.classes(found), torch.sigmoid(self.boxes(found))


class Vit(nn.Module):
    """ViT-S/16 at 224 x 224."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import ViTConfig, ViTModel

        config = ViTConfig(
            hidden_size=384, num_attention_heads=6, intermediate_size=1536,
            attn_implementation="eager",
        )  # fmt: skip
        self.vit = ViTModel(config, add_pooling_layer=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.vit(x)[0]
