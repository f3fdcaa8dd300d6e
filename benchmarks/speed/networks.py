"""The networks behind the benchmark shapes, as torch modules with random weights."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn


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
    """The network of He and others 2015, 224 x 224."""

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
    """Two bidirectional LSTMs, then a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(512, 256, 1, batch_first=True)
        self.head = nn.Linear(256, 500)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.lstm(x)[0])[0])


class Bert(nn.Module):
    """BERT base without its pooling layer."""

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


class GptStep(nn.Module):
    """Six blocks of a decoder that reads one token and the keys and values of those before it."""

    def __init__(self, blocks: int = 6, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads, size = heads, width // heads
        self.scale = size**-0.5
        self.words, self.places = nn.Embedding(32000, width), nn.Embedding(1024, width)
        self.joint = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(blocks)])
        self.out = nn.ModuleList([nn.Linear(width, width) for _ in range(blocks)])
        self.wide = nn.ModuleList([nn.Linear(width, 4 * width) for _ in range(blocks)])
        self.narrow = nn.ModuleList([nn.Linear(4 * width, width) for _ in range(blocks)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * blocks + 1)])
        self.head = nn.Linear(width, 32000, bias=False)

    def forward(self, ids: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch, tokens = ids.shape
        start = past[0].shape[2]
        x = (
            self.words(ids)
            + self.places(torch.arange(start, start + tokens, device=ids.device))[None]
        )
        kept: list[torch.Tensor] = []
        for index, joint in enumerate(self.joint):
            parts = joint(self.norms[2 * index](x)).view(batch, tokens, 3, self.heads, -1)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            key = torch.cat([past[2 * index], key], 2)
            value = torch.cat([past[2 * index + 1], value], 2)
            kept += [key, value]
            found = torch.softmax(query @ key.transpose(2, 3) * self.scale, -1) @ value
            x = x + self.out[index](found.transpose(1, 2).reshape(batch, tokens, -1))
            wide = self.wide[index](self.norms[2 * index + 1](x))
            x = x + self.narrow[index](nn.functional.gelu(wide, approximate="tanh"))
        return (self.head(self.norms[-1](x)), *kept)


class Inverted(nn.Module):
    """A depthwise 3x3 convolution between two of 1x1, the first one to twice the width."""

    def __init__(self, inner: int, outer: int, stride: int = 1, shortcut: bool = False) -> None:
        super().__init__()
        wide, self.shortcut = 2 * inner, shortcut
        self.main = nn.Sequential(
            nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.ReLU(), nn.Conv2d(wide, outer, 1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.main(x) if self.shortcut else self.main(x)


class Dense(nn.Module):
    """A 3x3 convolution with its normalization."""

    def __init__(self, inner: int, outer: int, stride: int = 1, shortcut: bool = False) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1), nn.BatchNorm2d(outer)
        )  # fmt: skip
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.main(x)
        return torch.relu(found + x if self.shortcut else found)


class Sound(nn.Module):
    """One vector from 8 steps of sound features, wide enough to join the image's."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        steps = [
            nn.Sequential(nn.Conv2d(inner, outer, (1, 3), 1, (0, 1)), nn.ReLU())
            for inner, outer in pairwise(widths)
        ]
        self.main = nn.Sequential(*steps, nn.AdaptiveAvgPool2d(1))

    def forward(self, sound: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        return self.main(sound).expand(-1, -1, image.shape[2], image.shape[3])


class Levels(nn.Module):
    """A U-Net's way down and up: a skip at each level, sound in the middle."""

    first: nn.Module
    down: nn.ModuleList
    sound: nn.Module
    joined: nn.Module
    up: nn.ModuleList
    last: nn.Module

    def widened(self, found: torch.Tensor, level: int) -> torch.Tensor:
        """Return it at twice the width and height, for that level of the way up."""
        raise NotImplementedError

    def forward(self, image: torch.Tensor, sound: torch.Tensor) -> torch.Tensor:
        kept = [self.first(image)]
        for step in self.down:
            kept.append(step(kept[-1]))
        found = kept.pop()
        found = self.joined(torch.cat([found, self.sound(sound, found)], 1))
        for level, step in enumerate(self.up):
            found = step(torch.cat([self.widened(found, level), kept.pop()], 1))
        return torch.sigmoid(self.last(found))


class UNet(Levels):
    """Depthwise blocks, bilinear on the way up."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256, 512)
        pairs = list(pairwise(widths))
        self.first = Inverted(6, widths[0])
        self.down = nn.ModuleList(
            [nn.Sequential(Inverted(a, b, 2), Inverted(b, b, 1, True)) for a, b in pairs]
        )
        self.sound = Sound(512, 512, 512)
        self.joined = nn.Sequential(Inverted(1024, 512), Inverted(512, 512, 1, True))
        self.up = nn.ModuleList(
            [
                nn.Sequential(Inverted(a + b, a), Inverted(a, a, 1, True))
                for a, b in reversed(pairs)
            ]
        )
        self.last = nn.Conv2d(widths[0], 3, 1)

    def widened(self, found: torch.Tensor, level: int) -> torch.Tensor:
        return nn.functional.interpolate(
            found, scale_factor=2, mode="bilinear", align_corners=False
        )


class DenseUNet(Levels):
    """Dense 3x3 convolutions, transposed ones on the way up."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        pairs = list(pairwise(widths))
        self.first = Dense(6, widths[0])
        self.down = nn.ModuleList(
            [nn.Sequential(Dense(a, b, 2), Dense(b, b, 1, True)) for a, b in pairs]
        )
        self.sound = Sound(512, 256)
        self.joined = Dense(512, 256)
        self.wide = nn.ModuleList([nn.ConvTranspose2d(b, a, 4, 2, 1) for a, b in reversed(pairs)])
        self.up = nn.ModuleList([Dense(2 * a, a) for a, _ in reversed(pairs)])
        self.last = nn.Conv2d(widths[0], 3, 1)

    def widened(self, found: torch.Tensor, level: int) -> torch.Tensor:
        return torch.relu(self.wide[level](found))
