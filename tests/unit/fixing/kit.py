"""What tests of fixes share: files that commands name, situations, and what was raised where."""

from __future__ import annotations

import inspect
import json
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from ortune_toys.backends.precompiled import Precompiled

from ortune.backends.cpu import Cpu
from ortune.bundle.pack import pack
from ortune.core.errors import OrtuneError
from ortune.graph.io import file
from ortune.search.experiment import golden
from tests.unit import following, studies
from tests.unit.fixing.sites import find_raised, list_sites
from tests.unit.following import Room
from tests.unit.quantizing import model_of, normal

ROOMS = Path(__file__).parents[2] / "fixtures" / "before_rooms"
MODEL = "g (float[b, 32] x) => (float[b, 32] y) { m = MatMul(x, w) y = Relu(m) }"
TWO = MODEL.replace("y = Relu(m)", "n = MatMul(m, v) y = Relu(n)")
FIXED = "g (float[2, 8] x) => (float[2, 8] y) { m = MatMul(x, w) y = Relu(m) }"
SINGLE = "g (float[b, 8] x) => (float[b, 8] y) <int64[2] s = {1, 8}> { y = Reshape(x, s) }"
INTEGER = "g (int64[b, 4] i) => (int64[b, 4] y) { y = Abs(i) }"
RANDOM = "g (float[b, 32] x) => (float[b, 32] y) { r = RandomNormalLike(x) y = Add(r, x) }"
UNLOADED = """g (float[b, 32] x) => (float[b, 32] y) {
    c = Cast<to=16>(x) s = Sigmoid(c) f = Cast<to=1>(s) y = MatMul(f, w) }"""
OWN = '<ir_version: 8, opset_import: ["": 17, "own": 1, "com.microsoft": 1]> '
TABLE = "g (int64[b] i) => (float[b, 4] y) { y = Gather(table, i) }"
THREE = "g (float[b, s] x) => (float[b, s] y) { y = Relu(x) }"
UNTYPED = "g (float[b, 32] x) => (float[b, 32] y) { m = own.Thing(x) y = Relu(m) }"
SEQUENCE = "g (float[b, 32] x) => (seq(float[b, 32]) y) { y = SequenceConstruct(x) }"
DAMAGED = '{"format": "ortune-ranges", "version": 1}'
INVENTORY = '[pi5]\nhost = "pi@pi5"\npython = "/no/python"\n'
W = normal(32, 32)
NAN = "g (float[b, 32] x) => (float[b, 32] y, float[b, 32] z) { y = Log(x) z = Relu(x) }"


def save(path: Path, text: str, **weights: Any) -> Path:
    return Path(file.save(model_of(text, weights), path))


def save_samples(path: Path) -> Path:
    np.savez(path, x=np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32))
    return path


def save_text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def save_rows(path: Path, *rows: dict[str, object]) -> Path:
    return save_text(path, json.dumps({"rows": rows}))


def save_ragged(path: Path) -> None:
    path.mkdir()
    for size in (3, 4):
        np.savez(path / f"{size}.npz", x=np.ones((1, size), np.float32))


def fill_folder(path: Path) -> None:
    path.mkdir()
    save_text(path / "own.txt", "mine")


def rename_rows(path: Path, model: str, **more: object) -> Path:
    """Write a file of `bench` again, with its row twice under another name."""
    content = json.loads((ROOMS / "bench.json").read_text(encoding="utf-8"))
    content["rows"] = [row | {"model": model} | more for row in content["rows"][:1]] * 2
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
    return studies.write_run(study)


def make_wrong_run(path: Path) -> Path:
    """Write a run whose provider compiles models that answer otherwise."""
    return studies.write_run(studies.study(path, backend=Precompiled(harm="wrong")))


def quantize(path: Path, step: str = "int8-dynamic") -> None:
    source = save(path.with_name("source.onnx"), MODEL, w=normal(32, 32))
    demand(f"apply M {step} -o O", {"M": str(source), "O": str(path)})


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
    "SINGLE": ("single.onnx", lambda path: save(path, SINGLE)),
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
    "HALF": ("half.onnx", lambda path: quantize(path, "fp16")),
    "TABLE": ("table.onnx", lambda path: save(path, TABLE, table=normal(10, 4))),
    "WHOLE": ("whole.onnx", lambda path: save(path, THREE.replace("b, s", "seq, 3"))),
    "THREE": ("three.onnx", lambda path: save(path, THREE)),
    "RAGGED": ("ragged", save_ragged),
    "OWNOP": ("ownop.onnx", lambda path: save(path, OWN + MODEL.replace("Relu", "own.Relu"), w=W)),
    "NEWER": ("newer.onnx", lambda path: save(path, MODEL.replace("Relu", "Frobnicate"), w=W)),
    "UNTYPED": ("untyped.onnx", lambda path: save(path, OWN + UNTYPED, w=normal(32, 32))),
    "SEQ": ("seq.onnx", lambda path: save(path, SEQUENCE)),
    "EMPTY": ("empty.onnx", lambda path: save_text(path, "")),
    "FULL": ("full", fill_folder),
    "NOROWS": ("norows.json", save_rows),
    "ODD": ("odd.json", lambda path: save_rows(path, {"model": "m", "backend": "cpu"})),
    "FAILED": ("failed.json", lambda path: save_rows(path, {"error": "died"})),
    "RATES": ("rates.json", lambda path: rename_rows(path, "m.onnx", measure="frames")),
    "DAMAGED": ("damaged.json", lambda path: save_text(path, DAMAGED)),
    "TRT": ("trt", lambda path: save_text(path, "TRT-x\nx: 3f800000\n")),
    "BLANK": ("blank", lambda path: save_text(path, "# only\n")),
    "TOKENS": ("tokens", lambda path: save_text(path, "0123456789\n")),
    "INVENTORY": ("devices.toml", lambda path: save_text(path, INVENTORY)),
    "J2": ("j2.json", lambda path: rename_rows(path, "one.onnx")),
    "K2": ("k2.json", lambda path: rename_rows(path, "other.onnx")),
    "O": ("o.onnx", lambda path: None),
    "J": ("j.json", lambda path: None),
    "NEW": ("new", lambda path: None),
    "NEW.ortune": ("new.ortune", lambda path: None),
    "RUN": ("a", lambda path: studies.write_run(studies.study(path))),
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
    return following.run(*(places.get(word, word) for word in shlex.split(text)))


def demand(text: str, places: Mapping[str, str]) -> None:
    """Run a command and raise what is amiss."""
    following.demand(*(places.get(word, word) for word in shlex.split(text)))


# --- situations ---------------------------------------------------------------------------------


Pair = tuple[Callable[[], object], Callable[..., object]]


class Situation(NamedTuple):
    """The site of a fix, what the fix says among else, and the refused act and the followed."""

    site: str
    said: tuple[str, ...]
    make: Callable[[Room], AbstractContextManager[Pair]]


SITUATIONS: dict[str, dict[str, Situation]] = {}
"""Module -> name -> situation."""


def follow(site: str, *said: str) -> Callable[[Callable[[Room], Iterator[Pair]]], None]:
    """Register a situation of the module that this is called in.

    What it yields is the refused act, and the one of the fix, which may take the fix.
    """

    def register(make: Callable[[Room], Iterator[Pair]]) -> None:
        situations = SITUATIONS.setdefault(make.__module__, {})
        assert make.__name__ not in situations, make.__name__
        situations[make.__name__] = Situation(site, said, contextmanager(make))

    return register


def check_situation(situation: Situation, room: Room) -> None:
    """See the fix, do what it says, and find another situation."""
    with situation.make(room) as (refused, followed):
        with recording() as raised, pytest.raises(OrtuneError) as caught:
            refused()
        assert all(word in caught.value.fix for word in situation.said), caught.value.fix
        check_site(situation.site, caught.value.fix, raised)
        followed(*[caught.value.fix][: len(inspect.signature(followed).parameters)])


Raised = list[tuple[str, list[str]]]


@contextmanager
def recording() -> Iterator[Raised]:
    """Yield a list that takes the fix of every error that is made, and the sites it may be of."""
    raised: Raised = []
    real = OrtuneError.__init__

    def note(self: OrtuneError, what: str, *, fix: str) -> None:
        real(self, what, fix=fix)
        raised.append((self.fix, find_raised(inspect.currentframe(), fix)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OrtuneError, "__init__", note)
        yield raised


def check_site(name: str, fix: str, raised: Raised) -> None:
    """Check that a fix comes from a site: by where it was made, or by its text if in a worker."""
    site = list_sites().get(name)
    assert site is not None, f"no fix stands at {name}"
    assert site.matches(fix), f"{name} says otherwise: {fix}"
    here = {place for said, places in raised if said == fix for place in places}
    assert not here or name in here, f"raised at {', '.join(here)}"
