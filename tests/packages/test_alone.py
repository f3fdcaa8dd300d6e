"""`pip install --no-deps` of the wheel in an environment that has numpy and onnxruntime alone."""

from __future__ import annotations

import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from ortune.bundle.pack import pack
from tests.packages.tools import install, make_python
from tests.unit import studies

ROOT = Path(__file__).parents[2]
X = np.array([[-5, 0, 1, 2]], np.float32)
Y = np.array([[0, 2, 4, 6]], np.float32)
CODE = """
import sys, numpy as np, ortune
with ortune.load(sys.argv[1]) as engine:
    np.savez(sys.argv[3], **engine(**np.load(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wanted = [f"{name}=={version(name)}" for name in ("numpy", "onnxruntime")]
    found = make_python(tmp_path_factory.mktemp("clean"), *wanted)
    source = tmp_path_factory.mktemp("source")  # as pip builds in place
    shutil.copytree(ROOT / "src" / "ortune", source / "src" / "ortune")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    install(found, "--no-deps", str(source))
    return found


@pytest.mark.parametrize("openvino", [False, True])
def test_a_bundle_opens_and_answers(python: Path, tmp_path: Path, openvino: bool) -> None:
    """What runs on OpenVINO gives way to the original, with one warning."""
    from ortune.backends.openvino import Openvino

    study = studies.study(tmp_path, backend=Openvino(threads=1) if openvino else None)
    bundle = pack(study, tmp_path / "toy.ortune")
    np.savez(tmp_path / "in.npz", x=X)
    words = [bundle, tmp_path / "in.npz", tmp_path / "out.npz"]
    command = [str(python), "-I", "-W", "always", "-c", CODE, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == int(openvino), done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["y"], Y)
