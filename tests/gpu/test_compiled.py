"""TensorRT compiles ahead: engines inside a model file, opened without building."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gpu.devices import MODEL, decibel, digits, on_cpu, share, skip_without
from tests.unit import studies

from ortune.backends.runtimes.onnxruntime.engine_cache import list_compiled_nodes
from ortune.backends.tensorrt import Tensorrt
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack

pytestmark = skip_without(Tensorrt())


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def test_a_compiled_model_answers_as_the_cpu(tmp_path: Path) -> None:
    backend, out, feeds = Tensorrt(), tmp_path / "out.onnx", digits(4)
    backend.compile(MODEL, out)
    assert all(one.embedded for one in list_compiled_nodes(out))
    with backend.open(out) as session:
        assert share(session.placement(), Tensorrt.provider) > 0.5
        assert decibel(on_cpu(MODEL, feeds), session.run(feeds)) >= 50
    made_for = backend.compiled_for()
    assert made_for["device"] and made_for["compute capability"] and made_for["driver"]


def test_it_runs_out_of_a_bundle(tmp_path: Path) -> None:
    study = studies.study(tmp_path, backend=Tensorrt())
    with load_engine(pack(study, tmp_path / "toy.ortune", compiled=True)) as engine:
        assert engine.compiled and not engine.fallback
