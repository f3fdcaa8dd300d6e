"""Fixes about runtimes, their providers and what plans are compiled for are followed.

A GPU's runtime stands there as `tests.recorded` and `tests.unit.backends` script it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest
from ortune_toys.backends.precompiled import Precompiled
from ortune_toys.backends.scripted import Scripted

import ortune as ot
from ortune.analysis.verification.bisect import splice
from ortune.backends.cpu import Cpu
from ortune.backends.cuda import Cuda
from ortune.backends.openvino import Openvino
from ortune.backends.reference import Reference
from ortune.backends.runtimes.onnxruntime import plug_in
from ortune.backends.runtimes.onnxruntime.engine_cache import compile_model
from ortune.backends.runtimes.tensorrt import library
from ortune.backends.runtimes.tensorrt.library import BuildOptions
from ortune.backends.tensorrt import Tensorrt
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack, package
from ortune.bundle.target import Replay
from ortune.core.backend import Backend
from ortune.core.plugins.spelling import parse_plugin
from ortune.data import synthetic
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.graph.parts.extract import extract
from ortune.measurement import peaks
from ortune.measurement.process import (
    ask_once,
    optimize_offline,
    single_model_job,
    translate_failures,
)
from ortune.measurement.self_agreement import compare_with_itself
from ortune.measurement.worker import self_agreement as worker
from ortune.transforms.raise_opset import RaiseOpset
from tests.recorded import recordings
from tests.unit import studies, wrong_models
from tests.unit.analysis.verification.test_bisect import HOST, OTHER
from tests.unit.backends.runtimes.onnxruntime import test_device_session as device_session
from tests.unit.backends.test_cuda import ScriptedPlaced, ScriptedSession, probed
from tests.unit.bundle.test_package import Notes
from tests.unit.fixing.kit import (
    MODEL,
    OWN,
    SITUATIONS,
    Pair,
    W,
    check_situation,
    demand,
    follow,
    make_bundle,
    prepare,
    save,
    save_text,
)
from tests.unit.following import Room, end_at
from tests.unit.quantizing import model_of

CHAIN: list[Any] = [(plug_in.CUDA, {})]
DISTANCE = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[2, 4] x) => (float[2, 2] y) { y = com.microsoft.CDist<metric = "euclidean">(x, x) }"""


def open_it(backend: Backend, path: Path) -> None:
    with backend.open(path):
        pass


def list_cuda(room: Room, session: Any = None) -> Path:
    """Have a package that has CUDA, whose sessions are these; return a model."""
    listed = [plug_in.CUDA, "CPUExecutionProvider"]
    room.patch.setattr(onnxruntime, "get_available_providers", lambda: listed)
    if session:
        room.patch.setattr(onnxruntime, "InferenceSession", session)
    return save(room.folder / "m.onnx", MODEL, w=W)


@follow("backends/runtimes/onnxruntime/session:open_session", "ortune doctor", "--on cpu")
def a_provider_that_the_package_lacks(room: Room) -> Iterator[Pair]:
    path = save(room.folder / "m.onnx", MODEL, w=W)
    made = device_session.ort.make_session_options(1, "basic", verbose=False)
    opened = device_session.ort.open_session(path, made, provider=plug_in.CUDA, chain=CHAIN)
    yield opened.__enter__, lambda: open_it(Cpu(), path)


@follow("backends/runtimes/onnxruntime/session:open_session#2", "ortune doctor", "--on cpu")
def a_provider_that_fails_to_start(room: Room) -> Iterator[Pair]:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Error creating execution provider: no device")

    path = list_cuda(room, fail)
    made = device_session.ort.make_session_options(1, "basic", verbose=False)
    opened = device_session.ort.open_session(path, made, provider=plug_in.CUDA, chain=CHAIN)

    def leave() -> None:
        room.patch.undo()
        open_it(Cpu(), path)

    yield opened.__enter__, leave


@follow("backends/runtimes/onnxruntime/session:open_session#4", "ortune doctor", "--on cpu")
def a_provider_in_whose_place_the_cpu_runs(room: Room) -> Iterator[Pair]:
    path = list_cuda(room, ScriptedSession)
    made = device_session.ort.make_session_options(1, "basic", verbose=False)
    opened = device_session.ort.open_session(path, made, provider=plug_in.CUDA, chain=CHAIN)

    def leave() -> None:
        room.patch.undo()
        open_it(Cpu(), path)

    yield opened.__enter__, leave


@follow("backends/runtimes/onnxruntime/session:open_session#5", "--on cpu")
def a_provider_that_takes_no_node_of_it(room: Room) -> Iterator[Pair]:
    path = list_cuda(room, ScriptedPlaced)
    room.patch.setattr(plug_in, "probe_provider", probed(plug_in.ProbedProvider("works")))

    def leave() -> None:
        room.patch.undo()
        open_it(Cpu(), path)

    yield lambda: open_it(Cuda(), path), leave


@follow("backends/runtimes/openvino/native:_translate_errors", "--on cpu")
def an_operator_that_openvino_does_not_convert(room: Room) -> Iterator[Pair]:
    pytest.importorskip("openvino")
    path = save(room.folder / "m.onnx", DISTANCE)
    yield lambda: open_it(Openvino(), path), lambda: open_it(Cpu(), path)


@follow("backends/runtimes/tensorrt/library:build_engine", "--on cpu")
def an_operator_that_tensorrt_does_not_read(room: Room) -> Iterator[Pair]:
    path = save(room.folder / "toy.onnx", MODEL, w=W)
    parts = (
        recordings.until("build", "parser.parse_from_file"),
        "parser.parse_from_file('toy.onnx') -> False",
        "parser.num_errors -> 0",
    )
    recordings.play(room.patch, room.folder, *parts)
    yield lambda: library.build_engine(path, BuildOptions()), lambda: open_it(Cpu(), path)


@follow("backends/reference:_Evaluator.__init__", "--on cpu")
def an_operator_that_the_reference_lacks(room: Room) -> Iterator[Pair]:
    path = save(room.folder / "m.onnx", DISTANCE)
    yield lambda: open_it(Reference(), path), lambda: open_it(Cpu(), path)


@follow("backends/runtimes/onnxruntime/session:open_session#3", "--custom-ops")
def an_operator_that_onnxruntime_lacks(room: Room) -> Iterator[Pair]:
    pytest.importorskip("ortune_toys")
    path = save(room.folder / "m.onnx", OWN + MODEL.replace("Relu", "own.Relu"), w=W)
    library = str(save_text(room.folder / "ops.py", ""))
    yield (
        lambda: open_it(Cpu(), path),
        end_at("ops.py", lambda: open_it(Cpu(custom_ops=(library,)), path)),
    )


@follow("backends/runtimes/onnxruntime/device_session:_no_graph", "--fixed-shapes", "cuda_graph")
def shapes_that_a_cuda_graph_does_not_take(room: Room) -> Iterator[Pair]:
    path = device_session.write(room.folder, device_session.MODEL)

    def fix() -> None:
        fixed = device_session.write(room.folder, device_session.FIXED)
        with device_session.opened(fixed, graph="enable_cuda_graph"):
            pass

    opened = device_session.opened(path, graph="enable_cuda_graph")
    yield opened.__enter__, fix


@follow("backends/runtimes/onnxruntime/engine_cache:compile_model#2", "--compiled")
def a_provider_that_compiles_nothing(room: Room) -> Iterator[Pair]:
    path = save(room.folder / "m.onnx", MODEL, w=W)
    made = onnxruntime.SessionOptions()
    yield (
        lambda: compile_model(path, made, room.folder / "o.onnx", "CPUExecutionProvider"),
        lambda: open_it(Cpu(), path),
    )


@follow("backends/runtimes/onnxruntime/engine_cache:compile_model", "--compiled")
def a_compiler_that_fails(room: Room) -> Iterator[Pair]:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no")

    path, made = save(room.folder / "m.onnx", MODEL, w=W), onnxruntime.SessionOptions()
    room.patch.setattr(onnxruntime, "ModelCompiler", fail)
    yield (
        lambda: compile_model(path, made, room.folder / "o.onnx", "CPUExecutionProvider"),
        lambda: open_it(Cpu(), path),
    )


@follow("bundle/content:_compile_model", "--compiled")
def a_compiled_plan_that_does_not_load(room: Room) -> Iterator[Pair]:
    study = studies.study(room.folder / "s", backend=Precompiled(harm="closed"))
    out = room.folder / "o.ortune"
    yield lambda: pack(study, out, compiled=True), lambda: pack(study, out)


@follow("bundle/engine/load:open_plan", "--on")
def a_plan_whose_backend_is_not_here(room: Room) -> Iterator[Pair]:
    bundle = pack(studies.study(room.folder / "s", backend=Scripted()), room.folder / "b.ortune")
    room.patch.setattr(Scripted, "missing", lambda self: "install it")

    def load() -> None:
        with pytest.warns(RuntimeWarning, match="original"):
            load_engine(bundle).close()

    yield lambda: load_engine(bundle, on="scripted"), load


@follow("bundle/pack:_require_equivalence", "--plan KEY")
def a_package_that_answers_otherwise(room: Room) -> Iterator[Pair]:
    bundle, out = make_bundle(room.folder / "a.ortune"), room.folder / "out"
    yield (
        lambda: package([bundle], out, Notes(found=Replay("a test", 39.0))),
        lambda: package([bundle], out, Notes(found=Replay("a test", 90.0))),
    )


@follow(
    "measurement/worker/self_agreement:explain_failure",
    "--on",
    "ortune apply m.onnx simplify -o OUT",
)
def an_optimizer_that_breaks_a_model(room: Room) -> Iterator[Pair]:
    text, _ = next(iter(wrong_models.UNLOADABLE.values()))
    path = save(room.folder / "m.onnx", text)
    inputs = read_facts(file.load(path)).inputs
    stream = synthetic.generate_feeds(inputs, room.folder, shapes={}, ranges={}).stream

    def ask(backend: Backend) -> None:
        with translate_failures(f"{path} does not run on {backend}"):
            ask_once(single_model_job(path, backend, stream, room.folder, "w"), ("first", {}))

    def give(fix: str) -> None:
        setting = re.search(r'--on "(.+?)";', fix)
        assert setting is not None
        ask(parse_plugin(Backend, setting[1]))

    yield lambda: ask(Cpu()), give


@follow("measurement/worker/self_agreement:compare_with_itself", "--on cpu")
def a_backend_without_optimizers(room: Room) -> Iterator[Pair]:
    path = save(room.folder / "m.onnx", MODEL, w=W)
    facts = read_facts(file.load(path))
    stream = synthetic.generate_feeds(facts.inputs, room.folder, shapes={}, ranges={}).stream
    bench: Any = SimpleNamespace(job=SimpleNamespace(backend=Reference()))
    yield (
        lambda: worker.compare_with_itself(bench, 1, 40.0),
        lambda: compare_with_itself(path, facts, stream, Cpu()),
    )


@follow("measurement/worker/tasks:optimize", "--on cpu")
def a_backend_that_writes_no_file(room: Room) -> Iterator[Pair]:
    path, out = save(room.folder / "m.onnx", MODEL, w=W), room.folder / "o.onnx"
    yield (
        lambda: optimize_offline(path, Reference(), out),
        lambda: optimize_offline(path, Cpu(), out),
    )


@follow("measurement/peaks:measure_ceilings", "ortune doctor")
def ceilings_that_cannot_be_measured(room: Room) -> Iterator[Pair]:
    def write(folder: Path, *_: int) -> dict[str, Any]:
        save_text(folder / "few.onnx", "no model")
        return {"few": peaks.PeakModel((1, 8))}

    path = save(room.folder / "m.onnx", MODEL, w=W)
    room.patch.setattr(peaks, "write_peak_models", write)
    yield (
        lambda: peaks.measure_ceilings(Cpu(threads=1)),
        lambda: ot.profile(path, on="cpu", ceilings=False),
    )


@follow("analysis/verification/bisect:splice", "raise-opset")
def a_piece_of_another_opset(room: Room) -> Iterator[Pair]:
    host, piece = model_of(HOST), extract(model_of(OTHER.replace(": 17]", ": 20]")), (), ["a"])

    def raise_it() -> None:
        raised = model_of(HOST)
        RaiseOpset(20).apply(raised)
        splice(raised, piece)

    yield lambda: splice(host, piece), raise_it


@follow("bundle/batch:_drop_changed_parts", "--force")
def a_batch_whose_samples_were_changed(room: Room) -> Iterator[Pair]:
    with prepare(room.folder, "M D") as places:
        places["F"] = str(room.folder / "parts")
        demand("run M --data D -o F", places)
        import numpy as np

        np.savez(places["D"], x=np.ones((8, 32), np.float32))
        yield (
            lambda: demand("run M --data D -o F", places),
            lambda: demand("run M --data D -o F --force", places),
        )


@follow(
    "backends/runtimes/onnxruntime/plug_in:_locate_library",
    "pip install --force-reinstall",
)
def a_plug_in_that_does_not_load(room: Room) -> Iterator[Pair]:
    """What pip would write again is written."""
    info = room.folder / "toy_plug_in-1.0.dist-info"
    info.mkdir()
    save_text(info / "METADATA", "Metadata-Version: 2.1\nName: toy-plug-in\nVersion: 1.0\n")
    save_text(info / "RECORD", "toy_plug_in.py,,\n")
    save_text(info / "top_level.txt", "toy_plug_in\n")
    text = "def get_ep_name(): return 'Toy'\ndef get_library_path():\n    {}\n"
    path = save_text(room.folder / "toy_plug_in.py", text.format("raise OSError('gone')"))
    room.patch.syspath_prepend(room.folder)
    backend = parse_plugin(Backend, "plugin(package=toy-plug-in)")
    model = save(room.folder / "m.onnx", MODEL, w=W)

    def install() -> None:
        save_text(path, text.format("return 'libtoy.so'"))
        sys.modules.pop("toy_plug_in", None)
        end_at("libtoy", lambda: open_it(backend, model))()

    yield lambda: open_it(backend, model), install


@follow("backends/tensorrt:_make_shape_options", "leave it out")
def values_where_a_provider_takes_shapes(room: Room) -> Iterator[Pair]:
    yield (
        lambda: Tensorrt(profiles=("x=1,2..4,8",)).provider_options(""),
        lambda: Tensorrt().provider_options(""),
    )


@pytest.mark.parametrize("name", SITUATIONS[__name__])
def test_what_a_fix_says_helps(name: str, room: Room) -> None:
    check_situation(SITUATIONS[__name__][name], room)
