"""Fixes that name an option are followed: the situation is another then."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from ortune_toys.backends.precompiled import Precompiled

import ortune as ot
from ortune.analysis.conversion import convert
from ortune.analysis.profiling import profile
from ortune.backends.cpu import Cpu
from ortune.backends.runtimes.torch.module import fill_module, read_checkpoint
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack
from ortune.bundle.package import package
from ortune.bundle.target import Replay
from ortune.cli.main import main
from ortune.core.errors import OrtuneError
from ortune.core.progress import time_limit
from ortune.core.session import Executed, Recorded
from ortune.core.settings import demand_typed
from ortune.core.step import Recipe
from ortune.core.trial import Plan
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.measurement.devices import Device
from ortune.measurement.environment import RECORD, environment_folder
from ortune.measurement.environments.check import check_device
from ortune.measurement.job import MAIN, Failure
from ortune.measurement.process import Worker, WorkerFailed
from ortune.reporting.live import LiveServer, Watched
from ortune.search import optimize
from ortune.search.experiment import golden
from ortune.search.experiment.ledger import Ledger
from ortune.search.targets import read_targets
from ortune.serving.load_testing import clients
from ortune.serving.load_testing.clients import open_clients
from ortune.serving.load_testing.levels import Load
from ortune.serving.load_testing.requests import LoadTest
from ortune.serving.server.deployment import divide_cluster
from ortune.targets.onnx import OnnxFile
from tests import zygote
from tests.unit import studies, texts
from tests.unit.bundle.test_package import Notes
from tests.unit.quantizing import model_of, normal
from tests.unit.search.experiment.test_hostile_run import written
from tests.unit.search.test_fixed_shapes import STEP
from tests.unit.serving.load_testing.test_goal import Machine
from tests.unit.serving.load_testing.toy_servers import Script, over_http
from tests.unit.serving.server.grpc.test_server import made as make_grpc_server
from tests.unit.test_fixes import OF_OTHER_PROGRAMS, OPTION, list_fixes, list_options

ROOMS = Path(__file__).parents[1] / "fixtures" / "before_rooms"
MODEL = "g (float[b, 32] x) => (float[b, 32] y) { m = MatMul(x, w) y = Relu(m) }"
TWO = MODEL.replace("y = Relu(m)", "n = MatMul(m, v) y = Relu(n)")
FIXED = "g (float[2, 8] x) => (float[2, 8] y) { m = MatMul(x, w) y = Relu(m) }"
INTEGER = "g (int64[b, 4] i) => (int64[b, 4] y) { y = Abs(i) }"
RANDOM = "g (float[b, 32] x) => (float[b, 32] y) { r = RandomNormalLike(x) y = Add(r, x) }"
UNLOADED = """g (float[b, 32] x) => (float[b, 32] y) {
    c = Cast<to=16>(x) s = Sigmoid(c) f = Cast<to=1>(s) y = MatMul(f, w) }"""
NAN = "g (float[b, 32] x) => (float[b, 32] y, float[b, 32] z) { y = Log(x) z = Relu(x) }"

FOLLOWED = {
    "convert M D --reduce-range": "convert M D --reduce-range --precision int8",
    "convert M D --precision int8 --format qoperator": "convert M D --precision int8",
    "convert M D --precision int8 --dynamic-conv --data D": (
        "convert M D --precision int8 --dynamic-conv"
    ),
    "convert X O --precision int8 --dynamic-conv --data D": (
        "convert X O --precision int8 --data D"
    ),
    "convert M D --precision fp8": "convert M D --precision fp8 --target gpu",
    "convert M D --precision fp8 --target gpu": (
        "convert M D --precision fp8 --target gpu --ranges-from X"
    ),
    "convert M O --precision int8 --format qoperator --data D --target gpu": (
        "convert M O --precision int8 --data D --target gpu"
    ),
    "convert X O --precision int8 --target cuda": "convert X O --precision fp16 --target cuda",
    "convert X O --precision bf16 --target directml": (
        "convert X O --precision fp16 --target directml"
    ),
    "convert X O --precision int8 --target gpu": "convert X O --precision fp16 --target gpu",
    "convert M O --precision int8 --augment noise": (
        "convert M O --precision int8 --augment noise --data D"
    ),
    "convert INT8 O --precision int8": "convert INT8 O",
    "convert M O --precision int8 --ranges-from X": (
        "calibrate M --data D -o NEW; convert M O --precision int8 --ranges-from NEW"
    ),
    "convert M O --precision int8 --ranges-from CACHE": (
        "calibrate M --data D --tensorrt-cache NEW; convert M O --precision int8 --ranges-from NEW"
    ),
    "convert M O --precision int8 --ranges-from RANGES": (
        "calibrate M --data D -o NEW; convert M O --precision int8 --ranges-from NEW"
    ),
    "convert M NEW --picture-size 3x3": "convert M NEW --picture-size 3x3 --fold-preprocess X",
    "convert I NEW --precision int8 --data ID --augment noise": (
        "convert I NEW --precision int8 --data ID"
    ),
    "apply M int8-dynamic -o O --threshold 0.1": (
        "apply M int8-dynamic -o O --threshold 0.1 --exclude-from X"
    ),
    "apply X int8-dynamic -o O --threshold 0.1": "apply X int8-dynamic -o O",
    "apply M simplify -o D": "apply M simplify -o D --force",
    "apply TWO qoperator -o O": "apply TWO int8-static qoperator --data D -o O",
    "apply M int8-static -o O": "apply M int8-static --data D -o O",
    "apply TWO fp16(islands=1) -o O": "apply TWO fp16(islands=1) --data D -o O",
    "calibrate M --data D --tensorrt-version 11.0 --tensorrt-cache NEW": (
        "convert M O --precision int8 --target gpu --data D"
    ),
    "calibrate M -o NEW": "calibrate M --data D -o NEW",
    "calibrate M --data X --shape y:1x2": "calibrate M --data X --shape y:1x2 --sequence 2",
    "calibrate M --data X --observer min-max --observer mse": (
        "calibrate M --data X --observer min-max --observer mse --compare"
    ),
    "calibrate M --data X --tensorrt-version 8.6.1": (
        "calibrate M --data X --tensorrt-version 8.6.1 --tensorrt-cache NEW"
    ),
    "calibrate I --data ID -o O": "calibrate I --data ID -o O --step int8-dynamic",
    "bench F --batch 3": "bench F --shape x:1x7",
    "bench X --threads 0": "bench X --threads 1,2",
    "bench X --on reference --levels basic": "bench X --on reference",
    "bench SEVERAL": "bench SEVERAL --end-to-end x:y",
    "compare X X": "bench M --sets 1 --time 0.1s --json J; compare J J",
    "compare J2 K2": "compare J2 K2 --by order",
    "cost X --price 1/h": "bench M --sets 1 --time 0.1s --json J; cost J --price 1/h",
    "cost X --timeline --on openvino --starts 1": "cost X --timeline --on cpu --starts 1",
    "extract M --from nope -o O": "inspect M --list nodes",
    "sensitivity M": "sensitivity M --data X",
    "optimize X --augment noise": "optimize X --augment noise --data X -o D",
    "optimize M X --ranges-from X --evaluate x:y": "optimize M X --evaluate x:y -o D",
    "optimize M --labels L": "optimize M --labels L --data X",
    "optimize M --max-latency 5ms": "optimize M --max-latency 5ms --batches 1,4 -o D",
    "optimize M --max-latency 5ms --batches 1,4 --workload throughput": (
        "optimize M --max-latency 5ms --batches 1,4 --workload latency -o D"
    ),
    "optimize M --batches 1,4 --max-latency 5ms --workload throughput": (
        "optimize M --batches 1,4 --workload throughput -o D"
    ),
    "optimize NAN --sequence 2 --data D -o NEW": (
        "optimize NAN --sequence 2 --data D -o NEW --state y:x"
    ),
    "optimize M --batches 1,2 --evaluate x:y": "optimize M --batches 1,2 --data X -o D",
    "optimize M --state y:x --data D": "optimize M --state y:x --data X --sequence 2 -o D",
    "optimize M --on torch -o D": "optimize M --baseline torch -o D",
    "optimize M --on 'cpu,cpu in a' -o D": "bench M --environment here,a",
    "optimize M --target-speedup 2 --budget cosine>=0.99|0.9 -o D": (
        "optimize M --target-speedup 2 --budget cosine>=0.99 -o D"
    ),
    "optimize M --portable --on 'cpu(affinity=\"1\")' -o D": (
        "optimize M --on 'cpu(affinity=\"1\")' -o D"
    ),
    "optimize NAN --data D --calibration D -o NEW": "optimize NAN --data D -o NEW",
    "verify M M --bisect --evaluate x:y": "verify M M --bisect --data X",
    "verify M M --data D -o NEW": "verify M M --data D -o NEW --bisect",
    "verify M M --data D --budget score>=0.5": "verify M M --evaluate x:y --budget score>=0.5",
    "verify M M --data D --budget top1>=0.9": "verify M M --data D --budget top1>=0.9 --labels L",
    "verify NAN NAN --data D": "verify NAN NAN --data D --budget cosine(output=z)>=0.9",
    "verify RANDOM RANDOM --data D --ignore-output y": "verify RANDOM RANDOM --data D",
    "verify X X --on openvino --simulate avx2": "verify X X --on openvino",
    "verify M M --data D --memory-limit 1M": "verify M M --data D --memory-limit 4G",
    "pack RUN -o NEW.ortune --compiled": "pack RUN -o NEW.ortune",
    "pack RUN -o NEW.ortune --plan bb22": "pack RUN -o NEW.ortune --plan bb22 --unconfirmed",
    "pack RUN -o NEW --original": "pack RUN -o NEW --original --for x",
    "pack BUNDLE -o NEW --for onnx --licence MIT": "pack BUNDLE -o NEW --for onnx",
    "pack BUNDLE -o NEW --for onnx --plan aa11": "pack BUNDLE -o NEW --for onnx",
    "pack OWN_RUN -o NEW.ortune": "pack OWN_RUN -o NEW.ortune --allow-custom-ops",
    "run M": "run M --data D -o NEW",
    "run M D --executor ray": "run M --executor ray --data D -o NEW",
    "run M D -o X": "run M --data D -o NEW",
    "pack BUNDLE -o HELD --for onnx": "pack BUNDLE -o HELD --for onnx --force",
    "run OWN D": "run OWN D --allow-custom-ops",
    "recheck OWN": "recheck OWN --allow-custom-ops",
    "loadtest BUNDLE --goal p99<5ms --rate 5,10 -o D": (
        "loadtest BUNDLE --goal p99<5ms --rate 5 -o D"
    ),
    "loadtest http://127.0.0.1:1 --client perf_analyzer --rate 5": (
        "loadtest http://127.0.0.1:1 --rate 5"
    ),
    "serve X --no-grpc --no-http --http-port 0": "serve X --no-grpc --http-port 0",
    "serve X --no-http --no-grpc": "serve X --no-http",
    "serve X --grpc-port TAKEN --http-port 0": "serve X --grpc-port 0 --http-port 0",
    "serve X --explicit --processes 2 --http-port TAKEN": (
        "serve X --watch --processes 2 --http-port TAKEN"
    ),
    "serve X --executor ray": "serve X --executor ray --host 0.0.0.0 --token-file L",
    "pack WRONG -o NEW.ortune --compiled": "pack WRONG -o NEW.ortune",
}
"""A command that is refused -> what its fix says: commands, the last of which is looked at.

The words in capitals are files of `FILES`. Where the work behind it would be long the followed
command ends at the next thing amiss: a file that is there already (D), or is of no use (X).
"""

ELSEWHERE = {"--range", "--shape", "--unpack-limit", "--version"}
"""Options that `test_fixes` follows, and a test below on its own."""


# --- files that the commands name ---------------------------------------------------------------


def save(path: Path, text: str, **weights: Any) -> Path:
    return Path(file.save(model_of(text, weights), path))


def save_samples(path: Path) -> Path:
    np.savez(path, x=np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32))
    return path


def save_text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def rename_rows(path: Path, model: str) -> Path:
    """Write a file of `bench` again, with its row twice under another name."""
    content = json.loads((ROOMS / "bench.json").read_text(encoding="utf-8"))
    content["rows"] = [row | {"model": model} for row in content["rows"][:1]] * 2
    return save_text(path, json.dumps(content))


def make_own(path: Path) -> studies.Study:
    """Return the study of a run with a custom operator that does not load."""
    path.mkdir()
    library = save_text(path / "operators.py", "raise ImportError('not there')\n")
    return studies.study(path, backend=Cpu(custom_ops=(str(library),)))


def make_own_run(path: Path) -> Path:
    """Write a run whose golden answers only its own code could give."""
    study = make_own(path)
    golden.outputs_path(Path(study.root), "", study.best).unlink()
    return written(study)


def make_wrong_run(path: Path) -> Path:
    """Write a run whose provider compiles models that answer otherwise."""
    return written(studies.study(path, backend=Precompiled(harm="wrong")))


def quantize(path: Path) -> None:
    source = save(path.with_name("source.onnx"), MODEL, w=normal(32, 32))
    demand("apply M int8-dynamic -o O", {"M": str(source), "O": str(path)})


def calibrate_another(path: Path) -> None:
    """Write ranges of a model that has other tensors."""
    text = MODEL.replace("(m", "(t").replace("m =", "t =").replace("x", "z")
    source = save(path.with_name("other.onnx"), text, w=normal(32, 32))
    samples = path.with_name("z.npz")
    np.savez(samples, z=np.ones((8, 32), np.float32))
    demand("calibrate M --data D -o O", {"M": str(source), "D": str(samples), "O": str(path)})


def make_package(path: Path) -> None:
    bundle = make_bundle(path.with_name("packed.ortune"))
    demand("pack B --for onnx -o O", {"B": str(bundle), "O": str(path)})


def make_bundle(path: Path) -> Path:
    return pack(studies.study(path.with_name("study")), path)


def make_own_bundle(path: Path) -> Path:
    return pack(make_own(path.with_name("own")), path)


FILES: Mapping[str, tuple[str, Callable[[Path], object]]] = {
    "M": ("m.onnx", lambda path: save(path, MODEL, w=normal(32, 32))),
    "F": ("f.onnx", lambda path: save(path, FIXED, w=normal(8, 8))),
    "I": ("i.onnx", lambda path: save(path, INTEGER)),
    "NAN": ("nan.onnx", lambda path: save(path, NAN)),
    "UNLOADED": ("unloaded.onnx", lambda path: save(path, UNLOADED, w=normal(32, 32))),
    "RANDOM": ("random.onnx", lambda path: save(path, RANDOM)),
    "TWO": ("two.onnx", lambda path: save(path, TWO, w=normal(32, 32), v=normal(32, 32))),
    "INT8": ("int8.onnx", quantize),
    "CACHE": ("cache", lambda path: save_text(path, "TRT-8601-EntropyCalibration2\nx: zz\n")),
    "RANGES": ("ranges.json", calibrate_another),
    "HELD": ("held", make_package),
    "D": ("d.npz", save_samples),
    "ID": ("id.npz", lambda path: np.savez(path, i=np.arange(32).reshape(8, 4))),
    "L": ("labels.csv", lambda path: save_text(path, "\n".join("01234567") + "\n")),
    "X": ("x.json", lambda path: save_text(path, "{}")),
    "J2": ("j2.json", lambda path: rename_rows(path, "one.onnx")),
    "K2": ("k2.json", lambda path: rename_rows(path, "other.onnx")),
    "O": ("o.onnx", lambda path: None),
    "J": ("j.json", lambda path: None),
    "NEW": ("new", lambda path: None),
    "NEW.ortune": ("new.ortune", lambda path: None),
    "RUN": ("a", lambda path: written(studies.study(path))),
    "BUNDLE": ("bundle.ortune", make_bundle),
    "OWN_RUN": ("b", make_own_run),
    "OWN": ("own.ortune", make_own_bundle),
    "WRONG": ("c", make_wrong_run),
}
"""Word -> name of a file, and what makes it in a folder."""


@contextmanager
def prepare(folder: Path, *commands: str) -> Iterator[dict[str, str]]:
    """Write what commands name; yield word -> what stands for it. A port is taken meanwhile."""
    words = {word for text in commands for word in shlex.split(text)}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        places = {"TAKEN": str(taken.getsockname()[1])}
        places["SEVERAL"] = str(ROOMS / "bundles" / "two-winner.ortune")
        for word in words & FILES.keys():
            name, make = FILES[word]
            places[word] = str(make(folder / name) or folder / name)
        yield places


def run(text: str, places: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a command; return its exit code, what is amiss and what to do about it."""
    with redirect_stderr(io.StringIO()) as said, redirect_stdout(io.StringIO()):
        code = main([places.get(word, word) for word in shlex.split(text)])
    what, _, fix = said.getvalue().rpartition("  fix: ")
    return code, what.strip().rpartition("\n")[2], fix


def demand(text: str, places: Mapping[str, str]) -> None:
    """Run a command and raise what is amiss."""
    code, what, fix = run(text, places)
    if code:
        raise OrtuneError(what, fix=fix)


def list_changes(refused: str, followed: str) -> set[str]:
    """Return the options that only one of two commands has, or has with another value."""
    before, after = refused.split(" --"), followed.split(" --")
    return {f"--{part.split()[0]}" for part in {*before[1:]} ^ {*after[1:]}}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some commands write where they are run."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("refused", FOLLOWED)
def test_what_a_fix_says_changes_the_situation(refused: str, tmp_path: Path) -> None:
    *before, followed = FOLLOWED[refused].split("; ")
    with prepare(tmp_path, refused, *before, followed) as places:
        code, what, fix = run(refused, places)
        changes = list_changes(refused, FOLLOWED[refused])
        assert code == 2 and changes & set(OPTION.findall(fix)), fix
        for text in before:
            assert run(text, places)[0] == 0, text
        code, otherwise, _ = run(followed, places)
    assert code == 0 or otherwise != what, otherwise


def test_followed_commands_have_the_options_of_their_verbs() -> None:
    """A fix that names an option of another verb would change the situation too."""
    options = list_options()
    for text in "; ".join(FOLLOWED.values()).split("; "):
        verb, *words = shlex.split(text)
        assert {word for word in words if word.startswith("--")} <= options[verb], text


# --- what takes more than two commands ----------------------------------------------------------


class Room(NamedTuple):
    """Where a situation is."""

    folder: Path
    patch: pytest.MonkeyPatch


def end_at(said: str, act: Callable[[], object]) -> Callable[[], None]:
    """Return an act that ends at the next thing amiss."""

    def check() -> None:
        with pytest.raises(OrtuneError, match=said):
            act()

    return check


Pair = tuple[Callable[[], object], Callable[[], object]]
SITUATIONS: dict[str, tuple[set[str], Callable[[Room], AbstractContextManager[Pair]]]] = {}
"""Name -> options that the fix names, and what gives the refused act and that of the fix."""


def follow(*options: str) -> Callable[[Callable[[Room], Iterator[Pair]]], None]:
    """Register a situation."""

    def register(make: Callable[[Room], Iterator[Pair]]) -> None:
        SITUATIONS[make.__name__] = ({*options}, contextmanager(make))

    return register


@follow("--allow-fallback", "--on")
def a_provider_that_takes_no_node(room: Room) -> Iterator[Pair]:
    """What was recorded says that the CPU ran everything."""
    model = save(room.folder / "m.onnx", RANDOM)
    node = Executed("n", "Add", calls=1, span_ns=9e3, kernel_ns=9e3, provider=Cpu.provider)
    runs = profile.Runs(Recorded((node,), 2, 1e4, 1e4), 1e4, 2)
    room.patch.setattr(profile, "require_backend", lambda _: None)
    room.patch.setattr(profile, "profile_model", lambda *_, **__: runs)

    def act(**more: Any) -> None:
        ot.profile(model, on="cuda", ceilings=False, **more)

    yield act, lambda: act(allow_fallback=True)


@follow("--allow-custom-ops")
def libraries_for_a_bundle_that_brings_its_own(room: Room) -> Iterator[Pair]:
    bundle = make_own_bundle(room.folder / "own.ortune")

    def act(custom_ops: Any) -> None:
        with pytest.warns(RuntimeWarning, match="the original runs"):
            load_engine(bundle, custom_ops=custom_ops).close()

    yield lambda: load_engine(bundle, custom_ops="ops.so"), lambda: act(True)


@follow("--executor")
def a_backend_asked_for_here_and_on_a_device(room: Room) -> Iterator[Pair]:
    yield (
        lambda: read_targets("cpu in a", "pi5"),
        end_at("no environment 'a'", lambda: read_targets("cpu in a")),
    )


@follow("--help")
def a_setting_of_another_type(room: Room) -> Iterator[Pair]:
    def look() -> None:
        with redirect_stdout(io.StringIO()) as said:
            assert main(["optimize", "--help"]) == 0
        assert "--time" in said.getvalue()

    yield lambda: demand_typed(room.folder / "ortune.toml", "time", True, (str,)), look


@follow("--model")
def a_server_of_several_models(room: Room) -> Iterator[Pair]:
    with over_http(Script(models=("double", "other"))) as url:
        yield lambda: ask_server(url), lambda: ask_server(url, model="double")


@follow("--model")
def a_server_without_a_list_of_models(room: Room) -> Iterator[Pair]:
    with over_http(Script(told={"/v2/repository/index": None})) as url:
        yield lambda: ask_server(url), lambda: ask_server(url, model="double")


@follow("--model")
def a_model_that_the_server_does_not_have(room: Room) -> Iterator[Pair]:
    with over_http(Script()) as url:
        yield lambda: ask_server(url, model="triple"), lambda: ask_server(url, model="double")


@follow("--token-file")
def a_server_that_asks_for_a_token(room: Room) -> Iterator[Pair]:
    token = save_text(room.folder / "token", "secret")
    with over_http(Script(token="secret")) as url:
        yield lambda: ask_server(url), lambda: ask_server(url, token_file=token)


def ask_server(url: str, **more: Any) -> None:
    with open_clients(LoadTest(url, **more)):
        pass


@follow("--clients")
def a_client_process_for_which_there_is_no_room(room: Room) -> Iterator[Pair]:
    """The second one ends at once, as one does that the kernel kills for want of memory."""
    started: list[Sequence[str]] = []
    real = clients.make_python_command

    def spell(*words: str) -> list[str]:
        started.append(words)
        return real(*words) if len(started) == 1 else ["false"]

    def act(count: int) -> None:
        started.clear()
        with open_clients(LoadTest(url, clients=count)) as found:
            found.measure_level(Load(2, requests=4), warm_up_s=0)

    room.patch.setattr(clients, "make_python_command", spell)
    with over_http(Script()) as url:
        yield lambda: act(2), lambda: act(1)


@follow("--json")
def levels_that_cannot_be_read(room: Room) -> Iterator[Pair]:
    rows = json.dumps({"rows": [{"measure": "latency from the intended start"}]})
    places = {"X": str(save_text(room.folder / "x.json", rows)), "J": str(room.folder / "j.json")}
    few = "--concurrency 1 --requests 20 --repeats 1 --warm-up 0"

    def measure() -> None:
        demand(f"loadtest {url} {few} --json J", places)
        demand("cost J --price 1/h", places)

    with over_http(Script()) as url:
        yield lambda: demand("cost X --price 1/h", places), measure


@follow("--json")
def rows_without_times(room: Room) -> Iterator[Pair]:
    content = {"rows": [{"model": "m.onnx", "backend": "cpu"}]}
    path = save_text(room.folder / "x.json", json.dumps(content))
    with prepare(room.folder, "M J") as places:
        yield (
            lambda: demand("compare X X", {"X": str(path)}),
            lambda: demand("bench M --sets 1 --time 0.1s --json J", places),
        )


@follow("--fixed-shapes")
def a_run_whose_plans_take_one_shape(room: Room) -> Iterator[Pair]:
    """What comes next is not waited for."""

    def refuse(*_: object) -> None:
        raise OrtuneError("the search begins", fix="wait")

    root, plan = room.folder / "run", Plan(Recipe("fixed shapes", (STEP,)), Cpu())
    (root / "workers").mkdir(parents=True)
    Ledger(root).append(replace(studies.baseline(), plan=plan))
    room.patch.setattr(optimize, "plan_calibration", refuse)
    with prepare(room.folder, "M") as places:
        asked = {"on": "cpu", "out": root}
        yield (
            lambda: ot.optimize(places["M"], **asked),
            end_at(
                "the search begins", lambda: ot.optimize(places["M"], fixed_shapes=True, **asked)
            ),
        )


@follow("--name")
def an_environment_of_another_release(room: Room) -> Iterator[Pair]:
    for name, release in (("a", "openvino==1"), ("b", "onnxruntime==1.24.4")):
        folder = environment_folder(name)
        folder.mkdir(parents=True)
        record = {"release": release, "distributions": [release], "python": "3"}
        save_text(folder / RECORD, json.dumps(record))
    text = "doctor env add onnxruntime==1.24.4 --name"
    yield lambda: demand(f"{text} a", {}), end_at("Python|python", lambda: demand(f"{text} b", {}))


@follow("--name")
def a_folder_that_is_no_environment(room: Room) -> Iterator[Pair]:
    environment_folder("a").mkdir(parents=True)
    record = {"release": "onnxruntime==1.24.4", "distributions": [], "python": "3"}
    environment_folder("b").mkdir()
    save_text(environment_folder("b") / RECORD, json.dumps(record))
    text = "doctor env add onnxruntime==1.24.4 --name"
    yield lambda: demand(f"{text} a", {}), end_at("Python|python", lambda: demand(f"{text} b", {}))


@follow("--text-pair")
def a_question_without_a_text(room: Room) -> Iterator[Pair]:
    pytest.importorskip("tokenizers")
    texts.write_reader(room.folder / "f", "BertForQuestionAnswering")
    places = {"F": str(room.folder / "f")}
    yield (
        lambda: demand("run F here", places),
        lambda: demand("run F here --text-pair 'a cat sat here'", places),
    )


@follow("--text-pair")
def two_texts_for_a_model_that_takes_one(room: Room) -> Iterator[Pair]:
    pytest.importorskip("tokenizers")
    texts.write_reader(room.folder / "f", "BertForTokenClassification", id2label={"0": "animal"})
    places = {"F": str(room.folder / "f")}
    yield (
        lambda: demand("run F here --text-pair cat", places),
        lambda: demand("run F here cat", places),
    )


@follow("--opt-level", "--precision")
def a_result_that_does_not_load(room: Room) -> Iterator[Pair]:
    """No kernel for float16 is there."""
    real = convert.ask_once

    def ask(job: Any) -> object:
        if "float16" in read_facts(file.load(job.models[MAIN])).precisions:
            raise WorkerFailed(Failure("no kernel", ""), cast(Worker, None))
        return real(job)

    room.patch.setattr(convert, "ask_once", ask)
    with prepare(room.folder, "M NEW") as places:
        yield (
            lambda: demand("convert M NEW --precision fp16", places),
            lambda: demand("convert M NEW --opt-level basic", places),
        )


@follow("--port")
def a_port_of_the_page_that_is_taken(room: Room) -> Iterator[Pair]:
    with prepare(room.folder) as places:

        def act(port: str) -> None:
            LiveServer(Watched((), room.folder), int(port)).server_close()

        yield lambda: act(places["TAKEN"]), lambda: act("0")


@follow("--grpc-port")
def a_port_of_grpc_that_is_taken_meanwhile(room: Room) -> Iterator[Pair]:
    async def listen(port: str) -> None:
        make_grpc_server(f"127.0.0.1:{port}")

    with prepare(room.folder) as places:
        yield lambda: asyncio.run(listen(places["TAKEN"])), lambda: asyncio.run(listen("0"))


@follow("--processes")
def replicas_that_do_not_fit(room: Room) -> Iterator[Pair]:
    yield lambda: divide_cluster([4, 2], 4, 2), lambda: divide_cluster([4, 2], 4, 1)


@follow("--original", "--on")
def a_package_no_faster_than_the_original(room: Room) -> Iterator[Pair]:
    def refuse(_: object, source: Any) -> str:
        return "" if "as-is" in source.plan.plan else "no"

    room.patch.setattr(OnnxFile, "refuses", refuse)
    with prepare(room.folder, "RUN NEW") as places:
        yield (
            lambda: demand("pack RUN --for onnx -o NEW", places),
            lambda: demand("pack RUN --for onnx -o NEW --original", places),
        )


@follow("--plan", "--for")
def a_package_slower_than_its_limit(room: Room) -> Iterator[Pair]:
    bundle, slow = make_bundle(room.folder / "a.ortune"), Replay("a test", 90.0, (1.9, 1.8, 2.0))

    def act(limit: float) -> None:
        package([bundle], room.folder / "out", Notes(found=slow, limit=limit))

    yield lambda: act(0.5), lambda: act(1.9)


@follow("--time")
def a_goal_for_which_there_is_too_little_time(room: Room) -> Iterator[Pair]:
    def search(minutes: float) -> None:
        Machine(lambda one: 4.0).found(60 * minutes)

    def search_as_told() -> None:
        with pytest.raises(OrtuneError) as caught:
            search(10)
        told = re.search(r"--time (\d+)m", caught.value.fix)
        assert told is not None
        search(int(told[1]))

    yield lambda: search(10), search_as_told


@follow("--time")
def a_build_that_is_out_of_time(room: Room) -> Iterator[Pair]:
    def build(seconds: float) -> None:
        with time_limit.at_most(seconds):
            time_limit.check_time()

    yield lambda: build(0), lambda: build(60)


SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
exec sh -c "$3"
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    return Room(tmp_path, monkeypatch)


def test_a_device_that_does_not_answer_is_tried_by_hand(room: Room) -> None:
    """The fix is a whole command, whose `--version` is Python's; it shows the reason."""
    program = room.folder / "ssh"
    save_text(program, SSH).chmod(0o755)
    room.patch.setenv("PATH", f"{room.folder}:/usr/bin:/bin")
    checked = check_device(Device("pi5", "pi@pi5", "/no/python", str(room.folder / "there")))
    (command,) = re.findall(r"`(.+--version.*)`", checked.fix)
    tried = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    assert tried.returncode and "/no/python" in tried.stderr


def test_no_option_is_advised_where_none_helps(tmp_path: Path) -> None:
    """None makes a file load whose source does not, what dies at once live, one layer two."""
    function = "import os\ndef judge(*_, **__): os._exit(3)\n"
    with prepare(tmp_path, "UNLOADED M NEW D O") as places:
        places["E"] = f"{save_text(tmp_path / 'e.py', function)}:judge"
        for refused in (
            "convert UNLOADED NEW --precision fp16",
            "verify M M --evaluate E",
            "apply M int8-static qoperator --data D -o O",
        ):
            code, _, fix = run(refused, places)
            assert code == 2 and not set(OPTION.findall(fix)), fix


# --- modules of PyTorch -------------------------------------------------------------------------


MODULES = """
import torch

class Narrow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.out(x)

class Branch(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] < 3 else x * 3
"""


@contextmanager
def write_modules(room: Room) -> Iterator[Any]:
    """Write modules where they are found, and yield PyTorch."""
    torch = pytest.importorskip("torch")
    save_text(room.folder / "modules_to_follow.py", MODULES)
    room.patch.chdir(room.folder)
    with zygote.importing("torch"):
        yield torch


def export(name: str = "Branch", **more: Any) -> None:
    asked = {"exporter": "torchscript", "dynamic": "x:0=batch", "inputs": "x=2x4"} | more
    ot.export(f"modules_to_follow:{name}", out="new.onnx", **asked)


@follow("--dynamic", "--tolerance")
def a_file_that_is_right_at_one_size_alone(room: Room) -> Iterator[Pair]:
    with write_modules(room):
        yield export, lambda: export(dynamic=())


@follow("--tolerance")
def a_file_that_is_nearly_right(room: Room) -> Iterator[Pair]:
    with write_modules(room):
        yield export, lambda: export(tolerance=1.0)


@follow("--input")
def a_module_that_does_not_say_what_it_takes(room: Room) -> Iterator[Pair]:
    with write_modules(room):
        yield lambda: export(inputs=(), dynamic=()), lambda: export(dynamic=())


@follow("--input", "--range")
def a_module_that_takes_something_else(room: Room) -> Iterator[Pair]:
    with write_modules(room):
        yield lambda: export("Narrow", inputs="x=2x5"), lambda: export("Narrow")


@follow("--unsafe-pickle")
def weights_beside_an_object(room: Room) -> Iterator[Pair]:
    with write_modules(room) as torch:
        path, state = room.folder / "w.pt", {"weight": torch.ones(2)}
        torch.save({"state_dict": state, "more": Path("x")}, path)
        yield lambda: read_checkpoint(path), lambda: read_checkpoint(path, unsafe=True)


@follow("--state-dict-key")
def several_state_dicts(room: Room) -> Iterator[Pair]:
    with write_modules(room) as torch:
        path, state = room.folder / "w.pt", {"weight": torch.ones(2)}
        torch.save({"raw": state, "ema": state}, path)
        yield lambda: read_checkpoint(path), lambda: read_checkpoint(path, "ema")


@follow("--state-dict-key")
def a_state_dict_that_lies_deeper(room: Room) -> Iterator[Pair]:
    with write_modules(room) as torch:
        path, state = room.folder / "w.pt", {"weight": torch.ones(2)}
        torch.save({"training": {"models": {"raw": state, "ema": state}}}, path)
        yield lambda: read_checkpoint(path), lambda: read_checkpoint(path, "training.models.ema")


@follow("--state-dict-key")
def a_state_dict_of_another_module(room: Room) -> Iterator[Pair]:
    with write_modules(room) as torch:
        path, filled = room.folder / "w.pt", torch.nn.Linear(3, 2)
        torch.save({"raw": filled.state_dict(), "other": {"x": torch.ones(1)}}, path)

        def fill(key: str) -> None:
            fill_module(filled, path, read_checkpoint(path, key))

        yield lambda: fill("other"), lambda: fill("raw")


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_a_fix_says_helps(name: str, room: Room) -> None:
    options, make = SITUATIONS[name]
    with make(room) as (refused, followed):
        with pytest.raises(OrtuneError) as caught:
            refused()
        assert options <= set(OPTION.findall(caught.value.fix)), caught.value.fix
        followed()


def test_an_option_that_a_fix_names_is_followed() -> None:
    named = {option for fix in list_fixes() for option in OPTION.findall(fix.text)}
    shown = {option for pair in FOLLOWED.items() for option in list_changes(*pair)}
    shown |= {option for options, _ in SITUATIONS.values() for option in options}
    assert not named - OF_OTHER_PROGRAMS - shown - ELSEWHERE
