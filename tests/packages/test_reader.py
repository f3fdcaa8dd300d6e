"""The reader in an environment that has numpy and onnxruntime and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from ortune.bundle.pack import pack
from ortune.engine.reader.generate import reader
from tests.unit import studies

pytestmark = pytest.mark.skipif(
    not os.environ.get("ORTUNE_PACKAGES"), reason="installs packages: make check-packages"
)
X = np.array([[-5, 0, 1, 2]], np.float32)
Y = np.array([[0, 2, 4, 6]], np.float32)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    found = folder / "bin" / "python"
    wanted = [f"{name}=={version(name)}" for name in ("numpy", "onnxruntime")]
    install = [str(found), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *wanted]
    subprocess.run(install, check=True)
    return found


def run(python: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-W", "always", *map(str, words)]
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean)


def test_it_runs_a_bundle_as_it_was_measured(python: Path, tmp_path: Path) -> None:
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune", reader=True)
    with zipfile.ZipFile(bundle) as file:
        script = Path(file.extract("reader.py", tmp_path))
    np.savez(tmp_path / "in.npz", x=X)
    assert run(python, "-c", "import ortune").returncode == 1
    done = run(python, script, bundle, tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert done.returncode == 0 and not done.stderr, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["y"], Y)


def test_openvino_is_not_there(python: Path, tmp_path: Path) -> None:
    """One warning, right answers."""
    from ortune.backends.openvino import Openvino

    bundle = pack(studies.study(tmp_path, backend=Openvino(threads=1)), tmp_path / "toy.ortune")
    script = reader(tmp_path / "reader.py")
    np.savez(tmp_path / "in.npz", x=X)
    done = run(python, script, bundle, tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert done.returncode == 0
    assert done.stderr.count("RuntimeWarning") == 1, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["y"], Y)


def test_settings_with_power_are_refused(python: Path, tmp_path: Path) -> None:
    from tests.unit.bundle.test_hostile import forge, settings

    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")
    forge(bundle, settings(config=["session.optimized_model_filepath=x"]))
    done = run(python, reader(tmp_path / "reader.py"), bundle)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2, done.stderr
    assert "no setting that a file from elsewhere may make" in done.stderr


def test_golden_samples_of_a_type_that_numpy_lacks(python: Path, tmp_path: Path) -> None:
    from tests.unit.bundle.test_hostile import forge

    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")
    magic = b"ortune-stream-1\n"
    text = json.dumps({"forms": [["x", "bfloat16", [1, 4]]], "samples": [[0, 64]]}).encode()
    body = magic.ljust(64, b"\0") + bytes(64)
    content = body + text + len(text).to_bytes(8, "little") + magic
    forge(bundle, {"golden/inputs.stream": content})
    done = run(python, reader(tmp_path / "reader.py"), bundle)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2, done.stderr
