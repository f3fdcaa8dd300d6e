"""Preprocessing folded into the model against the same done by Pillow and NumPy in front of it.

    python -m benchmarks.folding [efficientnet_lite0.onnx]

efficientnet-lite0 on the photographs of scikit-image: as pictures of 224x224, which only change
type and layout; as they come; and at 1280x960. Both ways run the same pictures in turns A B B A in
one process, and CPU time of all threads is compared, so the ratio is paired; its 99 % interval is
bootstrapped over the rounds.
Results: ``benchmarks/results/folding.json``. Takes about three minutes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tests.real.task import installed

import ortune as ot
from ortune.cli.main import main as ortune
from ortune.core import preprocess
from ortune.core.preprocess import Preprocess
from ortune.engine.golden import snr_db
from ortune.measurement.machine.machine import machine, versions

RESULTS = Path(__file__).resolve().parent / "results" / "folding.json"
PHOTOS = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
ROUNDS = 16
SETTINGS = Preprocess(
    resize=(224, 224), interpolation="bilinear", scale=1.0, mean=127.0, std=128.0
)
TOML = "resize = [224, 224]\nscale = 1.0\nmean = 127.0\nstd = 128.0\n"

Pictures = Sequence[NDArray[np.uint8]]
Run = Callable[[NDArray[np.uint8]], NDArray[Any]]


def pictures(size: tuple[int, int] | None) -> Pictures:
    """Return the photographs, resized to (width, height) where one is given."""
    folder = installed("scikit-image", "skimage/data")
    found = [Image.open(folder / name).convert("RGB") for name in PHOTOS]
    return [np.asarray(one if size is None else one.resize(size)) for one in found]


def paired(before: Run, after: Run, given: Pictures) -> dict[str, float]:
    """Return milliseconds a picture of both, and the ratio with its interval."""
    for run in (before, after):
        for one in given:
            run(one)
    rows = np.array([_round(before, after, given) for _ in range(ROUNDS)])
    logs = np.log(rows[:, 1] / rows[:, 0])
    draws = np.random.default_rng(0).choice(logs, (2000, len(logs))).mean(1)
    low, high = np.exp(np.quantile(draws, (0.005, 0.995)))
    first, second = np.median(rows, 0) / 2e6 / len(given)
    return {
        "before_ms": float(first),
        "folded_ms": float(second),
        "ratio": float(np.exp(logs.mean())),
        "low": float(low),
        "high": float(high),
    }


def _round(before: Run, after: Run, given: Pictures) -> tuple[int, int]:
    """Run A B B A and return the CPU nanoseconds of each side."""
    spent = {before: 0, after: 0}
    for run in (before, after, after, before):
        start = time.process_time_ns()
        for one in given:
            run(one)
        spent[run] += time.process_time_ns() - start
    return spent[before], spent[after]


def alike(before: Run, after: Run, given: Pictures) -> dict[str, Any]:
    """Compare the answers: decibels of the worst picture, and how many labels agree."""
    pairs = [(before(one).astype(np.float64), after(one)) for one in given]
    least = min(snr_db({"": a}, {"": b}) for a, b in pairs)
    same = sum(bool(np.isfinite(b).all()) and a.argmax() == b.argmax() for a, b in pairs)
    return {"least_db": least, "same_label": same, "pictures": len(pairs)}


def main() -> None:
    """Fold, compare, time, and write the results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = Path(sys.argv[1]) if sys.argv[1:] else _exported(folder)
        (folder / "image.toml").write_text(TOML)
        cases = {}
        for label, size in (
            ("224x224", (224, 224)),
            ("as they come", None),
            ("1280x960", (1280, 960)),
        ):
            out = folder / "folded.onnx"
            words = ["--fold-preprocess", str(folder / "image.toml"), "-o", str(out), "--force"]
            if size is not None:
                words += ["--picture-size", f"{size[1]}x{size[0]}"]
            if ortune(["apply", str(source), *words]):
                raise SystemExit("the model is not folded")
            plain, folded = ot.load(source), ot.load(out)

            def before(one: NDArray[np.uint8], engine: Any = plain) -> NDArray[Any]:
                made = preprocess.pixels(Image.fromarray(one), SETTINGS, "photo")
                return np.asarray(engine(image=preprocess.values(made, SETTINGS)[None])["logits"])

            def after(one: NDArray[np.uint8], engine: Any = folded) -> NDArray[Any]:
                return np.asarray(engine(image=one[None])["logits"])

            given = pictures(size)
            cases[label] = paired(before, after, given) | alike(before, after, given)
            print(label, cases[label], file=sys.stderr)
    result = {"machine": machine(), "versions": versions(), "cases": cases}
    from ortune.cli.terminal.output import plain as as_json

    RESULTS.write_text(json.dumps(as_json(result), indent=1) + "\n", encoding="utf-8")


def _exported(folder: Path) -> Path:
    from tests.real.samples import written

    return written("efficientnet-lite0") / "model.onnx"


if __name__ == "__main__":
    main()
