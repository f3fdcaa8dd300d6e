"""Class folders get the model's own numbers, and rows of a table go to the files they name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.data import feeds
from ortune.data.classes import number_classes, read_classes

X = TensorSpec("x", "float32", ("N", 2))


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        ({"names": "{0: 'person', 1: 'car'}"}, ("person", "car")),
        ({"names": "{1: 'car', 0: 'person'}"}, ("person", "car")),
        ({"id2label": '{"0": "no", "1": "yes"}'}, ("no", "yes")),
        ({"Classes": '["a", "b"]'}, ("a", "b")),
        ({"labels": "a, b,c"}, ("a", "b", "c")),
        ({"class_names": "a\nb c\n"}, ("a", "b c")),
        ({"names": "{0: 'a', 2: 'c'}"}, ()),
        ({"names": "[1, 2]"}, ()),
        ({"names": "yolo"}, ()),
        ({"names": "[" * 100_000}, ()),
        ({"author": "a,b"}, ()),
        ({}, ()),
    ],
)
def test_class_names_of_metadata(metadata: dict[str, str], names: tuple[str, ...]) -> None:
    assert read_classes(metadata) == names


def numbered(
    tmp_path: Path, *folders: str, classes: tuple[str, ...] = ()
) -> tuple[dict[str, int], str]:
    notes: list[str] = []
    files = [tmp_path / name / "a.png" for name in folders]
    return number_classes(files, tmp_path, notes.append, classes), "; ".join(notes)


def test_a_file_of_classes_goes_before_the_models_and_names_before_the_alphabet(
    tmp_path: Path,
) -> None:
    assert numbered(tmp_path, "dog", "cat")[0] == {"cat": 0, "dog": 1}
    found, said = numbered(tmp_path, "dog", "cat", classes=("ape", "Dog", "cat"))
    assert found == {"dog": 1, "cat": 2}
    assert said == "labels from sub-folder names, by the model's metadata: 1 = dog, 2 = cat"
    (tmp_path / "classes.txt").write_text("dog\nbird\n\ncat\n")
    found, said = numbered(tmp_path, "dog", "cat", classes=("ape", "dog", "cat"))
    assert found == {"dog": 0, "cat": 3}, "an empty line is a class without a name"
    assert said == "labels from sub-folder names, by classes.txt: 0 = dog, 3 = cat"


def test_names_are_compared_as_people_write_them(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("n01440764 tench, Tinca\nTraffic Light\nstop-sign\n")
    found, _ = numbered(tmp_path, "n01440764", "traffic_light", "stop sign")
    assert found == {"n01440764": 0, "traffic_light": 1, "stop sign": 2}


def test_a_folder_that_the_file_lacks_is_refused_and_one_that_the_model_lacks_is_said(
    tmp_path: Path,
) -> None:
    found, said = numbered(tmp_path, "dog", "cat", classes=("dog", "ape"))
    assert found == {"cat": 0, "dog": 1}
    assert "numbered by name" in said
    assert "the model's metadata has no 'cat'" in said
    (tmp_path / "classes.txt").write_text("dog\nape\n")
    with pytest.raises(BadData, match="has no class 'cat'"):
        numbered(tmp_path, "dog", "cat")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Files whose order by name is not that of their numbers."""
    folder = tmp_path / "data"
    folder.mkdir()
    for at in (1, 2, 10):
        np.savez(folder / f"{at}.npz", x=np.full((1, 2), at, np.float32))
    return folder


def labelled(data: Path, table: str) -> tuple[object, ...] | None:
    path = data.parent / "labels.csv"
    path.write_text(table)
    return feeds.load_feeds(data, [X], data.parent / "out", labels=path).labels


@pytest.mark.parametrize(
    "table",
    [
        "file,label\n2.npz,22\n1.npz,11\n10.npz,100\n",
        "label,whatever\n22,2.npz\n11,1.npz\n100,10.npz\n",
        "path,label\ndata/2.npz,22\ndata/1.npz,11\ndata/10.npz,100\n",
        "image,label\n2.jpg,22\n1.jpg,11\n10.jpg,100\n",
        "filename,label\n2,22\n1,11\n10,100\n",
        "id,label\n2,22\n1,11\n10,100\n",
    ],
)
def test_rows_go_by_the_names_in_them(data: Path, table: str) -> None:
    assert labelled(data, table) == (11, 100, 22)


def test_groups_of_a_table_go_by_its_names_too(data: Path) -> None:
    path = data.parent / "labels.csv"
    path.write_text("group,file,label\nb,2.npz,22\na,1.npz,11\nc,10.npz,100\n")
    assert feeds.load_feeds(data, [X], data.parent / "out", labels=path).groups == ("a", "c", "b")


@pytest.mark.parametrize(
    "table",
    ["label\n1\n2\n3\n", "label,name\n1,cat\n2,dog\n3,cat\n", "id,label\n100,1\n101,2\n102,3\n"],
)
def test_a_table_without_file_names_keeps_the_order(data: Path, table: str) -> None:
    assert labelled(data, table) == (1, 2, 3)


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ("file,label\n1.npz,1\n2.npz,2\n3.npz,3\n", "has no row for '10.npz'"),
        ("file,label\n1.npz,1\n2.npz,2\n", "has no row for '10.npz'"),
        ("file,label\n1.npz,1\n2.npz,2\n10.npz,3\n11.npz,4\n", "names 1 file without a sample"),
        ("file,label\n1.npz,1\n2.npz,2\n2.npz,3\n", "names '2.npz' more than once"),
        ("file,label\na/1.npz,1\nb/1.npz,2\n10.npz,3\n", "may both be '1.npz'"),
        ("id,label\n1,1\n2,2\n", "has no row for '10.npz'"),
        ("label\n1\n2\n", "wrong number of labels: Got 2, expected 3"),
    ],
)
def test_names_that_cannot_be_matched_are_refused(data: Path, table: str, what: str) -> None:
    with pytest.raises(BadData, match=what):
        labelled(data, table)


def test_one_name_is_not_two_files(tmp_path: Path) -> None:
    from PIL import Image

    data = tmp_path / "data"
    for folder in ("a", "b"):
        (data / folder).mkdir(parents=True)
        Image.new("RGB", (2, 2)).save(data / folder / "1.png")
    spec = TensorSpec("x", "float32", ("N", 3, 2, 2))
    path = tmp_path / "labels.csv"
    path.write_text("file,label\n1.png,1\n")
    with pytest.raises(BadData, match=r"'1\.png' may be 'a/1\.png' and 'b/1\.png'"):
        feeds.load_feeds(data, [spec], tmp_path / "out", labels=path)
    path.write_text("file,label\nb/1.png,1\na/1.png,2\n")
    assert feeds.load_feeds(data, [spec], tmp_path / "out", labels=path).labels == (2, 1)


def test_class_folders_get_the_numbers_of_the_models_metadata(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("dog", "cat"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("RGB", (2, 2)).save(tmp_path / "data" / name / "1.png")
    spec = TensorSpec("x", "float32", ("N", 3, 2, 2))
    out = tmp_path / "out"
    assert feeds.load_feeds(tmp_path / "data", [spec], out).labels == (0, 1)
    assert feeds.load_feeds(tmp_path / "data", [spec], out, classes=("dog", "cat")).labels == (
        1,
        0,
    )
