"""Programs of other languages that packages are run by, and where they are looked for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = Path(os.environ.get("ORTUNE_PACKAGES", ROOT / "build" / "packages")).resolve()
NODE_MODULES = PACKAGES / "node_modules"
"""``npm install --ignore-scripts onnxruntime-node@1.30.0 onnxruntime-web@1.30.0`` was done there:
the binary for this system is in the package, what its script would fetch is not needed."""


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
