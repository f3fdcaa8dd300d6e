"""What is served, by name and version, and when it changed."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.unit.serving.server.repository.toys import write

from ortune.core.errors import BadSettings
from ortune.serving.server.repository.sources import (
    ModelSource,
    find_sources,
    read_state,
    read_states,
)


def test_a_file_is_version_one_and_has_the_name_of_its_file(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.net.onnx")
    (source,) = find_sources([path])
    assert source == ModelSource("tiny.net", path)
    assert source.list_files() == {"1": path}


def test_a_link_keeps_its_own_name(tmp_path: Path) -> None:
    target = write(tmp_path / "v3" / "export.onnx")
    (tmp_path / "net.onnx").symlink_to(target)
    assert [source.name for source in find_sources([tmp_path / "net.onnx"])] == ["net"]


def test_names_are_given_where_files_have_the_same(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a" / "model.onnx"), write(tmp_path / "b" / "model.onnx")
    assert [source.name for source in find_sources([f"left={one}", other])] == ["left", "model"]
    with pytest.raises(BadSettings, match=r"two models .* 'model'"):
        find_sources([one, other])


def test_a_path_may_hold_an_equals_sign(tmp_path: Path) -> None:
    path = write(tmp_path / "lr=3" / "net.onnx")
    assert find_sources([path]) == [ModelSource("net", path)]


@pytest.mark.parametrize("name", ["../net", ".hidden", "a b", "a/b", "n\nm", "é", "x" * 201])
def test_names_are_those_that_urls_take(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "net.onnx")
    with pytest.raises(BadSettings):
        find_sources([f"{name}={path}"])


def test_versions_are_folders_of_numbers_in_order(tmp_path: Path) -> None:
    paths = {n: write(tmp_path / "net" / n / "any.onnx") for n in ("10", "2", "1")}
    (tmp_path / "net" / "notes").mkdir()
    (tmp_path / "net" / "007").mkdir()
    (tmp_path / "net" / "1" / "any.onnx.data").write_bytes(b"weights")
    (source,) = find_sources([tmp_path / "net"])
    assert list(source.list_files().items()) == [(n, paths[n]) for n in ("1", "2", "10")]


def test_a_version_is_one_file(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        write(tmp_path / "net" / "1" / name)
    with pytest.raises(BadSettings, match="holds 2 models"):
        find_sources([tmp_path / "net"])


@pytest.mark.parametrize("name", ["nothing.onnx", "empty"])
def test_what_is_not_there_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadSettings):
        find_sources([tmp_path / name])


def test_a_state_changes_with_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", 2)
    before = read_state(path)
    assert read_state(path) == before
    write(path, 3)
    assert read_state(path) != before


def test_weights_beside_a_model_belong_to_its_state(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    value = helper.make_tensor_value_info
    node, x, y = helper.make_node("MatMul", ["x", "w"], ["y"]), [1, 64], [1, 64]
    graph = helper.make_graph([node], "g", [value("x", 1, x)], [value("y", 1, y)], [weight])
    path = tmp_path / "net.onnx"
    onnx.save(
        helper.make_model(graph),
        path,
        save_as_external_data=True,
        location="net.weights",
        size_threshold=0,
    )
    before = read_state(path)
    os.utime(tmp_path / "net.weights", ns=(1, 1))
    assert read_state(path) != before


def test_what_cannot_be_read_has_no_state(tmp_path: Path) -> None:
    assert read_states(ModelSource("net", tmp_path / "net")) == {}
