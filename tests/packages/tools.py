"""Programs of other languages that packages are run by, and where they are looked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = Path(os.environ.get("ORTUNE_PACKAGES", ROOT / "build" / "packages")).resolve()
NODE_MODULES = PACKAGES / "node_modules"
"""``npm install --ignore-scripts onnxruntime-node@1.30.0 onnxruntime-web@1.30.0`` was done there:
the binary for this system is in the package, what its script would fetch is not needed."""


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = {one.partition(">=")[0] for one in PROJECT["dependencies"]}
"""Distributions that ortune requires."""


def make_python(folder: Path, *wanted: str) -> Path:
    """Return a fresh Python in a folder, with what pip is asked for there."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    install(python, *wanted)
    return python


def install(python: Path, *wanted: str) -> None:
    """Install distributions beside a Python."""
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted], check=True)


def run(python: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run words by a Python that finds ortune's source."""
    clean = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [str(python), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean)


def program(*names: str, install: str) -> str:
    """Return the path of an installed program; skip the test where there is none."""
    for name in names:
        if found := shutil.which(name):
            return found
    pytest.skip(f"no {names[0]}: {install}")


def npm(package: str) -> Path:
    """Return the folder of an installed npm package; skip the test where it is not."""
    if not (NODE_MODULES / package / "package.json").is_file():
        pytest.skip(f"no npm package {package}: make check-packages installs it")
    return NODE_MODULES / package
