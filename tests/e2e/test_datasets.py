"""Datasets of Hugging Face's package as samples; importing it takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.data import feeds
from ortune.data.stream import Stream

datasets = pytest.importorskip("datasets")
IDS = TensorSpec("ids", "int64", ("batch", "seq"))
PICTURE = TensorSpec("image", "float32", ("batch", 3, 8, 8))


def load(source: str, out: Path, *inputs: TensorSpec) -> tuple[Any, list[Any]]:
    found = feeds.load_feeds(source, inputs, out)
    return found, [dict(one) for one in Stream(found.stream)]


@pytest.fixture
def rows() -> Any:
    return datasets.Dataset.from_dict(
        {"ids": [[1, 2], [3]], "label": [0, 1], "group": ["a", "b"], "text": ["x", "y"]}
    )


def test_a_dataset_that_was_saved(tmp_path: Path, rows: Any) -> None:
    rows.save_to_disk(tmp_path / "d")
    found, samples = load(f"hf:{tmp_path / 'd'}", tmp_path / "out", IDS)
    assert (found.labels, found.groups) == ((0, 1), ("a", "b"))
    assert [one["ids"].tolist() for one in samples] == [[[1, 2]], [[3]]]
    assert any("are ignored: text" in note for note in found.notes)


def test_a_split_is_named_where_there_are_several(tmp_path: Path, rows: Any) -> None:
    both = datasets.DatasetDict({"train": rows, "test": rows.select([1])})
    both.save_to_disk(tmp_path / "d")
    _, samples = load(f"hf:{tmp_path / 'd'}:test", tmp_path / "out", IDS)
    assert [one["ids"].tolist() for one in samples] == [[[3]]]
    for source, what in ((":val", "no split 'val': train, test"), ("", "has 2 splits")):
        with pytest.raises(BadData, match=rf"{what}.*\n  fix: write hf:.*d:train"):
            load(f"hf:{tmp_path / 'd'}{source}", tmp_path / "out", IDS)


def test_pictures(tmp_path: Path) -> None:
    pixels = [np.full((8, 8, 3), value, np.uint8) for value in (0, 255)]
    from PIL import Image

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    held = {"image": [Image.fromarray(one) for one in pixels], "label": [0, 1]}
    datasets.Dataset.from_dict(held, features=features).save_to_disk(tmp_path / "d")
    found, samples = load(f"hf:{tmp_path / 'd'}", tmp_path / "out", PICTURE)
    assert [one["image"].mean() for one in samples] == [0.0, 1.0]
    assert found.labels == (0, 1)


def test_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    with pytest.raises(BadData, match=r"cannot read hf:nobody/nothing.*\n  fix: .*save_to_disk"):
        load("hf:nobody/nothing", tmp_path / "out", IDS)


def test_code_of_a_dataset_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(BadData):
        load(f"hf:{folder}", tmp_path / "out", IDS)
    assert not (tmp_path / "ran").exists()
