"""Real releases of the runtimes in environments of their own, and a planted change among them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.packages.conftest import PLACE, fetched
from tests.packages.planted import repack
from tests.unit import studies

import ortune as ot
from ortune.bundle.pack import pack
from ortune.bundle.recheck.result import Replayed
from ortune.core.trial import Interval
from ortune.measurement.environments.check import check
from ortune.measurement.environments.installed import add
from ortune.measurement.environments.releases import release

DENORMAL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x) => (float[N,4] y) <float tiny = {1e-20}> { a = Mul(x, tiny) y = Mul(a, tiny) }
"""
"""Its answers are all below 1.2e-38: 0 where denormal numbers are flushed."""


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments of real releases are kept from one run to the next."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(PLACE).resolve()))


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    "text", ["onnxruntime==1.23.2", "onnxruntime==1.24.4", "onnxruntime==1.32.0"]
)
def test_a_release_of_onnxruntime_works_in_an_environment(text: str) -> None:
    made = add(text)
    found = check(made.name)
    assert not found.problem
    assert f"onnxruntime=={found.versions['onnxruntime']}" == text
    assert set(found.versions) <= {"python", "ortune", "onnxruntime", "numpy"}


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("text", ["openvino==2026.2.1", "openvino==2026.3.0"])
def test_a_release_of_openvino_works_in_an_environment(text: str) -> None:
    found = check(add(text).name)
    assert not found.problem
    assert f"openvino=={found.versions['openvino']}" == text


@pytest.mark.usefixtures("kept")
def test_two_releases_are_timed_side_by_side(tmp_path: Path) -> None:
    add("onnxruntime==1.24.4")
    model = studies.write_model(tmp_path / "toy.onnx", studies.MODEL)
    found = ot.bench(model, environment="here,ort-1.24.4", seconds=1, sets=2)
    assert [row["error"] for row in found.rows] == [None, None]
    versions = {name: held["onnxruntime"] for name, held in found.environments.items()}
    assert versions["ort-1.24.4"] == "1.24.4" != versions["here"]


@pytest.mark.usefixtures("kept")
def test_a_bundle_is_as_packed_with_real_releases(tmp_path: Path) -> None:
    found = ot.recheck(bundle(tmp_path), runtime="1.24.4,1.32.0", time=1)
    assert found.good and [one.answers_db for one in found.replays] == [float("inf")] * 2


def bundle(folder: Path) -> Path:
    study = studies.study(folder / "made", tuned=DENORMAL)
    wide = Interval(1.0, 0.01, 100.0)
    trials = tuple(replace(one, predicted=wide) for one in study.trials)
    return pack(replace(study, trials=trials), folder / "toy.ortune")


def test_a_planted_change_between_two_releases_is_found(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: onnxruntime 1.31.0 repacked, flushing denormal numbers unless told otherwise.

    No two real releases differ as this test needs.
    """
    before, after = release("onnxruntime==1.30.0"), release("onnxruntime==1.31.0")
    fetched(wheels, sorted({*before.distributions, *after.distributions}))
    (real,) = wheels.glob("onnxruntime-1.31.0-*.whl")
    offered = tmp_path / "offered"
    offered.mkdir()
    for wheel in wheels.glob("*.whl"):
        if wheel != real:
            (offered / wheel.name).symlink_to(wheel)
    repack(real, offered, "session.set_denormal_as_zero", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(offered))
    found = ot.recheck(bundle(tmp_path), runtime="1.30.0,1.31.0", time=1)
    good, bad = found.replays
    assert good.verdict is Replayed.SAME and good.answers_db == float("inf")
    assert bad.verdict is Replayed.CHANGED and bad.runtime == "onnxruntime 1.31.0"
    assert found.changes == ("onnxruntime 1.31.0: answers changed",)
    assert not found.good and "answers changed with onnxruntime 1.31.0" in found.reason
