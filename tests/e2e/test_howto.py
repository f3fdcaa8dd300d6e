"""Every how-to is followed from a folder that holds what its reader has, and nothing else."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from ortune.data.zoo.digit_cnn import DigitCnn

HOME = Path(__file__).parents[2]
FOLDER = HOME / "docs" / "howto"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = {"python": [sys.executable], "ortune": [sys.executable, "-m", "ortune.cli.main"]}
DECODER = """<ir_version: 8, opset_import: ["": 17]>
tiny (int64[b,n] input_ids, float[b,p,64] "past_key_values.0.key",
      float[b,p,64] "past_key_values.0.value")
  => (float[b,n,500] logits, float[b,t,64] "present.0.key", float[b,t,64] "present.0.value") {
  x = Gather (table, input_ids)
  q = MatMul (x, wq)
  k = MatMul (x, wk)
  v = MatMul (x, wv)
  "present.0.key" = Concat <axis = 1> ("past_key_values.0.key", k)
  "present.0.value" = Concat <axis = 1> ("past_key_values.0.value", v)
  kt = Transpose <perm = [0, 2, 1]> ("present.0.key")
  scores = MatMul (q, kt)
  p = Softmax <axis = -1> (scores)
  mixed = MatMul (p, "present.0.value")
  h = Add (x, mixed)
  logits = MatMul (h, head)
}"""


def write_digits(folder: Path) -> None:
    """Write a classifier of digits and 2,000 labelled samples."""
    DigitCnn().write(folder)
    (folder / "data").rename(folder / "samples")


def write_photos(folder: Path) -> None:
    """Write the digits as pictures, a sub-folder a class."""
    image = pytest.importorskip("PIL.Image")
    write_digits(folder)
    with np.load(folder / "samples" / "digits.npz") as digits:
        pixels, labels = digits["image"][:200, 0], digits["label"]
    for number, picture in enumerate(np.rint(255 * (pixels * 0.3081 + 0.1307)).astype(np.uint8)):
        place = folder / "photos" / str(labels[number])
        place.mkdir(parents=True, exist_ok=True)
        image.fromarray(picture).save(place / f"{number:04}.png")
    text = (FOLDER / "image-classifier.md").read_text()
    settings = next(body for kind, body in FENCE.findall(text) if kind == "toml")
    (folder / "photos" / "preprocess.toml").write_text(settings)
    shutil.rmtree(folder / "samples")


def write_encoder(folder: Path) -> None:
    """Write what the text engineer of the first five minutes has."""
    pytest.importorskip("tokenizers")
    from benchmarks.speed.first_minutes import write_belongings

    write_belongings("text engineer", folder)


def copy_detector(folder: Path) -> None:
    """Copy the example of a detector."""
    pytest.importorskip("pycocotools")
    pytest.importorskip("rapidocr")
    shutil.copytree(HOME / "examples" / "detector", folder, dirs_exist_ok=True)


def write_sounds(folder: Path) -> None:
    """Write Silero's voice detector and six recordings of hums and noise."""
    soundfile = pytest.importorskip("soundfile")
    from tests.real.task import installed

    shutil.copy(
        installed("silero-vad", "silero_vad/data/silero_vad_16k_op15.onnx"), folder / "vad.onnx"
    )
    rng = np.random.default_rng(0)
    times = np.arange(32000) / 16000
    (folder / "sounds").mkdir()
    for number in range(6):
        hum = np.sin(2 * np.pi * (90 + 20 * number) * times) * (np.sin(3 * times) > 0)
        sound = 0.3 * hum + 0.02 * rng.standard_normal(len(times))
        soundfile.write(folder / "sounds" / f"{number}.wav", sound.astype(np.float32), 16000)


def write_decoder(folder: Path) -> None:
    """Write one layer of attention with a cache that grows, sure of its answers, and tokens."""
    model = parser.parse_model(DECODER)
    rng = np.random.default_rng(0)
    table = rng.standard_normal((500, 64)).astype(np.float32)
    weights = {"table": table, "head": np.ascontiguousarray(table.T)}
    for name in ("wq", "wk", "wv"):
        weights[name] = rng.standard_normal((64, 64)).astype(np.float32) / 8
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, folder / "decoder.onnx")
    np.save(folder / "tokens.npy", rng.integers(0, 500, (12, 16)))


def write_quantized(folder: Path) -> None:
    """Write the digits' classifier as onnxruntime's own tool makes it in S8S8."""
    from onnxruntime import quantization as tool

    write_digits(folder)
    with np.load(folder / "samples" / "digits.npz") as digits:
        images = digits["image"][:32]

    class Reader(tool.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = iter(images)

        def get_next(self) -> dict[str, object] | None:
            row = next(self.rows, None)
            return None if row is None else {"image": row[None]}

    tool.quantize_static(
        folder / "model.onnx", folder / "int8.onnx", Reader(),
        activation_type=tool.QuantType.QInt8, weight_type=tool.QuantType.QInt8,
    )  # fmt: skip


def write_candidate(folder: Path) -> None:
    """Write the model in use, one to follow it, and a bundle of the former."""
    write_digits(folder)
    shutil.copy(folder / "model.onnx", folder / "candidate.onnx")
    run(["ortune", "optimize", "model.onnx", "--on", "cpu", "--time", "5s", "-o", "old"], folder)
    run(["ortune", "pack", "old", "-o", "model.ortune"], folder)


def announce(folder: Path) -> None:
    """Write samples, and announce the package as pip would that installs it."""
    write_digits(folder)
    info = folder / "mine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[ortune.plugins]\nmine = mine\n")


BELONGINGS: dict[str, Callable[[Path], None]] = {
    "image-classifier": write_photos,
    "text-encoder": write_encoder,
    "detector": copy_detector,
    "speech-model": write_sounds,
    "decoder": write_decoder,
    "quantized-model": write_quantized,
    "from-pytorch": lambda _: None,
    "ci-gate": write_candidate,
    "edge-device": write_digits,
    "own-metric": write_digits,
    "own-backend": announce,
}
UNTRIED = {"gpu", "index"}
"""No GPU is there; the index has no commands."""


def write_files(page: str, folder: Path) -> None:
    """Write the programs of a page, each named in its first line."""
    for kind, body in FENCE.findall((FOLDER / f"{page}.md").read_text()):
        name = re.match(r"# ([\w/.]+)\n", body)
        if kind in {"python", "toml"} and name:
            (folder / name[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / name[1]).write_text(body)


def list_commands(page: str) -> list[str]:
    """Return the commands of a page; what pip would install is there."""
    blocks = FENCE.findall((FOLDER / f"{page}.md").read_text())
    lines = [line for kind, body in blocks if not kind for line in body.splitlines()]
    return [line for line in lines if not line.startswith("pip ")]


def run(words: list[str], folder: Path) -> int:
    """Run a command in a folder; Python finds packages there, as if they were installed."""
    done = subprocess.run(
        [*PROGRAMS[words[0]], *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 1 and "--for" in words:
        pytest.skip("nothing faster to pack was found in so short a search")
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.returncode


def test_every_page_is_followed_and_short() -> None:
    pages = {path.stem for path in FOLDER.glob("*.md")}
    assert pages == set(BELONGINGS) | UNTRIED
    for page in pages:
        assert len((FOLDER / f"{page}.md").read_text().splitlines()) <= 60
        assert page == "index" or f"({page}.md)" in (FOLDER / "index.md").read_text()


@pytest.mark.long
@pytest.mark.parametrize("page", BELONGINGS)
def test_a_page_can_be_followed(page: str, tmp_path: Path) -> None:
    BELONGINGS[page](tmp_path)
    write_files(page, tmp_path)
    for line in list_commands(page):
        run(shlex.split(re.sub(r"--time \w+", "--time 6s", line)), tmp_path)
