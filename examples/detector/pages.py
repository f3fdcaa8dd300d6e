"""Draw pages of text whose boxes are known, and put the detector beside them.

    python pages.py OUT [--pages 48] [--calibration 16]

Writes OUT/model.onnx, OUT/data and OUT/calibration with pages as pictures and the settings that
make tensors of them, and OUT/boxes.json, a COCO file. Equal arguments make equal pages. Needs

    pip install pillow scipy
    pip install --no-deps rapidocr==3.10.0 font-roboto==0.0.1 font-source-serif-pro==0.0.1
"""

from __future__ import annotations

import argparse
import json
import shutil
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SIDE, SEED = 384, 20
SIZES = (14, 17, 20, 24, 29)
SERIF, SANS = "font_source_serif_pro/files/SourceSerifPro", "font_roboto/files/Roboto"
FACES = (
    ("font-roboto", f"{SANS}-Regular.ttf"),
    ("font-roboto", f"{SANS}-Bold.ttf"),
    ("font-roboto", f"{SANS}-Italic.ttf"),
    ("font-source-serif-pro", f"{SERIF}-Regular.ttf"),
    ("font-source-serif-pro", f"{SERIF}-Bold.ttf"),
    ("font-source-serif-pro", f"{SERIF}-It.ttf"),
)
MODEL = ("rapidocr", "rapidocr/models/PP-OCRv6_det_small.onnx")
TEXT = (
    "amount balance before carriage charges clause copies customer date delivery discount each "
    "freight goods gross handling invoice item journey kilogram ledger margin note number order "
    "packed page paid parcel payment quantity rate receipt return route sample served shipment "
    "signed stock subtotal supplier terms total transfer unit until value vehicle weight yours"
)
WORDS = TEXT.split()
SETTINGS = """\
channels = "bgr"
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
"""
"""As PP-OCR was trained: ImageNet's figures in the order red, green, blue, on blue, green, red."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pages", type=int, default=48)
    parser.add_argument("--calibration", type=int, default=16)
    asked = parser.parse_args()
    write(asked.out, asked.pages, asked.calibration)


def write(out: Path, pages: int, calibration: int) -> None:
    """Write model, pages and boxes."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(installed(*MODEL), out / "model.onnx")
    draw(out / "calibration", calibration, SEED + 1)
    boxes = draw(out / "data", pages, SEED)
    (out / "boxes.json").write_text(json.dumps(boxes))


def draw(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Write pages as pictures and return their boxes as a COCO file has them."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "preprocess.toml").write_text(SETTINGS)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for at in range(count):
        picture, boxes = page(rng)
        name = f"{at:03}.png"
        picture.save(folder / name)
        images.append({"id": at, "file_name": name, "width": SIDE, "height": SIDE})
        for left, top, right, bottom in boxes:
            corner = [left, top, right - left, bottom - top]
            annotations.append({"image_id": at, "category_id": 1, "bbox": corner})
    return {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 1, "name": "line of text"}],
    }


def page(rng: np.random.Generator) -> tuple[Image.Image, list[tuple[int, int, int, int]]]:
    """Draw lines of several faces and sizes, and return the page with the box of each one's ink.

    Then the page is blurred, its contrast lowered and noise added.
    """
    paper, ink = int(rng.integers(200, 256)), int(rng.integers(0, 90))
    image = Image.new("L", (SIDE, SIDE), paper)
    boxes = []
    top = int(rng.integers(8, 24))
    while True:
        font = ImageFont.truetype(
            str(installed(*FACES[rng.integers(len(FACES))])), SIZES[rng.integers(len(SIZES))]
        )
        text = line(rng)
        left = int(rng.integers(8, 80))
        mask = Image.new("L", (SIDE, SIDE), 0)
        ImageDraw.Draw(mask).text((left, top), text, fill=255, font=font)
        box = mask.getbbox()
        if box is None or box[3] > SIDE - 8:
            break
        if box[2] <= SIDE - 8:
            image.paste(ink, (0, 0), mask)
            boxes.append(box)
            top = box[3] + int(rng.integers(10, 36))
    blurred = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 0.9)))
    pixels = np.asarray(blurred, np.float64) + rng.normal(0, rng.uniform(2, 12), (SIDE, SIDE))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)), boxes


def line(rng: np.random.Generator) -> str:
    """Return a few words, of which some are numbers."""
    words = [
        f"{rng.uniform(0, 2000):.2f}" if rng.random() < 0.2 else WORDS[rng.integers(len(WORDS))]
        for _ in range(rng.integers(1, 5))
    ]
    return " ".join(words).capitalize()


def installed(name: str, relative: str) -> Path:
    """Return the path of a file that a distribution installed."""
    return Path(str(distribution(name).locate_file(relative)))


if __name__ == "__main__":
    main()
