"""Fixes about what is installed, disks, workers and what users' functions give are followed."""

from __future__ import annotations

import importlib.util
import io
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ortune as ot
from ortune.backends import openvino
from ortune.backends.cpu import Cpu
from ortune.backends.runtimes import own_process
from ortune.backends.runtimes.onnxruntime import checks, plug_in
from ortune.backends.runtimes.tensorrt import library
from ortune.bundle.engine.call import InputCheck, PictureInput
from ortune.cli.terminal.output import outlive_reader
from ortune.core.errors import OrtuneError
from ortune.core.facts import TensorSpec
from ortune.core.preprocess import Preprocess
from ortune.core.reading import read_step, read_workload
from ortune.data import feeds
from ortune.data.zoo.digit_cnn import DigitCnn
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.measurement import environment
from ortune.measurement.rolled import StatefulModel
from ortune.search import optimize
from ortune.serving.load_testing import clients
from ortune.serving.load_testing.requests import LoadTest
from ortune.targets import huggingface
from ortune.targets.common import plain_session
from tests.unit import packaged, studies
from tests.unit.following import (
    Act,
    Room,
    Situation,
    add_situation,
    demand,
    end_at,
    follow_situation,
    refuse,
)
from tests.unit.quantizing import model_of
from tests.unit.test_fixes_data import PLAIN, lack, save

STEPPED = """g (float[1, 4] x, float[1, 4] h) => (float[1, 4] y, float[1, 4] h_out) {
    h_out = Add(x, h) y = Relu(h_out) }"""
PICTURE = TensorSpec("image", "float32", ("n", 3, "h", "w"))

SITUATIONS: dict[str, tuple[str, Situation]] = {}


def follow(said: str) -> Any:
    return add_situation(SITUATIONS, said)


def begin(*_: object, **__: object) -> None:
    raise OrtuneError("the search begins", fix="wait")


@contextmanager
def find_only(room: Room, **there: bool) -> Iterator[None]:
    """Let packages be found, or not, whether they are installed or not."""
    real = importlib.util.find_spec

    def find(name: str, *more: Any) -> object:
        return (there[name] or None) if name in there else real(name, *more)

    with room.patch.context() as patch:
        patch.setattr(importlib.util, "find_spec", find)
        yield


# --- what is installed --------------------------------------------------------------------------


@follow("^pip install mlcommons-loadgen$")
def no_loadgen(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(*, there: bool) -> None:
        with find_only(room, mlperf_loadgen=there):
            read_workload("loadgen")

    yield lambda: act(there=False), lambda: act(there=True)


@follow("^pip install it$")
def a_demo_that_is_not_installed(room: Room) -> Iterator[tuple[Act, Act]]:
    words = ("demo", "--model", DigitCnn.name(), "-o", room.folder / "demo")

    def lacking() -> None:
        with room.patch.context() as patch:
            patch.setattr(DigitCnn, "missing", lambda _: "pip install it")
            demand(*words)

    room.patch.setattr(optimize, "run", begin)
    yield lacking, end_at("the search begins", lambda: demand(*words))


@follow("^pip install torch==[0-9.]+$")
def no_torch(room: Room) -> Iterator[tuple[Act, Act]]:
    """With something of that name it goes on to the module, which is not there."""

    def act(*, there: bool) -> None:
        with find_only(room, torch=there):
            ot.export("not_there:Module", out=room.folder / "m.onnx")

    yield (
        lambda: act(there=False),
        end_at("^(?!PyTorch is not installed)", lambda: act(there=True)),
    )


@follow("^pip install pillow$")
def no_pillow(room: Room) -> Iterator[tuple[Act, Act]]:
    arrow = pytest.importorskip("pyarrow")
    from PIL import Image
    from pyarrow import parquet

    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "png")
    picture = {"bytes": data.getvalue(), "path": None}
    parquet.write_table(arrow.table({"image": [picture]}), room.folder / "a.parquet")

    def act() -> None:
        feeds.load_feeds(room.folder / "a.parquet", [PICTURE], room.folder / "loaded")

    def lacking() -> None:
        with lack(room, "PIL"):
            act()

    yield lacking, act


@follow("^pip install ")
def no_client_of_a_server(room: Room) -> Iterator[tuple[Act, Act]]:
    def act() -> None:
        with clients.open_clients(LoadTest("http://127.0.0.1:1")):
            pass

    def lacking() -> None:
        with room.patch.context() as patch:
            patch.setattr(clients, "find_spec", lambda _: None)
            act()

    yield lacking, end_at("^(?!a load test over)", act)


@follow("tensorrt")
def an_old_tensorrt(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(version: str) -> None:
        made = ModuleType("tensorrt")
        made.__dict__["__version__"] = version
        with find_only(room, tensorrt=True), room.patch.context() as patch:
            patch.setitem(sys.modules, "tensorrt", made)
            library.import_tensorrt()

    yield lambda: act("8.6.1"), lambda: act("10.3.0")


@follow("check its name, or leave it out")
def an_option_that_a_provider_lacks(room: Room) -> Iterator[tuple[Act, Act]]:
    words = room.write("libonnxruntime_providers_cuda.so", b"\0device_id\0gpu_mem_limit\0")
    room.patch.setattr(checks, "list_libraries", lambda: [words])

    def act(*names: str) -> None:
        plug_in.demand_provider_options("CUDAExecutionProvider", names)

    def follow_both() -> None:
        act("device_id")
        act()

    yield lambda: act("device"), follow_both


@follow("repair the library")
def a_library_that_loads_for_ever(room: Room) -> Iterator[tuple[Act, Act]]:
    slow = room.write("slow.py", "import time\ntime.sleep(60)\n")
    quick = room.write("quick.py", "raise ImportError('repaired')\n")
    room.patch.setattr(own_process, "LIMIT_S", 4)
    yield (
        lambda: checks.demand_loadable((str(slow),)),
        end_at("repaired", lambda: checks.demand_loadable((str(quick),))),
    )


# --- disks and streams --------------------------------------------------------------------------


@follow("send it elsewhere, or free some space")
def an_answer_to_a_full_disk(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(path: Path) -> None:
        with path.open("w") as stream, room.patch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            with outlive_reader(stream):
                stream.write("an answer")
                stream.flush()

    yield lambda: act(Path("/dev/full")), lambda: act(room.folder / "answer")


@follow("free space in the temporary folder, or set TMPDIR")
def links_that_cannot_be_followed(room: Room) -> Iterator[tuple[Act, Act]]:
    """A file system that has no links, and is full."""
    real = save(room)
    (room.folder / "linked").mkdir()
    link = room.folder / "linked" / "m.onnx"
    link.symlink_to(real)

    def act() -> None:
        with openvino.replace_links(link) as path:
            file.load(path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def full() -> None:
        with room.patch.context() as patch:
            patch.setattr("os.link", fail)
            patch.setattr(shutil, "copyfile", fail)
            act()

    yield full, act


@follow("a folder that may be written and take links")
def an_environment_without_a_place_for_our_source(room: Room) -> Iterator[tuple[Act, Act]]:
    home = environment.environment_folder("a")
    home.mkdir(parents=True)
    (home / "source").write_text("")

    def act() -> None:
        environment.worker_variables("a")

    def follow_it() -> None:
        told = re.search("'(.+)'", refuse(act).fix)
        assert told is not None
        (home / "source").unlink()
        Path(told[1]).mkdir(parents=True)
        act()

    yield act, follow_it


@follow("pack another trial")
def a_program_that_does_not_end(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(code: str) -> None:
        plain_session.run_command([sys.executable, "-c", code], room.folder, limit_s=2)

    yield lambda: act("import time; time.sleep(60)"), lambda: act("pass")


# --- bundles and runs ---------------------------------------------------------------------------


@follow("pack the run again")
def evidence_that_is_broken_off(room: Room) -> Iterator[tuple[Act, Act]]:
    with packaged.source(room.folder) as source:
        path = source.folder / huggingface.EVIDENCE
        whole = path.read_bytes()

        def act(content: bytes) -> None:
            path.write_bytes(content)
            huggingface.read_evidence(source)

        yield lambda: act(b"{"), lambda: act(whole)


@follow("write trials")
def evidence_of_another_form(room: Room) -> Iterator[tuple[Act, Act]]:
    with packaged.source(room.folder) as source:
        path = source.folder / huggingface.EVIDENCE
        whole = path.read_bytes()

        def act(content: bytes) -> None:
            path.write_bytes(content)
            huggingface.read_evidence(source)

        yield lambda: act(whole.replace(b'"trials"', b'"trial"')), lambda: act(whole)


@follow("pack it again")
def a_bundle_without_golden_samples(room: Room) -> Iterator[tuple[Act, Act]]:
    with packaged.source(room.folder) as source:
        yield replace(source, plan=replace(source.plan, golden={})).streams, source.streams


@follow("give them one by one")
def pictures_of_two_sizes(room: Room) -> Iterator[tuple[Act, Act]]:
    taken = PictureInput(
        Preprocess(dtype="float32"), InputCheck(PICTURE, np.dtype(np.float32), 4, ((1, 3),))
    )
    small, large = (np.zeros((side, side, 3), np.uint8) for side in (4, 6))

    def act(*pictures: Any) -> None:
        taken.replace_pictures({"image": [*pictures]})

    yield lambda: act(small, large), lambda: (act(small), act(large))


@follow("give -o PAGE.html")
def a_page_of_two_runs(room: Room) -> Iterator[tuple[Act, Act]]:
    run = studies.write_run(studies.study(room.folder / "s"))
    yield (
        lambda: demand("report", run, run),
        lambda: demand("report", run, run, "-o", room.folder / "page.html"),
    )


@follow("put them back where they were")
def a_run_whose_models_are_gone(room: Room) -> Iterator[tuple[Act, Act]]:
    run = studies.write_run(studies.study(room.folder / "s"))
    places = [room.folder / "s" / "source", run / "artefacts"]

    def gone() -> None:
        for place in places:
            place.rename(place.with_suffix(".gone"))
        ot.explain(run, node="zzz")

    def follow_it() -> None:
        for place in places:
            place.with_suffix(".gone").rename(place)
        end_at("no node 'zzz' in the run's models", lambda: ot.explain(run, node="zzz"))()

    yield gone, follow_it


@follow("give it of a state: h$")
def a_shape_of_what_is_no_state(room: Room) -> Iterator[tuple[Act, Act]]:
    facts = read_facts(model_of(STEPPED))

    def act(**shapes: tuple[int, ...]) -> None:
        model = StatefulModel(
            Path("m.onnx"), "", facts, "2", ["h_out:h"], Cpu(), shapes, room.folder
        )
        assert model.rolling

    yield lambda: act(x=(1, 4)), lambda: (act(h=(1, 4)), act())


# --- functions of a user ------------------------------------------------------------------------

JUDGES = """
import numpy as np
X = np.ones((1, 32), np.float32)
def none(run):
    run(x=X)
    return []
def idle(run):
    return [1.0]
def whole(run):
    run(x=X)
    return [1.0]
def partly(run):
    run(x=X)
    yield 1.0, "a"
    yield 1.0
def grouped(run):
    run(x=X)
    yield 1.0, "a"
    yield 1.0, None
"""


@follow("return one record a sample")
def a_function_without_records(room: Room) -> Iterator[tuple[Act, Act]]:
    yield from prepare_search(room, "none")


@follow("call every model that is given")
def a_function_that_runs_no_model(room: Room) -> Iterator[tuple[Act, Act]]:
    yield from prepare_search(room, "idle")


def prepare_search(room: Room, name: str) -> Iterator[tuple[Act, Act]]:
    """What comes next is not waited for."""
    path, model = room.write("judge.py", JUDGES), save(room)
    room.patch.setattr(optimize, "plan_calibration", begin)

    def act(function: str) -> None:
        ot.optimize(model, evaluate=f"{path}:{function}", on="cpu", out=room.folder / function)

    yield lambda: act(name), end_at("the search begins", lambda: act("whole"))


@follow(r"yield \(record, group\) for every sample; a group of None stands alone")
def a_function_that_groups_some(room: Room) -> Iterator[tuple[Act, Act]]:
    path, model = room.write("judge.py", JUDGES), save(room)

    def act(function: str) -> None:
        ot.verify(model, model, evaluate=f"{path}:{function}")

    yield lambda: act("partly"), lambda: act("grouped")


# --- steps --------------------------------------------------------------------------------------


def apply(text: str, step: str) -> None:
    read_step(step).apply(model_of(text))


@follow("choose another output")
def an_output_that_is_an_input(room: Room) -> Iterator[tuple[Act, Act]]:
    text = PLAIN.replace("=> (", "=> (float[b, 32] x, ")
    step = "fold-postprocess(give=argmax, output={})"
    yield lambda: apply(text, step.format("x")), lambda: apply(text, step.format("y"))


@follow("rename it first")
def an_output_of_the_name_of_a_new_one(room: Room) -> Iterator[tuple[Act, Act]]:
    text = "g (float[b, 8] x) => (float[b, 8] y, float[b, 8] {0}) {{ y = Relu(x) {0} = Abs(x) }}"
    step = "fold-postprocess(give=top-k, output=y, k=2)"
    yield (
        lambda: apply(text.format("y_indices"), step),
        lambda: apply(text.format("places"), step),
    )


@follow("take it out of the outputs first")
def pictures_that_are_an_output(room: Room) -> Iterator[tuple[Act, Act]]:
    text = "g (float[b, 3, 6, 6] x) => ({}float[b, 3, 6, 6] y) {{ y = Relu(x) }}"
    yield (
        lambda: apply(text.format("float[b, 3, 6, 6] x, "), "fold-preprocess"),
        lambda: apply(text.format(""), "fold-preprocess"),
    )


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_a_fix_says_helps(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    follow_situation(SITUATIONS[name], Room(tmp_path, monkeypatch))
