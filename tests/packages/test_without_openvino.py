"""The engine in an environment that has what ortune requires, and no OpenVINO."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from ortune.backends.openvino import Openvino
from ortune.bundle.pack import pack
from tests.packages.tools import REQUIRED, make_python, run
from tests.unit import studies

RUN = """
import asyncio, sys, warnings
import numpy as np
import ortune as ot
x = np.array([[-5, 0, 1, 2]], np.float32)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    with ot.load(sys.argv[1]) as engine:
        engine.warm_up()
        for answer in (engine(x=x), engine.batch([{"x": x}])[0], asyncio.run(engine.submit(x=x))):
            np.testing.assert_array_equal(answer["y"], [[0, 2, 4, 6]])
        print(engine.backend, "|", engine.fallback)
for one in said:
    print("warning:", one.message)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the packages that ortune requires, in the versions that are installed here."""
    wanted = [f"{name}=={version(name)}" for name in REQUIRED]
    return make_python(tmp_path_factory.mktemp("core"), *wanted)


def test_there_is_none(python: Path) -> None:
    for name in ("openvino", "onnxruntime_ep_openvino"):
        assert run(python, "-c", f"import {name}").returncode == 1


def test_a_bundle_for_the_cpu_runs_as_it_was_measured(python: Path, tmp_path: Path) -> None:
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")
    done = run(python, "-c", RUN, bundle)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["cpu(threads=1) | "]


def test_one_for_openvino_runs_its_original_with_one_warning(python: Path, tmp_path: Path) -> None:
    study = studies.study(tmp_path, backend=Openvino(threads=1))
    bundle = pack(study, tmp_path / "toy.ortune")
    done = run(python, "-c", RUN, bundle)
    assert done.returncode == 0, done.stderr
    ran, *warned = done.stdout.splitlines()
    assert ran.startswith("cpu | ") and "pip install" in ran
    assert len(warned) == 1 and "the original runs on the CPU instead" in warned[0]


def test_it_is_asked_for_in_vain(python: Path, tmp_path: Path) -> None:
    model = studies.write_model(tmp_path / "toy.onnx", studies.MODEL)
    code = "import ortune as ot, sys; ot.load(sys.argv[1], on='openvino')"
    done = run(python, "-c", code, model)
    assert done.returncode == 1
    what, fix = done.stderr.splitlines()[-2:]
    assert "BackendMissing" in what and fix.startswith("  fix: pip install")


def test_the_command_line_runs(python: Path, tmp_path: Path) -> None:
    model = studies.write_model(tmp_path / "toy.onnx", studies.MODEL)
    np.savez(tmp_path / "x.npz", x=np.array([[-5, 0, 1, 2]], np.float32))
    done = run(python, "-m", "ortune.cli.main", "run", model, tmp_path / "x.npz")
    assert done.returncode == 0, done.stderr
