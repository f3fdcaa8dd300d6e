import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ortune.core.errors import OrtuneError
from ortune.core.facts import TensorSpec
from ortune.data import feeds as module
from ortune.data.feeds import Feeds, load_feeds
from ortune.data.stream import Stream

X = TensorSpec("x", "float32", ("batch", 3))
IDS = TensorSpec("ids", "int64", ("batch", "seq"))
MASK = TensorSpec("mask", "bool", ("batch", "seq"))


def rows(count: int, width: int = 3, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count * width, dtype=np.float32).reshape(count, width)


def read(source: Any, inputs: list[TensorSpec], tmp_path: Path, **options: Any) -> Feeds:
    return load_feeds(source, inputs, tmp_path / "out", **options)


def samples(feeds: Feeds) -> list[dict[str, np.ndarray]]:
    return list(Stream(feeds.stream))


def refused(
    source: Any, inputs: list[TensorSpec], tmp_path: Path, what: str, **options: Any
) -> None:
    """The error has two lines, says `what`, and nothing is written."""
    out = tmp_path / "refused" / "out"
    with pytest.raises(OrtuneError) as error:
        load_feeds(source, inputs, out, **options)
    assert what in error.value.what
    assert len(str(error.value).splitlines()) == 2
    assert not out.parent.exists()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


# Sources


def test_npz_files_in_name_order_are_split_into_rows(data: Path, tmp_path: Path) -> None:
    np.savez(data / "b.npz", x=rows(2, start=9), label=np.array([5, 6]))
    np.savez_compressed(data / "a.npz", x=rows(3), label=np.array([1, 2, 3]))
    feeds = read(data, [X], tmp_path)
    assert feeds.count == len(samples(feeds)) == 5
    np.testing.assert_array_equal(np.concatenate([s["x"] for s in samples(feeds)]), rows(5))
    assert all(s["x"].shape == (1, 3) for s in samples(feeds))
    assert feeds.labels == (1, 2, 3, 5, 6)
    assert feeds.groups is None
    assert feeds.source == str(data)
    assert len(set(feeds.digests)) == 5
    assert all(len(digest) == 16 for digest in feeds.digests)


def test_one_npz(data: Path, tmp_path: Path) -> None:
    np.savez(data / "all.npz", x=rows(4), group=np.array(["a", "a", "b", "b"]))
    feeds = read(str(data / "all.npz"), [X], tmp_path)
    assert feeds.groups == ("a", "a", "b", "b")
    assert feeds.labels is None


def test_fortran_order_empty_and_scalar_arrays(data: Path, tmp_path: Path) -> None:
    past = TensorSpec("past", "float32", ("batch", 0, 2))
    np.savez(data / "a.npz", x=np.asfortranarray(rows(4)), past=np.zeros((4, 0, 2), np.float32))
    feeds = read(data, [X, past], tmp_path)
    np.testing.assert_array_equal(samples(feeds)[1]["x"], [[3, 4, 5]])
    assert samples(feeds)[1]["past"].shape == (1, 0, 2)
    rate = TensorSpec("rate", "int64", ())
    np.savez(data / "a.npz", x=rows(4), rate=np.int64(16000))
    feeds = read(data, [X, rate], tmp_path)
    assert feeds.count == 1
    assert samples(feeds)[0]["x"].shape == (4, 3)
    assert samples(feeds)[0]["rate"].shape == ()


def test_a_folder_of_npy_per_input(data: Path, tmp_path: Path) -> None:
    for name, kind in (("ids", np.int64), ("mask", np.bool_)):
        (data / name).mkdir()
        for at in range(3):
            np.save(data / name / f"{at}.npy", np.ones((1, at + 1), kind))
    np.save(data / "label.npy", np.array([7, 8, 9]))
    feeds = read(data, [IDS, MASK], tmp_path)
    assert [s["ids"].shape for s in samples(feeds)] == [(1, 1), (1, 2), (1, 3)]
    assert feeds.labels == (7, 8, 9)
    (data / "mask" / "2.npy").unlink()
    refused(data, [IDS, MASK], tmp_path, "different numbers of files: ids 3, mask 2, label 3")


def test_a_npy_per_input(data: Path, tmp_path: Path) -> None:
    np.save(data / "ids.npy", np.ones((5, 2), np.int64))
    np.save(data / "mask.npy", np.ones((5, 2), np.bool_))
    np.save(data / "label.npy", np.arange(5.0))
    feeds = read(data, [IDS, MASK], tmp_path)
    assert feeds.count == 5
    assert feeds.labels == (0.0, 1.0, 2.0, 3.0, 4.0)
    refused(data, [IDS], tmp_path, "the model has no input 'mask'")


def test_one_npy_feeds_the_only_input(data: Path, tmp_path: Path) -> None:
    np.save(data / "some.npy", rows(4))
    assert read(data / "some.npy", [X], tmp_path).count == 4


def test_json_lines(data: Path, tmp_path: Path) -> None:
    lines = [
        {"ids": [[1, 2, 3]], "mask": [[True, True, False]], "label": "cat", "group": 1},
        {"ids": [[4]], "mask": [[True]], "label": "dog", "group": 2},
    ]
    path = data / "some.jsonl"
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    feeds = read(path, [IDS, MASK], tmp_path)
    assert samples(feeds)[0]["ids"].dtype == np.int64
    assert samples(feeds)[0]["mask"].tolist() == [[True, True, False]]
    assert feeds.labels == ("cat", "dog")
    assert feeds.groups == ("1", "2")


def test_json_numbers_take_the_inputs_dtype(data: Path, tmp_path: Path) -> None:
    small = TensorSpec("n", "uint8", (1,))
    half = TensorSpec("h", "float16", ())
    text = TensorSpec("t", "object", (1,))
    path = data / "some.jsonl"
    path.write_text('{"n": [255], "h": 1, "t": ["word"]}')
    found = samples(read(path, [small, half, text], tmp_path))[0]
    assert found["n"].dtype == np.uint8
    assert found["h"].dtype == np.float16
    assert found["t"].tolist() == ["word"]
    for bad, got in (("[256]", "int64"), ("[0.5]", "float64"), ("[null]", "object")):
        path.write_text(f'{{"n": {bad}, "h": 1, "t": ["word"]}}')
        refused(path, [small, half, text], tmp_path, f"Got {got}, expected uint8")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1 is list, not a mapping"),
        ('{"x": [[1, 2], [3]]}', "lists of 'x' have different lengths"),
        ('{"x": [[NaN, 1, 2]]}', "input 'x' holds nan"),
    ],
)
def test_bad_json_lines(data: Path, tmp_path: Path, line: str, what: str) -> None:
    (data / "some.jsonl").write_text(line)
    refused(data / "some.jsonl", [X], tmp_path, what)


def test_a_function_that_yields_dicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Iterator[dict[str, Any]]:
        yield {"x": rows(2), "label": np.array([1, 0])}
        yield {"x": [[1, 2, 3]], "label": 1}

    feeds = read(make, [X], tmp_path)
    assert feeds.count == 3
    assert feeds.labels == (1, 0, 1)
    assert feeds.source.endswith("make")
    (tmp_path / "own_feeds.py").write_text(
        "def give():\n    yield {'x': [[1, 2, 3]]}\n\ndef fails():\n    yield {}['y']\n"
    )
    monkeypatch.chdir(tmp_path)
    assert read("own_feeds:give", [X], tmp_path).count == 1
    refused("own_feeds:fails", [X], tmp_path, "own_feeds:fails fails: KeyError: 'y'")
    refused("own_feeds:none", [X], tmp_path, "has no function 'none'")
    refused("no_such_module_here:f", [X], tmp_path, "cannot import")
    sys.modules.pop("own_feeds")


def test_memory_does_not_grow_with_the_source(tmp_path: Path) -> None:
    alive: list[int] = []

    class Counted(np.ndarray):
        def __del__(self) -> None:
            alive.append(-1)

    def make() -> Iterator[dict[str, Any]]:
        for _ in range(50):
            alive.append(1)
            yield {"x": rows(1).view(Counted)}
            assert sum(alive) < 8

    assert read(make, [X], tmp_path).count == 50


# How files become samples


def test_a_fixed_batch_takes_its_rows_at_once(data: Path, tmp_path: Path) -> None:
    fixed = TensorSpec("x", "float32", (4, 3))
    np.savez(data / "a.npz", x=rows(10), label=np.arange(10))
    feeds = read(data, [fixed], tmp_path)
    assert [s["x"].shape for s in samples(feeds)] == [(4, 3), (4, 3)]
    assert feeds.labels == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert any("2 left over" in note for note in feeds.notes)
    np.savez(data / "a.npz", x=rows(3))
    refused(data, [fixed], tmp_path, "fewer rows than the 4")


def test_rows_of_two_groups_are_not_joined(data: Path, tmp_path: Path) -> None:
    fixed = TensorSpec("x", "float32", (2, 3))
    np.savez(data / "a.npz", x=rows(5), group=np.array([0, 0, 0, 1, 1]))
    feeds = read(data, [fixed], tmp_path)
    assert feeds.groups == ("0", "1")
    np.testing.assert_array_equal(samples(feeds)[1]["x"], rows(2, start=9))


def test_a_batch_of_one_splits_and_a_wrong_dimension_does_not(data: Path, tmp_path: Path) -> None:
    one = TensorSpec("x", "float32", (1, 3))
    np.savez(data / "a.npz", x=rows(4))
    assert read(data, [one], tmp_path).count == 4
    state = TensorSpec("h", "float32", (2, "batch", 1))
    np.savez(data / "a.npz", x=rows(4), h=np.zeros((2, 4, 1), np.float32))
    feeds = read(data, [X, state], tmp_path)
    assert feeds.count == 1
    assert samples(feeds)[0]["x"].shape == (4, 3)
    refused(data, [one, state], tmp_path, "Got [4, 3], expected [1, 3]")


@pytest.mark.parametrize("first", ["seq_len", "frames"])
def test_a_first_dimension_named_otherwise_is_no_batch(
    data: Path, tmp_path: Path, first: str
) -> None:
    np.savez(data / "a.npz", x=rows(4))
    assert read(data, [TensorSpec("x", "float32", (first, 3))], tmp_path).count == 1
    assert read(data, [TensorSpec("x", "float32", (f"batch_{first}", 3))], tmp_path).count == 4


def test_one_label_for_many_rows_makes_one_sample(data: Path, tmp_path: Path) -> None:
    np.savez(data / "a.npz", x=rows(4), label=np.int64(3))
    feeds = read(data, [X], tmp_path)
    assert (feeds.count, feeds.labels) == (1, (3,))
    np.savez(data / "a.npz", x=rows(4), label=np.array([3, 4]))
    refused(data, [X], tmp_path, "a.npz: wrong number of labels: Got 2, expected 4")


def test_inputs_may_be_named_label_and_group(data: Path, tmp_path: Path) -> None:
    np.savez(data / "a.npz", label=rows(2), group=np.array([1, 2]))
    feeds = read(data, [TensorSpec("label", "float32", ("n", 3))], tmp_path)
    assert feeds.labels is None
    assert feeds.groups == ("1", "2")
    assert "label" in samples(feeds)[0]


def test_batches_that_the_model_does_not_take(data: Path, tmp_path: Path) -> None:
    np.savez(data / "a.npz", x=rows(4))
    assert read(data, [X], tmp_path, batch=4).count == 4
    fixed = TensorSpec("x", "float32", (1, 3))
    refused(data, [fixed], tmp_path, "is fixed: Got 4, expected 1", batch=4)
    four = TensorSpec("x", "float32", (4, 3))
    refused(data, [four], tmp_path, "a sample has its 4 rows already", batch=4)
    whole = TensorSpec("x", "float32", ("seq", 3))
    refused(data, [whole], tmp_path, "share no batch dimension", batch=2)


# Labels and groups


def test_labels_from_files(data: Path, tmp_path: Path) -> None:
    np.savez(data / "a.npz", x=rows(3))
    np.save(tmp_path / "labels.npy", np.array([[1, 2], [3, 4], [5, 6]]))
    feeds = read(data, [X], tmp_path, labels=tmp_path / "labels.npy")
    assert feeds.labels == ([1, 2], [3, 4], [5, 6])
    path = tmp_path / "labels.csv"
    for text, labels in (
        ("1\n2\n3\n", (1, 2, 3)),
        ("0.5\n2\n3\n", (0.5, 2.0, 3.0)),
        ("label\ncat\ndog\n7\n", ("cat", "dog", "7")),
    ):
        path.write_text(text)
        assert read(data, [X], tmp_path, labels=str(path)).labels == labels
    path.write_text("note,label,group\na,1,p\nb,2,p\nc,3,q\n")
    feeds = read(data, [X], tmp_path, labels=path)
    assert feeds.labels == (1, 2, 3)
    assert feeds.groups == ("p", "p", "q")
    assert read(data, [X], tmp_path, labels=np.array([1, 2, 3])).labels == (1, 2, 3)


def test_labels_that_do_not_fit(data: Path, tmp_path: Path) -> None:
    np.savez(data / "a.npz", x=rows(3))
    for count in (2, 4):
        refused(
            data,
            [X],
            tmp_path,
            f"wrong number of labels: Got {count}, expected 3",
            labels=list(range(count)),
        )
    path = tmp_path / "l.csv"
    for text, what in (
        ("", "is empty"),
        ("a,b\n1,2\n", "2 columns and none is named label"),
        ("label,b\n1\n", "row 1 lacks a column"),
    ):
        path.write_text(text)
        refused(data, [X], tmp_path, what, labels=path)
    refused(data, [X], tmp_path, "not a .npy, .csv or .json", labels="labels.txt")
    refused(data, [X], tmp_path, "no such file", labels=tmp_path / "missing.csv")


def test_given_labels_replace_those_in_the_files(data: Path, tmp_path: Path) -> None:
    np.savez(data / "a.npz", x=rows(2), label=np.array([1, 2]))
    feeds = read(data, [X], tmp_path, labels=[7, 8])
    assert feeds.labels == (7, 8)
    assert any("replaced" in note for note in feeds.notes)


def test_some_labels_are_not_enough(data: Path, tmp_path: Path) -> None:
    np.savez(data / "a.npz", x=rows(2), label=np.array([1, 2]))
    np.savez(data / "b.npz", x=rows(2))
    refused(data, [X], tmp_path, "b.npz row 0: some samples have a label, others have none")
    np.savez(data / "0.npz", x=rows(2))
    refused(data, [X], tmp_path, "some samples have a label, others have none")


# Checks


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"y": rows(1), "x": rows(1)}, "a.npz: the model has no input 'y'"),
        ({"y": rows(1)}, "the model has no input 'y'"),
        ({"label": np.ones(1)}, "input 'x' is missing"),
        ({"x": rows(1)[0]}, "wrong rank: Got 1 [3], expected 2 [batch, 3]"),
        ({"x": rows(2, 4)}, "wrong shape in dimension 1: Got [2, 4], expected [batch, 3]"),
        ({"x": rows(1).astype(np.int64)}, "wrong dtype: Got int64, expected float32"),
        ({"x": rows(1).astype(np.float16)}, "wrong dtype: Got float16, expected float32"),
        ({"x": np.array([["a", "b", "c"]])}, "wrong dtype: Got str32, expected float32"),
        ({"x": np.array([[1, np.nan, 2]], np.float32)}, "input 'x' holds nan (not finite: 1 of 3"),
        ({"x": np.array([[1, 2, 3], [1, -np.inf, 2]], "f4")}, "a.npz row 1: input 'x' holds -inf"),
        ({"x": np.array([[1e300, 0, 0]])}, "input 'x' holds inf"),
    ],
)
def test_samples_that_do_not_fit(
    data: Path, tmp_path: Path, arrays: dict[str, np.ndarray], what: str
) -> None:
    np.savez(data / "a.npz", **arrays)
    refused(data, [X], tmp_path, what)


def test_conversions_that_keep_the_meaning(data: Path, tmp_path: Path) -> None:
    np.savez(data / "a.npz", x=rows(1).astype(">f8"), ids=np.array([[1, 2]], np.int32))
    feeds = read(data, [X, IDS], tmp_path)
    found = samples(feeds)[0]
    assert found["x"].dtype == np.float32
    assert found["ids"].dtype == np.int64
    assert set(feeds.notes) == {
        "input 'x': float64 is read as float32",
        "input 'ids': int32 is read as int64",
    }
    np.savez(data / "a.npz", x=rows(1).astype(">f4"), ids=np.array([[1, 2]], np.uint64))
    refused(data, [X, IDS], tmp_path, "Got uint64, expected int64")
    np.savez(data / "a.npz", x=rows(1).astype(">f4"), ids=np.array([[1, 2]]))
    feeds = read(data, [X, IDS], tmp_path)
    assert feeds.notes == ()
    assert samples(feeds)[0]["x"].dtype == np.dtype("=f4")
    assert samples(feeds)[0]["x"].tolist() == [[0, 1, 2]]


def test_bfloat16_comes_back_from_raw_bytes(data: Path, tmp_path: Path) -> None:
    spec = TensorSpec("x", "bfloat16", ("batch", 3))
    np.savez(data / "a.npz", x=rows(2).astype(ml_dtypes.bfloat16))
    feeds = read(data, [spec], tmp_path)
    assert samples(feeds)[1]["x"].dtype == ml_dtypes.bfloat16
    assert samples(feeds)[1]["x"].astype(float).tolist() == [[3, 4, 5]]
    refused(data, [X], tmp_path, "expected float32")


@pytest.mark.parametrize("spec", ["object", "str"])
def test_text_inputs(data: Path, tmp_path: Path, spec: str) -> None:
    np.savez(data / "a.npz", t=np.array([["some", "text"]]))
    feeds = read(data, [TensorSpec("t", spec, ("batch", "words"))], tmp_path)
    assert samples(feeds)[0]["t"].tolist() == [["some", "text"]]


@pytest.mark.parametrize("dtype", ["seq(float32)", "optional(int64)", ""])
def test_only_tensors_are_fed(data: Path, tmp_path: Path, dtype: str) -> None:
    np.savez(data / "a.npz", x=rows(1))
    refused(data, [TensorSpec("x", dtype, None)], tmp_path, "only tensors can be fed")


def test_an_input_of_unknown_rank_takes_anything(data: Path, tmp_path: Path) -> None:
    np.savez(data / "a.npz", x=np.ones((2, 1, 1), np.float32))
    assert read(data, [TensorSpec("x", "float32", None)], tmp_path).count == 2


def pickled(path: Path) -> None:
    np.savez(path, x=np.array([{}], object))


def text(path: Path) -> None:
    path.write_text("not a zip")


def cut(path: Path) -> None:
    np.savez(path, x=rows(500))
    path.write_bytes(path.read_bytes()[:-200])


def damaged(path: Path) -> None:
    np.savez(path, x=rows(500))
    content = bytearray(path.read_bytes())
    content[2000:2010] = b"0123456789"
    path.write_bytes(bytes(content))


def no_arrays(path: Path) -> None:
    np.savez(path)


@pytest.mark.parametrize("spoil", [pickled, text, cut, damaged, no_arrays])
def test_files_that_cannot_be_read(
    data: Path, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(data / "a.npz")
    refused(data, [X], tmp_path, "a.npz")


def test_sources_that_are_none(data: Path, tmp_path: Path) -> None:
    refused(data, [X], tmp_path, "it is empty")
    (data / "readme.txt").write_text("")
    refused(data, [X], tmp_path, "no file is of a known kind")
    refused(data / "readme.txt", [X], tmp_path, "no tokenizer.json")
    refused(tmp_path / "missing", [X], tmp_path, "no file or folder")
    refused(list, [X], tmp_path, "no samples")
    refused(lambda: 3, [X], tmp_path, "TypeError")
    refused(lambda: [3], [X], tmp_path, "is int, not a mapping")


def test_digests_tell_samples_apart() -> None:
    one = {"x": rows(1), "y": np.ones(2)}
    assert module.digest_sample(one) == module.digest_sample(dict(reversed(one.items())))
    assert module.digest_sample({"t": np.array(["a"], "<U1")}) == module.digest_sample(
        {"t": np.array(["a"], "<U9")}
    )
    others = [
        {"x": rows(1), "z": np.ones(2)},
        {"x": rows(1), "y": np.ones((1, 2))},
        {"x": rows(1), "y": np.ones(2, np.float32)},
        {"x": rows(1), "y": np.zeros(2)},
    ]
    assert len({module.digest_sample(sample) for sample in [one, *others]}) == 5
