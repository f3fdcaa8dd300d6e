"""A plan for PyTorch in a bundle: named code, which comes last and runs only where allowed."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.unit import studies
from tests.unit.bundle import several
from tests.unit.packaged import forge, members_of

from ortune.backends.cpu import Cpu
from ortune.backends.torch import Torch
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack
from ortune.bundle.read import read_bundle
from ortune.core.errors import BadModel, BadSettings
from ortune.core.study import Study

pytest.importorskip("torch")
KEY = "70c4" * 4
X = np.array([[-5, 0, 1, 2]], np.float32)
Y = np.array([[0, 2, 4, 6]], np.float32)
CODE = """
import torch
class Toy(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x + torch.tensor([1.0, 2.0, 3.0, 4.0]))
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study whose fastest confirmed plan is PyTorch."""
    (tmp_path / "toy_factory.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    made = studies.study(tmp_path)
    return several.with_plan(made, KEY, Torch(source="toy_factory:Toy"), 0.3)


def test_it_comes_last_however_fast(study: Study, tmp_path: Path) -> None:
    found = read_bundle(pack(study, tmp_path / "x.ortune", trial=KEY, with_="aa11"))
    assert [one.backend for one in found.plans] == [
        Cpu(threads=1),
        Torch(source="toy_factory:Toy"),
    ]
    assert found.manifest.plans[1].custom_ops == ("toy_factory:Toy",)


def test_other_plans_need_nobodys_leave(study: Study, tmp_path: Path) -> None:
    path = pack(study, tmp_path / "x.ortune", with_=["aa11"])
    with load_engine(path) as engine:
        assert engine.backend == Cpu(threads=1) and not engine.fallback
        np.testing.assert_array_equal(engine(x=X)["y"], Y)


def test_it_runs_where_it_is_allowed(study: Study, tmp_path: Path) -> None:
    path = pack(study, tmp_path / "x.ortune", trial=KEY)
    with pytest.warns(RuntimeWarning, match="it is Python code, toy_factory:Toy"):
        engine = load_engine(path)
    assert engine.plan is None and "custom_ops=True" in engine.fallback
    with load_engine(path, custom_ops=True) as engine:
        assert engine.plan is not None and engine.plan.key == KEY
        np.testing.assert_array_equal(engine(x=X)["y"], Y)


def test_code_that_the_manifest_does_not_name_is_refused(study: Study, tmp_path: Path) -> None:
    path = pack(study, tmp_path / "x.ortune", trial=KEY)
    settings = json.loads(members_of(path)["settings.json"]) | {"source": "os:getcwd"}
    forge(path, {"settings.json": json.dumps(settings).encode()})
    with pytest.raises(BadModel, match="'os:getcwd', which its manifest does not"):
        load_engine(path, custom_ops=True)


def test_weights_beside_the_factory_are_not_packed(study: Study, tmp_path: Path) -> None:
    made = several.with_plan(study, "ab" * 8, Torch(source="m:f", weights="w.safetensors"), 0.2)
    with pytest.raises(BadSettings, match=r"cannot bring the code of .*: w\.safetensors"):
        pack(made, tmp_path / "x.ortune", trial="abab")
