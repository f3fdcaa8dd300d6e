"""Models in a download cache: model and external data are links into a folder of blobs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tests.unit.quantizing import model_of, normal

from ortune.backends.openvino import replace_links
from ortune.core.backend import Backend
from ortune.core.plugins.spelling import parse_plugin
from ortune.graph.io import file

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[b,64] x) => (float[b,32] y) { y = MatMul(x, w) }"""


def save_as_cached(model: ir.Model, root: Path) -> Path:
    """Write it as the Hugging Face cache does and return the link to the model."""
    plain = root / "plain" / "model.onnx"
    plain.parent.mkdir(parents=True)
    file.save(model, plain, external_above=0)
    blobs, snapshot = root / "blobs", root / "snapshots" / "0a1b" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, stored in enumerate(sorted(plain.parent.iterdir())):
        stored.rename(blobs / f"{number}{number}aa")
        (snapshot / stored.name).symlink_to(Path("../../../blobs") / f"{number}{number}aa")
    return snapshot / "model.onnx"


@pytest.mark.parametrize("on", ["cpu", "simulated", "reference", "openvino", "bucketed"])
def test_every_backend_opens_a_cached_model(tmp_path: Path, on: str) -> None:
    weight = normal(64, 32, seed=1)
    path = save_as_cached(model_of(MODEL, {"w": weight}), tmp_path)
    backend = parse_plugin(Backend, on)
    if reason := backend.missing():
        pytest.skip(reason)
    feeds = {"x": normal(1, 64, seed=2)}
    with backend.open(path) as session:
        answer = session.run(feeds)["y"]
    np.testing.assert_allclose(answer, feeds["x"] @ weight, rtol=2e-2, atol=5e-2)


def test_the_reference_reads_hard_links(tmp_path: Path) -> None:
    weight = normal(64, 32, seed=1)
    path = file.save(model_of(MODEL, {"w": weight}), tmp_path / "m.onnx", external_above=0)
    os.link(tmp_path / "m.onnx.data", tmp_path / "kept")
    feeds = {"x": normal(1, 64, seed=2)}
    with parse_plugin(Backend, "reference").open(path) as session:
        np.testing.assert_allclose(
            session.run(feeds)["y"], feeds["x"] @ weight, rtol=1e-4, atol=1e-5
        )


def test_links_are_replaced_for_the_block_alone(tmp_path: Path) -> None:
    path = save_as_cached(model_of(MODEL, {"w": normal(64, 32, seed=1)}), tmp_path)
    with replace_links(path) as plain:
        assert plain != path
        assert not any(entry.is_symlink() for entry in plain.parent.iterdir())
        assert file.compute_digest(plain) == file.compute_digest(path)
    assert not plain.parent.exists()


def test_a_model_without_links_is_opened_where_it_lies(tmp_path: Path) -> None:
    path = file.save(model_of(MODEL, {"w": normal(64, 32, seed=1)}), tmp_path / "m.onnx")
    with replace_links(path) as plain:
        assert plain == path


def test_data_outside_the_folder_is_not_brought_in(tmp_path: Path) -> None:
    path = save_as_cached(model_of(MODEL, {"w": normal(64, 32, seed=1)}), tmp_path)
    data = path.parent / "model.onnx.data"
    content = data.read_bytes()
    data.unlink()
    (tmp_path / "elsewhere").write_bytes(content)
    data.symlink_to(tmp_path / "elsewhere")
    with replace_links(path) as plain:
        assert plain == path
