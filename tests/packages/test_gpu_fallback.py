"""The real onnxruntime-gpu where no provider of its starts: it falls back, ortune does not."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from ortune.data.zoo import digit_cnn
from tests.packages.tools import REQUIRED, make_python, run

pytestmark = pytest.mark.skipif(
    shutil.which("nvidia-smi") is not None, reason="a driver is here: see tests/gpu"
)
MODEL = Path(digit_cnn.__file__).with_name("digit_cnn.onnx")
PROVIDERS = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with what ortune requires, its onnxruntime the package for NVIDIA GPUs."""
    names = [*(REQUIRED - {"onnxruntime"}), "onnxruntime-gpu"]
    releases = {"onnxruntime-gpu": version("onnxruntime")}
    wanted = [f"{name}=={releases.get(name) or version(name)}" for name in names]
    return make_python(tmp_path_factory.mktemp("gpu"), "--no-compile", *wanted)


def test_onnxruntime_alone_goes_on_on_the_cpu(python: Path) -> None:
    code = (
        "import onnxruntime as ort, sys\n"
        "assert 'CUDAExecutionProvider' in ort.get_available_providers()\n"
        "s = ort.InferenceSession(sys.argv[1], providers=['CUDAExecutionProvider'])\n"
        "print(*s.get_providers())"
    )
    done = run(python, "-c", code, MODEL)
    assert (done.returncode, done.stdout.split()) == (0, ["CPUExecutionProvider"])


@pytest.mark.parametrize(("name", "provider"), PROVIDERS.items())
@pytest.mark.parametrize("way", ["open", "takes", "record"])
def test_ortune_names_the_provider_and_the_cause(
    python: Path, tmp_path: Path, name: str, provider: str, way: str
) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from ortune.core.backend import Backend\n"
        "from ortune.core.plugins.spelling import parse_plugin\n"
        "model, folder, name, way = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]\n"
        "backend = parse_plugin(Backend, name)\n"
        "if way == 'takes': backend.takes(model)\n"
        "elif way == 'open': backend.open(model).__enter__()\n"
        "else: backend.record(model, folder).__enter__()"
    )
    done = run(python, "-c", code, MODEL, tmp_path, name, way)
    assert done.returncode == 1 and not done.stdout
    what, fix = done.stderr.splitlines()[-2:]
    assert f"BackendMissing: {provider} does not start (no device): Failed to load" in what
    assert ".so" in what and fix.startswith("  fix: ")


@pytest.mark.parametrize(("name", "provider"), PROVIDERS.items())
def test_no_verb_runs_on_another_device_instead(
    python: Path, tmp_path: Path, name: str, provider: str
) -> None:
    model, out, samples = str(MODEL), str(tmp_path / "run"), str(tmp_path / "samples.npz")
    np.savez(samples, image=np.zeros((1, 1, 28, 28), np.float32))
    for words in (
        ["bench", model, "--on", name, "--time", "1"],
        ["run", model, samples, "--on", name],
        ["optimize", model, "--on", name, "--time", "5s", "-o", out],
    ):
        done = run(python, "-m", "ortune.cli.main", *words)
        assert done.returncode not in (0, 1), (words, done.stdout, done.stderr)
        assert "no NVIDIA driver" in done.stderr or provider in done.stderr, done.stderr
        assert "CPUExecutionProvider" not in done.stdout


def test_doctor_tells_the_state(python: Path) -> None:
    done = run(python, "-m", "ortune.cli.main", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["backends"]}
    assert found["cpu"]["state"] == "works"
    for name in PROVIDERS:
        assert found[name]["state"] != "works" and "driver" in found[name]["detail"]
