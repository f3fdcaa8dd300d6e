"""Parquet files and datasets as samples; COCO files as labels."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.hardware import memory
from ortune.data import feeds
from ortune.data.labels import read_label_file
from ortune.data.stream import Stream
from ortune.metrics.common.detection import read_labels

IDS = TensorSpec("ids", "int64", ("batch", "seq"))
MASK = TensorSpec("mask", "float32", ("batch", 2, 2))
RATE = TensorSpec("rate", "int64", ("batch",))
PICTURE = TensorSpec("image", "float32", ("batch", 3, 8, 8))


def load(source: Any, out: Path, *inputs: TensorSpec, **more: Any) -> tuple[Any, list[Any]]:
    found = feeds.load_feeds(source, inputs, out, **more)
    return found, [dict(one) for one in Stream(found.stream)]


def png(value: int) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (8, 8), (value, value, value)).save(data, "png")
    return data.getvalue()


def test_columns_are_inputs_and_a_row_is_a_sample(tmp_path: Path) -> None:
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    values = np.arange(12, dtype=np.float32)
    table = pa.table(
        {
            "ids": pa.array([[1, 2], [3], [4, 5, 6]], pa.list_(pa.int32())),
            "mask": pa.ExtensionArray.from_storage(
                tensor, pa.FixedSizeListArray.from_arrays(pa.array(values), 4)
            ),
            "rate": [7, 8, 9],
            "label": [0, 1, 0],
            "group": ["a", "a", "b"],
            "text": ["x", "y", "z"],
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    found, samples = load(tmp_path / "a.parquet", tmp_path / "out", IDS, MASK, RATE)
    assert (found.labels, found.groups) == ((0, 1, 0), ("a", "a", "b"))
    assert [one["ids"].tolist() for one in samples] == [[[1, 2]], [[3]], [[4, 5, 6]]]
    np.testing.assert_array_equal(samples[2]["mask"], values[8:].reshape(1, 2, 2))
    assert samples[1]["rate"].tolist() == [8]
    assert any("ignored: text" in note for note in found.notes)


def test_a_folder_of_parts_and_nested_lists(tmp_path: Path) -> None:
    for name, start in (("a", 0.0), ("b", 4.0)):
        rows = [[[start, start + 1], [start + 2, start + 3]]]
        parquet.write_table(pa.table({"mask": rows}), tmp_path / f"{name}.parquet")
    _, samples = load(tmp_path, tmp_path / "out", MASK)
    assert [one["mask"].reshape(-1).tolist() for one in samples] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_pictures_in_a_table(tmp_path: Path) -> None:
    rows = [{"bytes": png(255), "path": "a.png"}, {"bytes": png(0), "path": "/etc/passwd"}]
    parquet.write_table(pa.table({"image": rows, "label": [1, 0]}), tmp_path / "a.parquet")
    found, samples = load(tmp_path / "a.parquet", tmp_path / "out", PICTURE)
    assert found.labels == (1, 0)
    assert [one["image"].mean() for one in samples] == [1.0, 0.0]
    rows = [{"bytes": None, "path": "/etc/passwd"}]
    schema = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    parquet.write_table(pa.table({"image": pa.array(rows, schema)}), tmp_path / "a.parquet")
    with pytest.raises(BadData, match=r"lies in another file\n  fix: "):
        load(tmp_path / "a.parquet", tmp_path / "out", PICTURE)


@pytest.mark.parametrize("text", ["rate", "label", "straße"])
def test_what_is_no_text_in_a_table_is_two_lines(tmp_path: Path, text: str) -> None:
    """Names in its metadata, and values: each place of a byte that is no UTF-8 by itself."""
    table = pa.table({"rate": [1], "label": ["straße"]})
    parquet.write_table(table, tmp_path / "a.parquet", compression="none")
    whole, name = (tmp_path / "a.parquet").read_bytes(), text.encode()
    starts = [at for at in range(len(whole)) if whole.startswith(name, at)]
    refused = 0
    for start in starts:
        broken = bytearray(whole)
        broken[start + 2] = 0xDC
        (tmp_path / "a.parquet").write_bytes(broken)
        try:
            load(tmp_path / "a.parquet", tmp_path / "out", RATE)
        except BadData as error:
            refused += "a.parquet" in error.what
    assert refused


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"label": [1]}, "input 'ids' is missing"),
        ({"ids": [[1], None]}, "a.parquet row 1: column 'ids' is empty"),
        ({"ids": [["a"]]}, "wrong dtype"),
        ({"ids": [[0.5]]}, "wrong dtype"),
        ({"ids": [[[1], [2, 3]]]}, "different lengths"),
    ],
)
def test_a_table_that_does_not_fit(tmp_path: Path, columns: dict[str, Any], what: str) -> None:
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(BadData, match=rf"{what}.*\n  fix: "):
        load(tmp_path / "a.parquet", tmp_path / "out", IDS)


def test_what_is_no_parquet_and_what_would_not_fit_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(BadData, match=r"cannot read .*a.parquet.*\n  fix: "):
        load(tmp_path / "a.parquet", tmp_path / "out", IDS)
    zeros = pa.array(np.zeros(5_000_000, np.int64))
    table = pa.table({"ids": pa.ListArray.from_arrays([0, 5_000_000], zeros)})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    monkeypatch.setattr(memory, "count_allowed_bytes", lambda taken=0: 10_000_000)
    with pytest.raises(BadData, match=r"a row group of .*114.4 MiB.*\n  fix: "):
        load(tmp_path / "a.parquet", tmp_path / "out", IDS)


@pytest.mark.parametrize(
    ("name", "source", "asked"),
    [("pyarrow", "a.parquet", "pyarrow"), ("datasets", "hf:a", "'datasets>=4.0'")],
)
def test_without_the_package_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str, asked: str
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadData, match=rf"needs .*{name}\n  fix: pip install {asked}"):
        load(source, tmp_path / "out", IDS)


def test_boxes_as_labels_of_every_source(tmp_path: Path) -> None:
    rows = [[[0, 0, 1, 1, 2], [3, 3, 5, 5, 0]], [], [[1, 1, 2, 2, 1]]]
    lines = [{"rate": [at], "label": [label]} for at, label in enumerate(rows)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    table = pa.table({"rate": [0, 1, 2], "label": rows})
    parquet.write_table(table, tmp_path / "a.parquet")
    padded = np.full((3, 2, 5), -1)
    for at, label in enumerate(rows):
        padded[at, : len(label)] = np.reshape(label, (-1, 5))
    np.savez(tmp_path / "a.npz", rate=np.arange(3), label=padded)
    for kind in ("jsonl", "parquet", "npz"):
        found, _ = load(tmp_path / f"a.{kind}", tmp_path / "out", RATE)
        for label, wanted in zip(found.labels, rows, strict=True):
            boxes, size = read_labels(np.asarray(label))
            assert size is None
            np.testing.assert_array_equal(boxes.classes, [one[4] for one in wanted])
            np.testing.assert_array_equal(
                boxes.boxes + np.pad(boxes.boxes[:, :2], ((0, 0), (2, 0))),
                np.reshape([one[:4] for one in wanted], (-1, 4)),
            )


# --- COCO ------------------------------------------------------------------------------------


def coco(path: Path, **more: Any) -> Path:
    data = {
        "images": [
            {"id": 4, "file_name": "b.png", "width": 80, "height": 40},
            {"id": 9, "file_name": "a.png"},
        ],
        "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}],
        "annotations": [
            {"image_id": 4, "category_id": 7, "bbox": [1, 2, 3, 4], "iscrowd": 1},
            {"image_id": 4, "category_id": 3, "bbox": [5, 6, 7, 8]},
        ],
    }
    path.write_text(json.dumps(data | more))
    return path


def test_labels_of_a_coco_file_go_by_the_pictures_names(tmp_path: Path) -> None:
    labels = coco(tmp_path / "labels.json")
    for name in ("a", "b"):
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / f"{name}.png").write_bytes(png(0))
        (tmp_path / "n").mkdir(exist_ok=True)
        np.savez(tmp_path / "n" / f"{name}.npz", image=np.zeros((1, 3, 8, 8), np.float32))
    empty = {"boxes": [], "classes": [], "ids": [], "crowd": []}
    full = {"boxes": [[1, 2, 3, 4], [5, 6, 7, 8]], "classes": [1, 0], "ids": [7, 3]}
    full |= {"crowd": [1, 0], "size": [80, 40]}
    for folder in ("d", "n"):
        found, _ = load(tmp_path / folder, tmp_path / "out", PICTURE, labels=labels)
        assert found.labels == (empty, full)
    (tmp_path / "d" / "c.png").write_bytes(png(0))
    with pytest.raises(BadData, match=r"has no picture 'c.png'\n  fix: "):
        load(tmp_path / "d", tmp_path / "out", PICTURE, labels=labels)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"images": 5}, "TypeError"),
        ({"images": [{"id": 1}]}, "KeyError"),
        ({"images": [{"id": 1, "file_name": "a"}] * 2}, "there twice"),
        ({"annotations": [{"image_id": 4, "category_id": 1, "bbox": [1, 2, 3, 4]}]}, "KeyError"),
        ({"annotations": [{"image_id": 4, "category_id": 3, "bbox": [1, 2]}]}, "ValueError"),
        (
            {"annotations": [{"image_id": 4, "category_id": 3, "bbox": [1, 2, 3, float("nan")]}]},
            "not finite",
        ),
    ],
)
def test_what_is_no_coco_file_is_two_lines(
    tmp_path: Path, more: dict[str, Any], what: str
) -> None:
    labels = coco(tmp_path / "labels.json", **more)
    (tmp_path / "a.png").write_bytes(png(0))
    with pytest.raises(BadData, match=rf"is no COCO file of boxes: .*{what}.*\n  fix: "):
        load(tmp_path / "a.png", tmp_path / "out", PICTURE, labels=labels)


@pytest.mark.parametrize("name", ["none.csv", "none.npy", "none.json"])
def test_labels_that_are_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadData) as caught:
        read_label_file(tmp_path / name)
    assert caught.value.what == f"{tmp_path / name}: no such file or directory"
    assert caught.value.fix == "check the path"
