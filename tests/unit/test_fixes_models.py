"""Fixes about models, backends, quantizers and searches are followed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ortune as ot
from ortune.backends import openvino
from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.onnxruntime import checks, engine_cache
from ortune.backends.runtimes.torch.module import load_folder, read_checkpoint
from ortune.bundle.pack import pack
from ortune.core.backend import Backend
from ortune.core.budget import Budget
from ortune.core.errors import OrtuneError
from ortune.core.facts import TensorSpec
from ortune.core.metric import Metric
from ortune.core.plugins.spelling import parse_plugin
from ortune.graph.io import file, wellformed
from ortune.graph.parts.extract import extract as cut
from ortune.measurement.devices import Device
from ortune.measurement.environment import environment_folder
from ortune.measurement.executors import open_devices
from ortune.measurement.workloads.loadgen import read_results
from ortune.metrics.common.detection import read_detections
from ortune.metrics.common.fidelity import parse_group
from ortune.metrics.common.outputs import find_vectors
from ortune.quantizers.calibration.ranges_file import load_ranges
from ortune.quantizers.common.weights.blockwise import compute_order
from ortune.quantizers.observers.moments import LayerMoments
from ortune.search import each
from ortune.search.each import name_apart
from ortune.search.experiment.budget import budget_for_evaluate
from ortune.search.experiment.experiment import name_models
from ortune.search.experiment.ledger import lock_run
from ortune.search.optimize import make_folder
from ortune.search.recipe.shared import SharedCache
from ortune.search.request import Optimize
from ortune.serving.server.repository.served import select_carriable
from tests.unit import studies
from tests.unit.following import Act, Room, Situation, add_situation, end_at, follow_situation
from tests.unit.quantizing import model_of, normal
from tests.unit.test_fixes_data import lack

MODEL = "g (float[b, 32] x) => (float[b, 32] y) { m = MatMul(x, w) y = Relu(m) }"
PLAIN = "g (float[b, 32] x) => (float[b, 32] y) { y = Relu(x) }"
CONSTANT = """g (float[b, 4] x) => (float[b, 4] y) <float[4] c = {1, 2, 3, 4}> {
    d = ReduceSum(c) e = Add(x, d) y = Relu(e) }"""
X = TensorSpec("x", "float32", (None, 32))

SITUATIONS: dict[str, tuple[str, Situation]] = {}


def follow(said: str) -> Any:
    return add_situation(SITUATIONS, said)


def save(room: Room, text: str = MODEL, name: str = "m.onnx") -> Path:
    weights = {"w": normal(32, 32)} if " w)" in text else {}
    return Path(file.save(model_of(text, weights), room.folder / name))


# --- models -------------------------------------------------------------------------------------


@follow("another -o folder")
def a_folder_that_holds_no_run(room: Room) -> Iterator[tuple[Act, Act]]:
    room.write("held/a.txt")
    yield lambda: make_folder(room.folder / "held"), lambda: make_folder(room.folder / "new")


@follow("cut at a tensor that is computed")
def a_piece_that_begins_at_a_constant(room: Room) -> Iterator[tuple[Act, Act]]:
    model = model_of(CONSTANT)
    for node in model.graph:
        node.name = f"{node.op_type} of a test"
    yield lambda: cut(model, ["node:ReduceSum of a test"], ["y"]), lambda: cut(model, ["e"], ["y"])


@follow("or older$")
def a_model_of_a_later_opset(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(version: int) -> None:
        proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {version}]> {PLAIN}')
        with file.report_read_errors(Path("m.onnx")):
            wellformed.validate_model(proto, newer_opset=False)

    yield lambda: act(99), lambda: act(onnx.defs.onnx_opset_version())


@follow("join them by Concat")
def a_model_of_too_many_outputs(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(count: int) -> None:
        proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {PLAIN}')
        proto.graph.output.extend([proto.graph.output[0]] * (count - 1))
        with file.report_read_errors(Path("m.onnx")):
            wellformed.validate_model(proto, newer_opset=False)

    yield lambda: act(10_001), lambda: act(1)


@follow("as several nodes")
def a_node_of_too_many_inputs(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(count: int) -> None:
        proto = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17]> {PLAIN.replace("Relu", "Sum")}'
        )
        proto.graph.node[0].input.extend(["x"] * (count - 1))
        with file.report_read_errors(Path("m.onnx")):
            wellformed.validate_model(proto, newer_opset=False)

    yield lambda: act(10_001), lambda: act(2)


@follow("free some, or split it")
def a_model_that_does_not_fit(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(size: int) -> None:
        with file.report_read_errors(Path("m.onnx")):
            bytearray(size)

    yield lambda: act(1 << 62), lambda: act(1 << 10)


@follow("export it again")
def a_name_that_is_not_utf_8(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(name: bytes) -> None:
        with file.report_read_errors(Path("m.onnx")):
            name.decode()

    yield lambda: act(b"\xff"), lambda: act(b"a")


# --- backends -----------------------------------------------------------------------------------


@follow("use inner=cpu")
def operators_for_buckets_of_another_backend(room: Room) -> Iterator[tuple[Act, Act]]:
    model = save(room)

    def act(inner: str) -> None:
        spelled = f'bucketed(lengths=[8], inner={inner}, custom_ops=["./ops.so"])'
        with parse_plugin(Backend, spelled).open(model):
            pass

    yield lambda: act("reference"), end_at("ops.so", lambda: act("cpu"))


@follow("onnxruntime>=1.23")
def a_runtime_without_a_compiler(room: Room) -> Iterator[tuple[Act, Act]]:
    """With the newer runtime it is asked, and says that no provider compiles anything."""

    path, out = save(room), room.folder / "c.onnx"

    def act() -> None:
        engine_cache.compile_model(path, ort.SessionOptions(), out, Cpu.provider)

    def lacking() -> None:
        with room.patch.context() as patch:
            patch.delattr(ort, "ModelCompiler")
            act()

    yield lacking, end_at("compile", act)


@follow("build it first, or correct the path")
def a_library_that_is_not_there(room: Room) -> Iterator[tuple[Act, Act]]:
    library = room.write("ops.so", b"")
    yield (
        lambda: checks.find_library(str(room.folder / "none.so")),
        lambda: checks.find_library(str(library)),
    )


@follow("build it on this machine")
def a_library_of_another_machine(room: Room) -> Iterator[tuple[Act, Act]]:
    own = Path(sys.executable).resolve().read_bytes()[:64]
    foreign = own[:18] + (0xF3).to_bytes(2, "little") + own[20:]
    yield (
        lambda: checks.find_library(str(room.write("a.so", foreign))),
        lambda: checks.find_library(str(room.write("b.so", own))),
    )


@follow("exports RegisterCustomOps")
def a_library_without_operators(room: Room) -> Iterator[tuple[Act, Act]]:
    import _ctypes

    library = Path(_ctypes.__file__)

    def look() -> None:
        assert b"RegisterCustomOps" not in library.read_bytes()

    yield lambda: checks.register(ort.SessionOptions(), [str(library)]), look


@follow("^pip install operators_not_there, or give the path of a library$")
def a_module_of_operators_that_is_not_installed(room: Room) -> Iterator[tuple[Act, Act]]:
    library = room.write("ops.so", b"")
    yield (
        lambda: checks.find_library("operators_not_there"),
        lambda: checks.find_library(str(library)),
    )


@follow(r"define get_library_path\(\)")
def a_module_that_gives_no_library(room: Room) -> Iterator[tuple[Act, Act]]:
    library = room.write("ops.so", b"")
    code = f"def get_library_path():\n    return {str(library)!r}\n"
    yield (
        lambda: checks.find_library(str(room.write("none.py", "x = 1\n"))),
        lambda: checks.find_library(str(room.write("one.py", code))),
    )


@follow("API version")
def a_library_that_kills_its_process(room: Room) -> Iterator[tuple[Act, Act]]:
    room.write("dying.py", "import os\nos._exit(3)\n")
    harmless = room.write("raising.py", "raise ImportError('no')\n")
    yield (
        lambda: checks.demand_loadable((str(room.folder / "dying.py"),)),
        end_at("no", lambda: checks.demand_loadable((str(harmless),))),
    )


@follow("^pip install onnxruntime-ep-openvino|^pip install ")
def no_plug_in(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(device: str) -> None:
        with lack(room, "onnxruntime_ep_openvino"):
            openvino.list_openvino_devices(device)

    yield lambda: act("AUTO"), end_at("plug-in is not installed", lambda: act("CPU"))


FOLDER_OF_CODE = {"architectures": ["Own"], "model_type": "own_type_of_a_test"}


@follow("that save_pretrained wrote")
def a_folder_that_transformers_does_not_load(room: Room) -> Iterator[tuple[Act, Act]]:
    """What `save_pretrained` writes is loaded in the tests of export."""
    if find_spec("transformers") is None:
        pytest.skip("needs transformers")
    room.write("f/config.json", json.dumps(FOLDER_OF_CODE))
    room.write("f/model.safetensors")
    yield lambda: load_folder(str(room.folder / "f")), lambda: None


@follow("^pip install torch==.* transformers$")
def no_transformers(room: Room) -> Iterator[tuple[Act, Act]]:
    room.write("f/config.json", json.dumps(FOLDER_OF_CODE))
    room.write("f/model.safetensors")

    def act() -> None:
        with lack(room, "transformers"):
            load_folder(str(room.folder / "f"))

    def follow_it() -> None:
        if find_spec("transformers"):
            end_at("transformers does not load", lambda: load_folder(str(room.folder / "f")))()

    yield act, follow_it


@follow("what torch.save wrote")
def a_checkpoint_that_is_none(room: Room) -> Iterator[tuple[Act, Act]]:
    torch = pytest.importorskip("torch")
    torch.save({"weight": torch.ones(2)}, room.folder / "w.pt")
    broken = room.write("broken.pt", b"PK\x03\x04" + bytes(100))
    yield lambda: read_checkpoint(broken), lambda: read_checkpoint(room.folder / "w.pt")


# --- metrics and quantizers ---------------------------------------------------------------------


@follow('such as "1:boxes", or "all:boxes"')
def a_group_without_an_axis(room: Room) -> Iterator[tuple[Act, Act]]:
    yield lambda: parse_group("boxes"), lambda: [*map(parse_group, ("1:boxes", "all:boxes"))]


@follow("^use cosine or agreement$")
def outputs_without_vectors(room: Room) -> Iterator[tuple[Act, Act]]:
    yield (
        lambda: find_vectors({"y": np.ones(3, np.float32)}, ""),
        lambda: [parse_plugin(Metric, name) for name in ("cosine", "agreement")],
    )


@follow("give arrays")
def boxes_that_are_words(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(boxes: Any) -> None:
        read_detections(boxes, np.ones(1), np.ones(1), "xyxy")

    yield lambda: act("boxes"), lambda: act(np.array([[0, 0, 1, 1.0]]))


@follow("write FILE.py:NAME>=0.9")
def a_metric_without_its_function(room: Room) -> Iterator[tuple[Act, Act]]:
    room.write("judge.py", "def judge(expected, actual, label):\n    return 1.0\n")
    room.patch.chdir(room.folder)
    yield (
        lambda: parse_plugin(Metric, "function").function,
        lambda: Budget.parse("judge.py:judge>=0.9").metric.function,
    )


@follow("write score>=base-0.01")
def a_budget_that_does_not_judge_a_score(room: Room) -> Iterator[tuple[Act, Act]]:
    room.write("judge.py", "def judge(run):\n    return [1.0]\n")
    room.patch.chdir(room.folder)

    def act(text: str) -> None:
        budget_for_evaluate("judge.py:judge", Budget.parse(text))

    yield lambda: act("snr>=20"), lambda: act("score>=base-0.01")


@follow("give 1 number, or none|give 2 numbers, or none")
def strides_of_another_length(room: Room) -> Iterator[tuple[Act, Act]]:
    yield (
        lambda: LayerMoments(kernel=(3, 3), strides=(1,)),
        lambda: (LayerMoments(kernel=(3, 3), strides=(1, 1)), LayerMoments(kernel=(3, 3))),
    )


@follow("groups from 1 on, most from 0 on")
def groups_of_0(room: Room) -> Iterator[tuple[Act, Act]]:
    yield lambda: LayerMoments(groups=0), lambda: LayerMoments(groups=1, most=0)


@follow("the layer's own groups")
def groups_that_do_not_divide(room: Room) -> Iterator[tuple[Act, Act]]:
    values = np.ones((2, 4), np.float32)
    yield (
        lambda: LayerMoments(groups=3).start().update(0, values),
        lambda: LayerMoments(groups=2).start().update(0, values),
    )


@follow("a larger damping")
def moments_that_cannot_be_inverted(room: Room) -> Iterator[tuple[Act, Act]]:
    indefinite = np.array([[1.0, 5.0], [5.0, 1.0]], np.float32)
    yield (
        lambda: compute_order(indefinite, 1e-9, act_order=False),
        lambda: compute_order(indefinite, 10.0, act_order=False),
    )


@follow("calibrate again")
def ranges_of_no_tensor(room: Room) -> Iterator[tuple[Act, Act]]:
    model = save(room)
    np.savez(room.folder / "d.npz", x=normal(4, 32))
    made = ot.calibrate(model, data=room.folder / "d.npz", out=room.folder / "r.json")
    content = json.loads((room.folder / "r.json").read_text()) if made else {}
    content["tensors"] = type(content["tensors"])()
    empty = room.write("empty.json", json.dumps(content))
    yield lambda: load_ranges(empty, model), lambda: load_ranges(room.folder / "r.json", model)


# --- machines, searches and servers -------------------------------------------------------------


@follow("apt-get install openssh-client")
def no_ssh(room: Room) -> Iterator[tuple[Act, Act]]:
    device = Device("pi5", "pi@pi5", "/no/python", "/no/folder")
    room.patch.setenv("PATH", str(room.folder))

    def follow_it() -> None:
        room.write("ssh", "#!/bin/sh\nexit 0\n").chmod(0o755)
        device.run_code("pass", subprocess.DEVNULL).wait()

    yield lambda: device.run_code("pass", subprocess.DEVNULL), follow_it


@follow("write pi5")
def a_device_misspelled(room: Room) -> Iterator[tuple[Act, Act]]:
    path = room.write("d.toml", '[pi5]\nhost = "pi@pi5"\n')

    def act(name: str) -> None:
        with open_devices(f"ssh:{path}#{name}"):
            pass

    yield lambda: act("pi"), lambda: act("pi5")


@follow("^set XDG_CACHE_HOME to a folder$")
def no_cache_folder(room: Room) -> Iterator[tuple[Act, Act]]:
    def fail() -> Path:
        raise RuntimeError("no home")

    room.patch.delenv("XDG_CACHE_HOME")
    room.patch.setattr(Path, "home", fail)

    def follow_it() -> None:
        room.patch.setenv("XDG_CACHE_HOME", str(room.folder))
        environment_folder("a")

    yield lambda: environment_folder("a"), follow_it


@follow("read the log beside it")
def a_load_test_without_a_result(room: Room) -> Iterator[tuple[Act, Act]]:
    line = ':::MLLOG {"key": "result_validity", "value": "VALID"}\n'
    yield (
        lambda: read_results(room.folder / "none.txt"),
        lambda: read_results(room.write("log.txt", line)),
    )


@follow("rename one of them, or give it once")
def models_of_one_path(room: Room) -> Iterator[tuple[Act, Act]]:
    one, other = room.folder / "m.onnx", room.folder / "m.ort"
    yield lambda: name_apart([one, other]), lambda: name_apart([one, room.folder / "n.ort"])


@follow("rename one of them")
def models_of_one_name(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(*names: str) -> None:
        name_models([room.folder / name for name in names], "judge.py:judge", None)

    yield lambda: act("a/m.onnx", "b/m.onnx"), lambda: act("a/m.onnx", "b/n.onnx")


@follow("put it back")
def a_run_that_is_moved(room: Room) -> Iterator[tuple[Act, Act]]:
    root, elsewhere = room.folder / "run", room.folder / "moved"
    root.mkdir()

    def act() -> None:
        with lock_run(root):
            shutil.move(root, elsewhere)

    def follow_it() -> None:
        shutil.move(elsewhere, root)
        with lock_run(root):
            pass

    yield act, follow_it


@follow("^pip install fsspec$")
def no_fsspec(room: Room) -> Iterator[tuple[Act, Act]]:
    pytest.importorskip("fsspec")

    def act() -> None:
        with lack(room, "fsspec"):
            SharedCache(str(room.folder), "a test")

    yield act, lambda: SharedCache(str(room.folder), "a test")


@follow("give FILE.py:NAME in place of the file, or leave it out")
def weights_for_a_file(room: Room) -> Iterator[tuple[Act, Act]]:
    def act(model: str, **more: Any) -> None:
        Optimize(model, **more).make_export(room.folder / "out")

    def follow_both() -> None:
        act("m.py:Module", weights="w.pt")
        act("m.onnx")

    yield lambda: act("m.onnx", weights="w.pt"), follow_both


@follow("leave it out, or run one command per model")
def a_function_for_several_models(room: Room) -> Iterator[tuple[Act, Act]]:
    """What comes next is not waited for; where one model fails the others are searched."""
    models = [save(room), save(room, PLAIN, "n.onnx")]

    def begin(*_: object) -> None:
        raise OrtuneError("the search begins", fix="wait")

    def act(**more: str) -> list[str]:
        asked = Optimize(models, out=room.folder / "out", **more)
        return [found.problem for found in each.run(asked)]

    def follow_it() -> None:
        assert act() == ["the search begins"] * 2

    room.patch.setattr(each, "run_once", begin)
    yield lambda: act(evaluate="judge.py:judge"), follow_it


@follow("the run's folder that it was packed from")
def a_bundle_to_explain(room: Room) -> Iterator[tuple[Act, Act]]:

    study = studies.study(room.folder / "s")
    bundle = pack(study, room.folder / "b.ortune")
    run = studies.write_run(study)
    yield lambda: ot.explain(bundle), lambda: ot.explain(run)


@follow("one of them at a time")
def a_node_and_a_plan(room: Room) -> Iterator[tuple[Act, Act]]:

    run = studies.write_run(studies.study(room.folder / "s"))

    def act(**asked: str) -> None:
        ot.explain(run, **asked)

    yield lambda: act(node="a", plan="0"), lambda: act(plan="0")


@follow("arrays of plain numbers or texts")
def a_model_that_the_protocol_does_not_carry(room: Room) -> Iterator[tuple[Act, Act]]:
    listed = TensorSpec("y", "seq(float32)", None)
    yield lambda: select_carriable("m", [X], [listed]), lambda: select_carriable("m", [X], [X])


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_a_fix_says_helps(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    follow_situation(SITUATIONS[name], Room(tmp_path, monkeypatch))
