"""`pip install --no-deps` of the wheel beside numpy and onnxruntime opens bundles as packed."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.unit import studies
from tests.unit.alone import run_alone
from tests.unit.bundle import several
from tests.unit.bundle.test_hostile import forge, settings

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack
from ortune.core.backend import Backend

X = np.array([[-5, 0, 1, 2]], np.float32)
Y = np.array([[0, 2, 4, 6]], np.float32)
CODE = """
import numpy as np, ortune
arrays = dict(np.load(sys.argv[2]))
with ortune.load(sys.argv[1]) as engine:
    np.savez(sys.argv[3], **engine(**arrays))
    print(engine.plan and engine.plan.plan)
kept = sys.stdlib_module_names | {"numpy", "onnxruntime", "ortune", "__main__"}
print(sorted({name.partition(".")[0] for name in sys.modules} - kept))
"""


def opened(folder: Path, backend: Backend | None = None, bundle: Path | None = None) -> list[str]:
    """Open a bundle of the toy alone, compare its answer, return what it said."""
    alone = folder / "alone"
    alone.mkdir()
    np.savez(alone / "in.npz", x=X)
    path = bundle or pack(studies.study(folder, backend=backend), folder / "toy.ortune")
    done = run_alone(alone, CODE, path, alone / "in.npz", alone / "out.npz")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(alone / "out.npz")["y"], Y)
    plan, others = done.stdout.splitlines()
    assert others == "[]"
    return [plan, *done.stderr.splitlines()]


def test_it_runs_as_it_was_measured(tmp_path: Path) -> None:
    many = Cpu(threads=2, level="basic", spin=False, memory_pattern=False, parallel=True)
    assert opened(tmp_path, many) == [
        "clean @ cpu(threads=2, level=basic, spin=false, parallel=true, memory_pattern=false)"
    ]


@pytest.mark.parametrize("backend", [Openvino(threads=1), None])
def test_a_plan_that_cannot_run_gives_way_with_one_warning(
    tmp_path: Path, backend: Backend | None
) -> None:
    study = studies.study(tmp_path, backend=backend) if backend else several.study(tmp_path)
    path = pack(study, tmp_path / "x.ortune", per_backend=backend is None)
    plan, *said = opened(tmp_path, bundle=path)
    assert sum("RuntimeWarning" in line for line in said) == 1, said
    assert plan == ("None" if backend else "clean @ cpu(threads=1)")


def test_settings_with_power_are_refused(tmp_path: Path) -> None:
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")
    forge(bundle, settings(config=["session.optimized_model_filepath=x"]))
    (tmp_path / "alone").mkdir()
    done = run_alone(tmp_path / "alone", "import ortune\nortune.load(sys.argv[1])", bundle)
    assert "no setting that a file from elsewhere may make" in done.stderr


def test_a_bundle_of_an_earlier_release_may_bring_a_program_which_nothing_runs(
    tmp_path: Path,
) -> None:
    bundle = pack(studies.study(tmp_path), tmp_path / "toy.ortune")
    forge(bundle, {"reader.py": b"raise SystemExit(7)\n"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_engine(bundle).close()
