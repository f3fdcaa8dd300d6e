"""The verb: what is missing is said in two lines."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import ortune as ot
from ortune.core.errors import BadSettings, OrtuneError
from ortune.server import serve


@pytest.mark.parametrize("missing", ["uvicorn", "httptools", "grpc", "google.protobuf", "orjson"])
def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    real = importlib.util.find_spec

    def absent(name: str) -> object:
        if name == missing and "." in name:
            raise ModuleNotFoundError(name)
        return None if name == missing else real(name)

    monkeypatch.setattr(serve, "find_spec", absent)
    with pytest.raises(OrtuneError, match=missing) as caught:
        ot.serve("toy.onnx")
    assert caught.value.fix == "pip install 'ortune[serve]'"
    assert len(str(caught.value).splitlines()) == 2


def test_what_cannot_go_together(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="--explicit with --processes"):
        serve.carry_out(serve.Serve("toy.onnx", explicit=True, processes=2), None)
    with pytest.raises(BadSettings, match="there is no file"):
        ot.serve(tmp_path / "none.onnx", http_port=0, grpc_port=0)
