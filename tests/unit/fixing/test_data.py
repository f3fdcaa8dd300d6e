"""Fixes about samples, labels, sequences and what is made up are followed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortune as ot
from ortune.core import regular_file
from ortune.core.facts import TensorSpec
from ortune.data import feeds, padding
from ortune.data.derive import derive_budget
from ortune.data.sequences.rolling import Rolling, roll_sequence
from ortune.data.sequences.steps import group_into_sequences
from ortune.data.synthetic import generate_feeds, load_or_generate_feeds
from ortune.measurement.allowance import limit_process
from ortune.measurement.worker.workbench import stack_samples
from ortune.metrics.top1 import Top1
from ortune.search import optimize
from ortune.search.request import Optimize
from tests.unit.data.sequences.test_rolling import CELL, X, added, steps
from tests.unit.fixing.kit import (
    SITUATIONS,
    Pair,
    check_situation,
    demand,
    follow,
    prepare,
    save,
    save_text,
)
from tests.unit.following import Room, end_at
from tests.unit.quantizing import normal

IMAGE = TensorSpec("x", "float32", ("N", 3, 2, 2))
MASKED = (TensorSpec("ids", "int64", ("b", "s")), TensorSpec("mask", "int64", (1, 4)))
CELL_MODEL = """g (float[b, n] x, float[b, 8] h) => (float[b, 8] y, float[b, 8] hn) {
    m = MatMul(x, w) hn = Add(m, h) y = Relu(hn) }"""
WIDTH = "g (float[b, n] x) => (float[b, 4] y) { y = MatMul(x, w) }"


def save_pictures(room: Room) -> Path:
    image = pytest.importorskip("PIL.Image")
    folder = room.folder / "data"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        image.new("RGB", (2, 2)).save(folder / name / "1.png")
    return folder


def load_labels(room: Room, folder: Path, table: str) -> None:
    path = save_text(room.folder / "labels.csv", table)
    feeds.load_feeds(folder, [IMAGE], room.folder / "out", labels=path)


@follow("data/labels:NamedLabels.take", "below --data")
def two_rows_that_may_be_one_file(room: Room) -> Iterator[Pair]:
    folder = save_pictures(room)
    (folder / "b" / "1.png").unlink()
    table = "file,label\n{}1.png,1\nc/1.png,2\n"
    yield (
        lambda: load_labels(room, folder / "a", table.format("d/")),
        lambda: load_labels(room, folder, "file,label\na/1.png,1\n"),
    )


@follow("data/labels:NamedLabels.take#2", "below --data")
def one_row_that_may_be_two_files(room: Room) -> Iterator[Pair]:
    folder = save_pictures(room)
    yield (
        lambda: load_labels(room, folder, "file,label\n1.png,1\n"),
        lambda: load_labels(room, folder, "file,label\nb/1.png,1\na/1.png,2\n"),
    )


@follow("data/derive:derive_budget", "--budget")
def no_outputs_to_derive_a_budget_from(room: Room) -> Iterator[Pair]:
    with prepare(room.folder, "M D") as places:
        yield (
            lambda: derive_budget({}),
            lambda: demand("verify M M --data D --budget cosine>=0.9", places),
        )


@follow("data/padding:find_padding", "ortune apply MODEL")
def a_length_that_is_fixed(room: Room) -> Iterator[Pair]:
    text = """g (int64[b, s] ids, int64[1, 4] mask) => (int64[b, s] y) {
        n = ReduceSum<keepdims = 0>(mask) y = Mul(ids, n) }"""
    places = {"MODEL": str(save(room.folder / "m.onnx", text)), "FREE.onnx": "free.onnx"}
    sample = {"ids": np.full((1, 4), 7), "mask": np.array([[1, 1, 0, 0]])}

    def free(fix: str) -> None:
        command = re.search(r"ortune (apply .+)", fix)
        assert command is not None
        demand(command[1], places)
        inputs = ot.inspect("free.onnx").facts.inputs
        padding.find_padding(inputs, [sample], mask="mask")

    yield lambda: padding.find_padding(MASKED, [sample]), free


@follow("data/sequences/rolling:_SequenceState._read_states", "--state OUT:IN")
def a_state_that_does_not_fit(room: Room) -> Iterator[Pair]:
    wrong = {"hn": np.zeros((1, 3), np.float32)}
    yield (
        lambda: list(roll_sequence(CELL, steps(1, 2), lambda _: wrong, "here")),
        lambda: list(roll_sequence(CELL, steps(1, 2), added, "here")),
    )


@follow("data/sequences/rolling:_make_size_error", "--shape h:")
def a_state_of_a_size_that_nobody_knows(room: Room) -> Iterator[Pair]:
    wide = (X, TensorSpec("h", "float32", ("layers", "width", "depth")))

    def give(fix: str) -> None:
        shape = re.search(r"--shape h:([\dx]+)", fix)
        assert shape is not None
        sizes = {"h": tuple(map(int, shape[1].split("x")))}
        assert next(iter(roll_sequence(Rolling(wide, CELL.pairs, sizes), steps(1), added, "")))

    yield lambda: list(roll_sequence(Rolling(wide, CELL.pairs), steps(1), added, "")), give


@follow("measurement/worker/observers:roll.run", "--state OUT:IN")
def a_step_that_does_not_run(room: Room) -> Iterator[Pair]:
    save(room.folder / "m.onnx", CELL_MODEL, w=normal(8, 8))
    np.savez("wrong.npz", x=np.ones((4, 5), np.float32))
    np.savez("right.npz", x=np.ones((4, 8), np.float32))
    text = "calibrate m.onnx --sequence 2 --state hn:h --shape h:1x8 -o ranges.json --data"
    yield (
        lambda: demand(f"{text} wrong.npz", {}),
        end_at("needs no range", lambda: demand(f"{text} right.npz", {})),
    )


@follow("data/synthetic:_choose_shape", "--shape x:")
def a_shape_that_nobody_knows(room: Room) -> Iterator[Pair]:
    spec = TensorSpec("x", "float32", None)

    def make_up(**shapes: tuple[int, ...]) -> None:
        generate_feeds([spec], room.folder / "made", shapes=shapes, ranges={})

    def give(fix: str) -> None:
        shape = re.search(r"--shape x:([\dx]+)", fix)
        assert shape is not None
        make_up(x=tuple(map(int, shape[1].split("x"))))

    yield make_up, give


@follow("analysis/conversion/steps:_try_samples", "--shape", "--range")
def made_up_samples_that_do_not_run(room: Room) -> Iterator[Pair]:
    save(room.folder / "m.onnx", WIDTH, w=normal(8, 4))
    text = "convert m.onnx new.onnx --precision fp16"
    yield lambda: demand(f"{text} --shape x:1x5", {}), lambda: demand(f"{text} --shape x:1x8", {})


@follow("measurement/worker/__main__:_answer_command", "--shape", "--range")
def made_up_sizes_that_do_not_run(room: Room) -> Iterator[Pair]:
    save(room.folder / "m.onnx", WIDTH, w=normal(8, 4))
    text = "verify m.onnx m.onnx"
    yield lambda: demand(text, {}), lambda: demand(f"{text} --shape x:1x8", {})


@follow("core/regular_file:require_unpacked", "--unpack-limit")
def an_archive_that_unpacks_to_much(room: Room) -> Iterator[Pair]:
    def unpack(limit: int) -> None:
        with regular_file.limit_unpacking(limit << 30):
            regular_file.require_unpacked(5 << 30, 100, room.folder / "a.npz")

    def raise_limit(fix: str) -> None:
        limit = re.search(r"--unpack-limit (\d+)G", fix)
        assert limit is not None
        unpack(int(limit[1]))

    yield lambda: unpack(1), raise_limit


@follow("measurement/allowance:limit_process", "--memory-limit")
def a_block_that_takes_too_much_memory(room: Room) -> Iterator[Pair]:
    def take(limit: int) -> None:
        with limit_process(limit << 20, pytest.fail):
            kept = [np.ones(1 << 17) for _ in range(400)]
            while limit < 1000:
                kept.append(np.ones(1 << 17))

    yield lambda: take(100), lambda: take(4000)


@follow("search/optimize:_split_folder", "--data SOURCE")
def an_encoder_and_a_decoder_without_samples(room: Room) -> Iterator[Pair]:
    folder = room.folder / "t5"
    folder.mkdir()
    save_text(folder / "config.json", '{"model_type": "t5", "is_encoder_decoder": true}')
    request = Optimize(folder, out=room.folder / "run")
    data = save_text(room.folder / "texts.txt", "a cat\n")
    yield (
        lambda: optimize.run(request),
        end_at("t5", lambda: optimize.run(replace(request, data=data))),
    )


@follow("graph/io/file:parse_outline", "ortune export")
def a_folder_without_a_model(room: Room) -> Iterator[Pair]:
    folder = room.folder / "m"
    folder.mkdir()
    save_text(folder / "config.json", '{"model_type": "bert"}')

    def export(fix: str) -> None:
        said, given = fix.removeprefix("ortune ").split(" -o ")
        assert said == f"export {folder}"
        end_at("weights|safetensors|architectures", lambda: demand(said + " -o O", {"O": given}))()
        Path(given).parent.mkdir()
        save(Path(given), WIDTH, w=normal(8, 4))
        ot.inspect(folder)

    yield lambda: ot.inspect(folder), export


@follow("core/hub:resolve_folder", "hf download")
def a_name_on_the_hub(room: Room) -> Iterator[Pair]:
    """What the command would fetch is put where it says."""

    def download(fix: str) -> None:
        given = re.search(r"hf download owner/some-model --local-dir (\S+), and give", fix)
        assert given is not None
        folder = room.folder / given[1]
        (folder / "onnx").mkdir(parents=True)
        save(folder / "onnx" / "model.onnx", WIDTH, w=normal(8, 4))
        save_text(folder / "config.json", "{}")
        ot.inspect(folder)

    yield lambda: ot.inspect("owner/some-model"), download


@follow("core/metric:Metric.records", "--labels FILE")
def a_metric_without_labels(room: Room) -> Iterator[Pair]:
    answers = [{"y": np.ones((1, 4), np.float32)}]
    yield (
        lambda: Top1().records(answers, answers, None),
        lambda: Top1().records(answers, answers, [0]),
    )


@follow("measurement/worker/workbench:stack_samples", "--batch")
def samples_that_cannot_be_stacked(room: Room) -> Iterator[Pair]:
    def make(size: int) -> dict[str, Any]:
        return {"x": np.ones((1, size), np.float32)}

    yield lambda: stack_samples([make(3), make(4)]), lambda: stack_samples([make(4), make(4)])


@follow("data/sequences/steps:group_into_sequences#2", "--sequence")
def sequences_of_one_step(room: Room) -> Iterator[Pair]:
    yield (
        lambda: group_into_sequences("group", 2, ["a", "b"], [2]),
        lambda: group_into_sequences("group", 2, ["a", "a"], [2]),
    )


@follow("data/synthetic:load_or_generate_feeds", "--data")
def labels_of_made_up_samples(room: Room) -> Iterator[Pair]:
    data, out = room.folder / "d.npz", room.folder / "out"
    np.savez(data, x=np.ones((2, 2), np.float32))
    yield (
        lambda: load_or_generate_feeds(None, [X], out, labels=[0, 1]),
        lambda: load_or_generate_feeds(data, [X], out, labels=[0, 1]),
    )


@follow("search/padding:prove", "free-dims")
def padding_that_the_model_needs(room: Room) -> Iterator[Pair]:
    """Its lengths are dynamic, but a constant within holds the one that it was exported with."""
    text = """g (int64[b, s] ids, int64[b, s] mask) => (int64[b, 4] y) {
        m = Mul(ids, mask) shape = Constant<value_ints = [-1, 4]>() y = Reshape(m, shape) }"""
    path = save(room.folder / "m.onnx", text)
    np.savez("d.npz", ids=np.full((8, 4), 7), mask=np.array([[1, 1, 1, 0]] * 8))
    yield (
        lambda: demand("optimize M --buckets --data d.npz", {"M": str(path)}),
        lambda: demand("verify M M --data d.npz", {"M": str(path)}),
    )


@pytest.mark.parametrize("name", SITUATIONS[__name__])
def test_what_a_fix_says_helps(name: str, room: Room) -> None:
    check_situation(SITUATIONS[__name__][name], room)
