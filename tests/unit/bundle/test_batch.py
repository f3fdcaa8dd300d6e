"""Batch inference here: every row once and in order, whatever ended the run before."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.unit import texts

from ortune.bundle.batch import BatchJob, BatchResult, run_batch
from ortune.cli.main import BAD, DONE, main
from ortune.core.errors import OrtuneError
from ortune.core.event import Event

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
TWICE = """toy (float[N,4] x) => (float[N,4] y) {
    two = Constant<value = float {2.0}>() y = Mul(x, two) }"""
FIXED = TWICE.replace("N", "3")
ABOVE = """toy (float[N,4] x) => (int64[K,2] places) {
    zero = Constant<value = float {0.0}>() high = Greater(x, zero)
    found = NonZero(high) places = Transpose<perm = [1, 0]>(found) }"""
PICKED = """toy (int64[N,1] i) => (float[N,1,2] y) {
    table = Constant<value = float[3,2] {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}>() y = Gather(table, i) }"""
X = np.arange(600 * 4, dtype=np.float32).reshape(600, 4)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()

    def model(text: str) -> Path:
        path = tmp_path / "toy.onnx"
        onnx.save(onnx.parser.parse_model(HEAD + text), path)
        return path

    return model


def run(model: Path, data: str = "data", **settings: Any) -> BatchResult:
    return run_batch(BatchJob(model=model, data=Path(data), out=Path("out"), **settings))


def read(name: str) -> np.ndarray:
    paths = sorted(Path("out").glob("part-*.npz"))
    return np.concatenate([np.load(path)[name] for path in paths])


def refused(what: str, model: Path, **settings: Any) -> str:
    with pytest.raises(OrtuneError) as error:
        run(model, **settings)
    assert what in error.value.what
    assert len(str(error.value).splitlines()) == 2
    return error.value.fix


def test_rows_of_many_files_are_computed_once_and_in_order(write) -> None:
    model = write(TWICE)
    for name, rows in (("a", X[:1]), ("b", X[1:500]), ("c", X[500:])):
        np.savez(f"data/{name}.npz", x=rows)
    outcome = run(model)
    assert (outcome.rows, outcome.computed_rows, outcome.resumed) == (600, 600, 0)
    assert outcome.parts == len(list(Path("out").glob("part-*.npz"))) > 3
    assert np.array_equal(read("y"), 2 * X)
    assert read("row")[[0, 1, 499, 500]].tolist() == [
        *("a.npz", "b.npz row 0", "b.npz row 498", "c.npz row 0")
    ]


def test_a_packed_file_is_read_from_the_middle(write) -> None:
    model = write(TWICE)
    np.savez_compressed("data/a.npz", x=X)
    run(model)
    assert np.array_equal(read("y"), 2 * X)


def test_an_array_is_cut_into_parts(write) -> None:
    model = write(TWICE)
    np.save("data/a.npy", X[:130])
    assert run(model, "data/a.npy").parts == 3
    assert np.array_equal(read("y"), 2 * X[:130])


def test_lines(write) -> None:
    model = write(TWICE)
    lines = [json.dumps({"x": [row.tolist()]}) for row in X[:150]]
    Path("data/a.jsonl").write_text("\n\n".join(lines[:100]) + "\n\n")
    Path("data/b.jsonl").write_text("\n".join(lines[100:]))
    assert run(model).rows == 150
    assert np.array_equal(read("y"), 2 * X[:150])
    assert read("row")[[1, 100]].tolist() == ["a.jsonl line 3", "b.jsonl line 1"]


def test_a_table(write) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    model = write(TWICE)
    table = arrow.table(
        {"x": X[:200].tolist()}, arrow.schema([("x", arrow.list_(arrow.float32()))])
    )
    parquet.write_table(table, "data/a.parquet", row_group_size=30)
    run(model)
    assert np.array_equal(read("y"), 2 * X[:200])
    assert read("row")[-1] == "a.parquet row 199"


def test_pictures_in_sub_folders(write) -> None:
    images = pytest.importorskip("PIL.Image")
    model = write("toy (float[N,1,2,2] x) => (float[N,1,2,2] y) { y = Identity(x) }")
    Path("data/preprocess.toml").write_text('channels = "gray"\nscale = 1')
    for number, name in enumerate(("cat/a", "cat/b", "dog/a")):
        path = Path(f"data/{name}.png")
        path.parent.mkdir(exist_ok=True)
        images.fromarray(np.full((2, 2), number, np.uint8)).save(path)
    run(model)
    assert read("y")[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert read("row").tolist() == ["cat/a.png", "cat/b.png", "dog/a.png"]


def test_texts(write) -> None:
    pytest.importorskip("tokenizers")
    texts.write_reader(Path("f"), "BertForSequenceClassification", id2label={"0": "a", "1": "b"})
    Path("data/a.txt").write_text("a cat sat\na here\n")
    run(Path("f/onnx/model.onnx"))
    assert read("logits").argmax(1).tolist() == [0, 1]


def test_a_model_of_a_fixed_batch_gets_whole_batches(write) -> None:
    model = write(FIXED)
    np.savez("data/a.npz", x=X[:200])
    assert run(model).rows == 200
    assert np.array_equal(read("y"), 2 * X[:200])


def test_outputs_of_several_lengths_keep_their_shapes(write) -> None:
    model = write(ABOVE)
    rows = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]], np.float32)
    np.savez("data/a.npz", x=rows)
    run(model)
    counts = read("places.shape")[:, 0]
    assert counts.tolist() == [2, 0, 3]
    places = np.split(read("places")[:, 1], np.cumsum(counts)[:-1])
    assert [each.tolist() for each in places] == [[0, 2], [], [1, 2, 3]]


def test_a_broken_row_is_named_and_what_is_finished_stays(write, capsys) -> None:
    model = write(TWICE)
    lines = [json.dumps({"x": [row.tolist()]}) for row in X[:200]]
    Path("data/a.jsonl").write_text("\n".join(lines[:50]))
    Path("data/b.jsonl").write_text("\n".join([*lines[50:190], '{"x": [[1, 2]]}']))
    words = ["run", str(model), "--data", "data", "-o", "out"]
    assert main(words) == BAD
    first, second = capsys.readouterr().err.splitlines()[-2:]
    assert "b.jsonl line 141: input 'x' has the wrong shape" in first
    assert second.startswith("  fix: ")
    kept = {path: path.stat().st_mtime_ns for path in Path("out").glob("part-*.npz")}
    assert len(kept) == 2
    Path("data/b.jsonl").write_text("\n".join(lines[50:]))
    assert main([*words, "--json"]) == DONE
    answer = json.loads(capsys.readouterr().out)
    assert (answer["rows"], answer["resumed"], answer["parts"]) == (200, 2, 4)
    assert answer["computed_rows"] == 200 - 2 * 64
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert np.array_equal(read("y"), 2 * X[:200])


def test_a_row_that_the_runtime_refuses_is_named(write) -> None:
    model = write(PICKED)
    np.savez("data/a.npz", i=np.array([[0], [1], [2]] * 30 + [[3]]))
    refused("a.npz row 90: ", model)
    assert read("y")[:, 0, 0].tolist() == ([0.0, 2.0, 4.0] * 30)[:64]


def test_a_run_that_was_killed_goes_on(write) -> None:
    model = write(TWICE)
    np.savez("data/a.npz", x=X)

    def die(event: Event) -> None:
        if Path("out/part-00001.npz").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_batch(BatchJob(model, Path("data"), Path("out")), die)
    Path("out/.part-00002.npz.1.part").write_bytes(b"of a process that was killed")
    assert len(list(Path("out").glob("part-*"))) == 2
    outcome = run(model)
    assert (outcome.resumed, outcome.rows) == (2, 600)
    assert np.array_equal(read("y"), 2 * X)
    assert not list(Path("out").glob(".part*"))


def test_what_was_changed_since_is_refused_and_done_again_when_asked(write) -> None:
    model = write(TWICE)
    np.savez("data/a.npz", x=X[:128])
    np.savez("data/b.npz", x=X[128:200])
    run(model)
    np.savez("data/b.npz", x=-X[128:200])
    assert "--force" in refused("b.npz was changed since out/part-00002.npz", model)
    assert run(model, force=True).resumed == 2
    assert np.array_equal(read("y"), 2 * np.concatenate([X[:128], -X[128:200]]))
    write(TWICE.replace("2.0", "3.0"))
    refused("toy.onnx or --on was changed", model)
    assert run(model, force=True).resumed == 0
    assert np.array_equal(read("y")[:128], 3 * X[:128])
    Path("data/b.npz").unlink()
    assert run(model, force=True).parts == 2
    assert len(read("y")) == 128


def test_what_cannot_begin_leaves_nothing_behind(write, monkeypatch, capsys) -> None:
    model = write(TWICE)
    words = ["run", str(model), "--data", "data", "-o", "out"]
    for more, what in (
        ([], "no samples in data"),
        (["--executor", "cloud"], "'cloud'"),
        (["--executor", "ray"], "--executor ray needs the package ray"),
        (["data"], "both given"),
    ):
        monkeypatch.setitem(sys.modules, "ray", None)
        assert main([*words, *more]) == BAD
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 2 and what in lines[0], lines
        assert not Path("out").exists()
    assert main(["run", str(model), "--data", "data"]) == BAD
    assert "give -o FOLDER" in capsys.readouterr().err
    Path("out").mkdir()
    Path("out/mine.txt").write_text("of somebody else")
    np.savez("data/a.npz", x=X)
    refused("out holds other files: mine.txt", model)
