"""Lines and pages of rendered text, blurred, noised and of low contrast: the truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from PIL.Image import Resampling

from tests.real.task import installed

PACKAGES = ("rapidocr==3.10.0", "gensim==4.4.0", "pillow")
Box = tuple[float, float, float, float]
SIDE, LINES = 736, 10


def reviews() -> list[str]:
    """Return the first seven words of film-review lines, 16 to 44 characters long."""
    path = installed("gensim", "gensim/test/test_data/pang_lee_polarity.cor")
    texts = [line.strip().partition(" ")[2] for line in path.read_text("latin-1").splitlines()]
    return _short(texts)


def news() -> list[str]:
    """Return the beginnings of news documents, for calibration: none is among the reviews."""
    path = installed("gensim", "gensim/test/test_data/lee.cor")
    return _short(path.read_text("latin-1").splitlines())


def _short(texts: list[str]) -> list[str]:
    found = []
    for text in texts:
        words = text.replace(" ,", ",").replace(" .", ".").split()
        line = " ".join(words[:7])
        if line.isascii() and 15 < len(line) < 45:
            found.append(line[0].upper() + line[1:])
    return found


def line(text: str, rng: np.random.Generator) -> Image.Image:
    """Draw one line."""
    font = ImageFont.load_default(26)
    left, top, right, bottom = font.getbbox(text)
    image = Image.new("RGB", (int(right - left) + 16, int(bottom - top) + 14), "white")
    ImageDraw.Draw(image).text((8 - left, 7 - top), text, fill="black", font=font)
    return _degraded(image, rng)


def page(texts: list[str], rng: np.random.Generator) -> tuple[Image.Image, list[Box]]:
    """Draw ten lines on a square page; return it with the box of every line."""
    font = ImageFont.load_default(24)
    image = Image.new("RGB", (SIDE, SIDE), "white")
    draw = ImageDraw.Draw(image)
    boxes = []
    for at, text in enumerate(texts[:LINES]):
        corner = (int(rng.integers(20, 120)), 24 + 70 * at)
        draw.text(corner, text, fill="black", font=font)
        boxes.append(draw.textbbox(corner, text, font=font))
    return _degraded(image, rng), boxes


def strip(image: Image.Image, widest: int | None = None) -> NDArray[np.float32]:
    """Return a line as [1, 3, 48, width], BGR in [-1, 1], of the given width if one is."""
    width = max(48, round(image.width * 48 / image.height))
    width = min(width, widest) if widest else width
    pixels = np.asarray(image.resize((width, 48), Resampling.BILINEAR), np.float32)[:, :, ::-1]
    made = np.zeros((1, 3, 48, widest or width), np.float32)
    made[0, :, :, :width] = ((pixels / 255 - 0.5) / 0.5).transpose(2, 0, 1)
    return made


def pages(count: int, texts: list[str], seed: int) -> Iterator[tuple[Image.Image, list[Box]]]:
    """Yield pages of consecutive texts."""
    rng = np.random.default_rng(seed)
    for at in range(count):
        yield page([texts[(at * LINES + k) % len(texts)] for k in range(LINES)], rng)


def _degraded(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    blurred = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.5, 1.3)))
    pixels: NDArray[Any] = np.asarray(blurred, np.float32)
    pixels = 255 - (255 - pixels) * (255 - 90) / 255 + rng.normal(0, 14, pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
