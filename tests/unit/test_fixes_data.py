"""Fixes about samples, batches and bundles are followed."""

from __future__ import annotations

import json
import re
import shutil
import sys
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from ortune.analysis.recheck.recheck import unpack_plan
from ortune.backends.cpu import Cpu
from ortune.backends.reference import Reference
from ortune.bundle.batch import BatchJob, join_outputs, run_batch
from ortune.bundle.engine.instances import Serving
from ortune.bundle.engine.load import load_engine
from ortune.bundle.engine.manifest import Signature
from ortune.bundle.members import write_serving
from ortune.bundle.pack import pack, package
from ortune.core import hub
from ortune.core.facts import TensorSpec
from ortune.data import feeds
from ortune.data.batches import Unit, stack_rows
from ortune.data.labels import read_label_file
from ortune.data.sentences import load_tokenizer
from ortune.data.sources import list_source_files
from ortune.data.synthetic import generate_feeds
from ortune.graph.io import file
from tests.unit import packaged, studies, texts
from tests.unit.following import (
    Act,
    Room,
    Situation,
    add_situation,
    end_at,
    follow_situation,
    refuse,
)
from tests.unit.quantizing import model_of, normal

PLAIN = "g (float[b, 32] x) => (float[b, 32] y) { y = Relu(x) }"
LISTED = "g (float[b, 32] x) => (seq(float[b, 32]) y) { y = SequenceConstruct(x) }"
SOUND = TensorSpec("audio", "float32", ("batch", "samples"))
BYTES = TensorSpec("audio", "int16", ("batch", "samples"))
X = TensorSpec("x", "float32", (None, 32))
CODE = "raise ImportError('not there')\n"

SITUATIONS: dict[str, tuple[str, Situation]] = {}


def follow(said: str) -> Any:
    return add_situation(SITUATIONS, said)


def save(room: Room, text: str = PLAIN, name: str = "m.onnx") -> Path:
    return Path(file.save(model_of(text), room.folder / name))


def save_samples(room: Room, rows: int = 4, name: str = "d.npz") -> Path:
    (room.folder / name).parent.mkdir(exist_ok=True)
    np.savez(room.folder / name, x=normal(4, 32)[:rows])
    return room.folder / name


def save_sound(room: Room, rate: int = 16_000) -> None:
    (room.folder / "d").mkdir(exist_ok=True)
    with wave.open(str(room.folder / "d" / "a.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(bytes(2000))


def load(room: Room, source: Any, *inputs: TensorSpec) -> object:
    return feeds.load_feeds(source, inputs or (X,), room.folder / "loaded")


def make_up(spec: TensorSpec, folder: Path, low: float = 0, high: float = 1) -> object:
    return generate_feeds([spec], folder, shapes={}, ranges={spec.name: (low, high)})


@contextmanager
def lack(room: Room, module: str) -> Iterator[None]:
    """Let an import fail, as it does where a package is not installed."""
    with room.patch.context() as patch:
        patch.setitem(sys.modules, module, None)
        yield


# --- data ---------------------------------------------------------------------------------------


@follow("pad the samples to one shape")
def rows_of_two_shapes(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(*widths: int) -> None:
        units = [Unit("here", {"x": np.ones((1, width))}, row=True) for width in widths]
        list(stack_rows(units, 2, lambda _: None))

    yield lambda: act(2, 3), lambda: act(3, 3)


@follow("one group a row, or one for the file")
def a_group_of_two_numbers(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(*groups: int) -> None:
        np.savez(room.folder / "d.npz", x=normal(2, 32), group=np.array(groups))
        load(room, room.folder / "d.npz", TensorSpec("x", "float32", (2, 32)))

    yield lambda: act(1, 2, 3), lambda: act(1)


@follow("one label a sample")
def labels_that_are_a_number(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(values: Any) -> None:
        np.save(room.folder / "l.npy", values)
        read_label_file(room.folder / "l.npy")

    yield lambda: act(np.array(3)), lambda: act(np.array([3]))


@follow("give a folder or a file of samples")
def samples_that_are_not_there(room: Room) -> Iterator[tuple[Act, Act]]:
    data = save_samples(room)
    yield (
        lambda: list_source_files(room.folder / "none", [X], print),
        lambda: list_source_files(data, [X], print),
    )


@follow("one form for all inputs")
def a_file_beside_a_folder(room: Room) -> Iterator[tuple[Act, Act]]:
    z = replace(X, name="z")

    def act() -> None:
        load(room, room.folder / "d", X, z)

    def follow_it() -> None:
        (room.folder / "d" / "x.npy").unlink()
        (room.folder / "d" / "x").mkdir()
        np.save(room.folder / "d" / "x" / "0.npy", normal(1, 32))
        act()

    (room.folder / "d" / "z").mkdir(parents=True)
    np.save(room.folder / "d" / "x.npy", normal(1, 32))
    np.save(room.folder / "d" / "z" / "0.npy", normal(1, 32))
    yield act, follow_it


@follow("with 64 at most")
def a_shape_of_many_dimensions(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(rank: int) -> None:
        make_up(TensorSpec("x", "float32", (1,) * rank), room.folder)

    yield lambda: act(70), lambda: act(32)


@follow("a narrower one")
def a_range_beyond_all_numbers(room: Room) -> Iterator[tuple[Act, Act]]:
    yield (
        lambda: make_up(replace(X, dtype="float64", shape=(2,)), room.folder, -1.7e308, 1.7e308),
        lambda: make_up(replace(X, dtype="float64", shape=(2,)), room.folder, -1e300, 1e300),
    )


@follow("convert it to 16000 Hz")
def sound_for_whole_numbers(room: Room) -> Iterator[tuple[Act, Act]]:
    room.write("d/sound.toml", "rate = 16000\nresample = true\nlength = 400\n")

    def act(rate: int) -> None:
        save_sound(room, rate)
        load(room, room.folder / "d", BYTES)

    yield lambda: act(8000), lambda: act(16_000)


@follow("name another in sound.toml")
def a_rate_for_an_input_of_texts(room: Room) -> Iterator[tuple[Act, Act]]:
    save_sound(room)
    word, number = TensorSpec("word", "string", (1,)), TensorSpec("number", "int64", (1,))

    def act(name: str) -> None:
        room.write("d/sound.toml", f'rate_input = "{name}"\n')
        others = {"word": word, "number": number}
        load(room, room.folder / "d", SOUND, others[name])

    yield lambda: act("word"), lambda: act("number")


@follow("download the folder again")
def a_tokenizer_that_is_not_one(room: Room) -> Iterator[tuple[Act, Act]]:
    pytest.importorskip("tokenizers")
    whole = texts.make_folder(room.folder / "f")
    room.write("g/tokenizer.json", "{}")
    broken = hub.HubFolder(room.folder / "g", room.folder / "g")
    yield lambda: load_tokenizer(broken), lambda: load_tokenizer(whole)


@follow("^pip install tokenizers$")
def no_tokenizers(room: Room) -> Iterator[tuple[Act, Act]]:
    pytest.importorskip("tokenizers")
    folder = texts.make_folder(room.folder / "f")

    def act() -> None:
        with lack(room, "tokenizers"):
            load_tokenizer(folder)

    yield act, lambda: load_tokenizer(folder)


@follow("^write hf:/.+:train$|^leave ':val' out$|save_to_disk")
def a_split_that_is_not_there(room: Room) -> Iterator[tuple[Act, Act]]:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": normal(2, 32).tolist()})
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(room.folder / "d")
    rows.save_to_disk(room.folder / "one")
    room.write("none/state.json", "{}")

    def act(source: str) -> None:
        load(room, source)

    def follow_all() -> None:
        written = refuse(lambda: act(f"hf:{room.folder}/d")).fix.removeprefix("write ")
        act(written)
        left = refuse(lambda: act(f"hf:{room.folder}/one:val")).fix
        assert left == "leave ':val' out"
        act(f"hf:{room.folder}/one")
        saved = refuse(lambda: act(f"hf:{room.folder}/none")).fix
        assert "dataset.save_to_disk(FOLDER) and give hf:FOLDER" in saved

    yield lambda: act(f"hf:{room.folder}/d:val"), follow_all


# --- bundles and batches ------------------------------------------------------------------------


def run_job(room: Room, model: Path, data: Path, name: str = "out") -> object:
    return run_batch(BatchJob(model=model, data=data, out=room.folder / name))


@follow("at least one sample")
def a_job_without_samples(room: Room) -> Iterator[tuple[Act, Act]]:
    model = save(room)

    def act(rows: int) -> None:
        run_job(room, model, save_samples(room, rows, f"d{rows}/a.npz").parent)

    yield lambda: act(0), lambda: act(1)


@follow("another -o")
def a_job_that_cannot_be_read(room: Room) -> Iterator[tuple[Act, Act]]:
    model, data = save(room), save_samples(room)
    room.write("held/job.json", "{")
    yield lambda: run_job(room, model, data, "held"), lambda: run_job(room, model, data)


@follow("outputs of one form")
def outputs_of_other_ranks(room: Room) -> Iterator[tuple[Act, Act]]:
    signature = Signature((X,), (TensorSpec("y", "float32", None),))

    def act(*ranks: int) -> None:
        join_outputs([{"y": np.ones((1,) * rank)} for rank in ranks], signature)

    yield lambda: act(1, 2), lambda: act(2, 2)


@follow("arrays in its place")
def outputs_that_are_sequences(room: Room) -> Iterator[tuple[Act, Act]]:
    one, other, data = save(room, LISTED), save(room, PLAIN, "n.onnx"), save_samples(room)
    yield lambda: run_job(room, one, data), lambda: run_job(room, other, data)


@follow("custom_ops='lib.so'")
def consent_to_a_plain_model(room: Room) -> Iterator[tuple[Act, Act]]:
    model = save(room)
    yield (
        lambda: load_engine(model, custom_ops=True),
        end_at("lib.so", lambda: load_engine(model, custom_ops="lib.so")),
    )


@follow("on='cpu'")
def operators_for_a_backend_that_takes_none(room: Room) -> Iterator[tuple[Act, Act]]:
    model = save(room)

    def act(on: str) -> None:
        load_engine(model, on=on, custom_ops="./lib.so")

    yield lambda: act("reference"), end_at("lib.so", lambda: act("cpu"))


@follow("^pip install it$")
def a_backend_that_is_not_installed(room: Room) -> Iterator[tuple[Act, Act]]:
    model = save(room)
    room.patch.setattr(Reference, "missing", lambda _: "pip install it")

    def follow_it() -> None:
        room.patch.undo()
        load_engine(model, on="reference").close()

    yield lambda: load_engine(model, on="reference"), follow_it


@follow("docs/bundles.md")
def a_target_that_was_removed(room: Room) -> Iterator[tuple[Act, Act]]:
    bundle = packaged.bundle(room.folder / "b")
    page = Path(__file__).parents[2] / "docs" / "bundles.md"

    def read() -> None:
        assert "Dockerfile" in page.read_text() or "docker" in page.read_text()

    yield lambda: package([bundle], room.folder / "out", "oci"), read


def pack_with(room: Room, *names: str) -> None:
    """Pack a run whose backend has libraries of these names."""
    libraries = tuple(str(room.write(name, CODE)) for name in names)
    place = room.folder / names[-1].replace("/", "-").replace(":", "-")
    pack(studies.study(place, backend=Cpu(custom_ops=libraries)), place / "b.ortune")


@follow("build it again where it was, or run optimize again")
def a_library_that_is_gone(room: Room) -> Iterator[tuple[Act, Act]]:
    library = room.write("ops.py", CODE)
    study = studies.study(room.folder / "s", backend=Cpu(custom_ops=(str(library),)))
    library.unlink()

    def follow_it() -> None:
        room.write("ops.py", CODE)
        pack(study, room.folder / "b.ortune")

    yield lambda: pack(study, room.folder / "b.ortune"), follow_it


@follow("rename one of them")
def two_libraries_of_one_name(room: Room) -> Iterator[tuple[Act, Act]]:
    yield (
        lambda: pack_with(room, "a/ops.py", "b/ops.py"),
        lambda: pack_with(room, "a/ops.py", "b/more.py"),
    )


def change_member(bundle: Path, name: str, change: Any) -> Path:
    """Write a bundle again with another content of a member, whose digest is right."""
    path = shutil.copyfile(bundle, bundle.with_name(f"changed-{bundle.name}"))
    return packaged.forge(path, {name: change(packaged.members_of(path)[name])})


def leave_out(*keys: str) -> Any:
    """Return what empties a part of a JSON document."""

    def change(content: bytes) -> bytes:
        data = whole = json.loads(content)
        for key in keys[:-1]:
            data = data[int(key) if isinstance(data, list) else key]
        data[keys[-1]] = type(data[keys[-1]])()
        return json.dumps(whole).encode()

    return change


def break_off(content: bytes) -> bytes:
    return content[:1]


def misspell(content: bytes) -> bytes:
    return json.dumps(json.loads(content) | {"thread": 1}).encode()


def pack_for(target: str) -> Any:
    def act(bundle: Path) -> None:
        package([bundle], bundle.with_suffix(""), target)

    return act


def unpack(bundle: Path) -> None:
    with TemporaryDirectory(dir=bundle.parent) as folder:
        unpack_plan(bundle, Path(folder), key="", custom_ops=False)


def serve_two(bundle: Path) -> None:
    draft = bundle.with_suffix(".draft")
    write_serving(bundle, draft, Serving(instances=2))
    draft.unlink()


AGAIN = "pack the run again"
CHANGED = {
    "settings": (pack_for("onnx"), "settings.json", break_off, AGAIN),
    "a setting": (pack_for("onnx"), "settings.json", misspell, "write threads"),
    "golden samples": (unpack, "golden/inputs.stream", break_off, AGAIN),
    "evidence": (unpack, "evidence.json", leave_out("trials"), AGAIN),
    "a card": (pack_for("huggingface"), "evidence.json", leave_out("trials"), AGAIN),
    "a bill": (serve_two, "sbom.cdx.json", break_off, "do not trust|pack"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_bundle_that_is_packed_again_is_whole(name: str, tmp_path: Path) -> None:
    act, member, change, said = CHANGED[name]
    bundle = packaged.bundle(tmp_path / "b")
    error = refuse(lambda: act(change_member(bundle, member, change)))
    assert re.search(said, error.fix), error.fix
    act(bundle)


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_a_fix_says_helps(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    follow_situation(SITUATIONS[name], Room(tmp_path, monkeypatch))
