"""Real releases of the runtimes in environments of their own, and a planted change among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ortune as ot
from ortune.analysis.recheck.recheck import ReplayVerdict
from ortune.bundle.pack import pack
from ortune.core.trial import Interval
from ortune.measurement.environments.check import check_environment
from ortune.measurement.environments.installed import add_environment
from ortune.measurement.environments.releases import parse_release
from tests.packages.conftest import fetched
from tests.packages.planted import repack
from tests.unit import studies

DENORMAL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x) => (float[N,4] y) <float tiny = {1e-20}> { a = Mul(x, tiny) y = Mul(a, tiny) }
"""
"""Its answers are all below 1.2e-38: 0 where denormal numbers are flushed."""


HEAVY = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x) => (float[N,4] y)
<int64[2] wide = {4,1024}, int64[2] square = {1024,1024}, int64[2] narrow = {1024,4}> {
  a = ConstantOfShape<value = float[1] {0.01}>(wide)
  b = ConstantOfShape<value = float[1] {0.01}>(square)
  c = ConstantOfShape<value = float[1] {0.01}>(narrow)
  d = MatMul(x, a)
  e = MatMul(d, b)
  f = Relu(e)
  g = MatMul(f, b)
  y = MatMul(g, c)
}
"""
"""Two small inputs times large weights: it takes long where weights are not packed at load."""


@pytest.mark.usefixtures("environments")
@pytest.mark.parametrize(
    "text", ["onnxruntime==1.23.2", "onnxruntime==1.24.4", "onnxruntime==1.32.0"]
)
def test_a_release_of_onnxruntime_works_in_an_environment(text: str) -> None:
    made = add_environment(text)
    found = check_environment(made.name)
    assert not found.problem
    assert f"onnxruntime=={found.versions['onnxruntime']}" == text
    assert set(found.versions) <= {"python", "ortune", "onnxruntime", "numpy"}


@pytest.mark.usefixtures("environments")
@pytest.mark.parametrize("text", ["openvino==2026.2.1", "openvino==2026.3.0"])
def test_a_release_of_openvino_works_in_an_environment(text: str) -> None:
    found = check_environment(add_environment(text).name)
    assert not found.problem
    assert f"openvino=={found.versions['openvino']}" == text


@pytest.mark.usefixtures("environments")
def test_two_releases_are_timed_side_by_side(tmp_path: Path) -> None:
    add_environment("onnxruntime==1.24.4")
    model = studies.write_model(tmp_path / "toy.onnx", studies.MODEL)
    found = ot.bench(model, environment="here,ort-1.24.4", time=1, sets=2)
    assert [row["error"] for row in found.rows] == [None, None]
    versions = {name: held["onnxruntime"] for name, held in found.environments.items()}
    assert versions["ort-1.24.4"] == "1.24.4" != versions["here"]


@pytest.mark.usefixtures("environments")
def test_a_bundle_is_as_packed_with_real_releases(tmp_path: Path) -> None:
    found = ot.recheck(bundle(tmp_path), runtime="1.24.4,1.32.0", time=1)
    assert found.good and [one.answers_db for one in found.replays] == [float("inf")] * 2


def bundle(folder: Path, tuned: str = DENORMAL) -> Path:
    study = studies.study(folder / "made", tuned=tuned)
    wide = Interval(1.0, 0.0001, 10_000.0)
    trials = tuple(replace(one, predicted=wide) for one in study.trials)
    return pack(replace(study, trials=trials), folder / "toy.ortune")


@pytest.fixture
def offered(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that pip finds: wheels of two releases of onnxruntime, to which another may be added."""
    before, after = parse_release("onnxruntime==1.30.0"), parse_release("onnxruntime==1.31.0")
    fetched(wheels, sorted({*before.distributions, *after.distributions}))
    folder = tmp_path / "offered"
    folder.mkdir()
    for wheel in wheels.glob("*.whl"):
        (folder / wheel.name).symlink_to(wheel)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def plant(offered: Path, version: str, key: str, value: str) -> None:
    """Put a wheel with another default in the place of a release's."""
    (link,) = offered.glob(f"onnxruntime-{version}-*.whl")
    real = link.resolve()
    link.unlink()
    repack(real, offered, key, value)


def test_a_planted_change_of_answers_is_found(
    tmp_path: Path, offered: Path, record_property: Callable[[str, object], None]
) -> None:
    """Planted: onnxruntime 1.31.0 repacked, flushing denormal numbers unless told otherwise.

    No two real releases differ as this test needs.
    """
    plant(offered, "1.31.0", "session.set_denormal_as_zero", "1")
    found = ot.recheck(bundle(tmp_path), runtime="1.30.0,1.31.0", time=1)
    good, bad = found.replays
    record_property("found", f"{found.reason}; {bad.answers_db:.1f} dB")
    assert good.verdict is ReplayVerdict.SAME and good.answers_db == float("inf")
    assert bad.verdict is ReplayVerdict.CHANGED and bad.runtime == "onnxruntime 1.31.0"
    assert found.changes == ("onnxruntime 1.31.0: answers changed",)
    assert not found.good and "answers changed with onnxruntime 1.31.0" in found.reason


def test_a_planted_change_of_speed_is_found(
    tmp_path: Path, offered: Path, record_property: Callable[[str, object], None]
) -> None:
    """Planted: onnxruntime 1.30.0 repacked, which packs no weights at load unless told to.

    Plan and original may both have become slower: beside the runtime here it is seen.
    """
    plant(offered, "1.30.0", "session.disable_prepacking", "1")
    found = ot.recheck(bundle(tmp_path, HEAVY), runtime="1.30.0,1.31.0", time=6)
    slow, quick = found.replays
    record_property("found", f"{found.changes}; {slow.beside} beside the runtime here")
    assert slow.verdict is ReplayVerdict.SLOWER and slow.beside is not None and slow.beside.low > 1
    assert quick.verdict.good, quick
    assert found.changes == ("onnxruntime 1.30.0: slower", "onnxruntime 1.31.0: as packed")
