"""Fixes that name neither an option nor a verb are followed: files, spellings, settings, data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortune as ot
from ortune.analysis.calibration_quality.calibrate import calibrate
from ortune.analysis.conversion.steps import make_fold_steps
from ortune.analysis.costs import cost
from ortune.analysis.costs.requests import Terms
from ortune.cli.inspect import Tables
from ortune.core import hub, settings
from ortune.core.errors import BadData, OrtuneError
from ortune.core.facts import TensorSpec
from ortune.core.plugins import catalog
from ortune.core.reading import read_step
from ortune.core.step import Transform
from ortune.data import feeds
from ortune.data.sentences import read_rows
from ortune.data.synthetic import generate_feeds
from ortune.graph.io import file
from ortune.search import optimize
from tests.unit.following import (
    Act,
    Room,
    Situation,
    Value,
    add_situation,
    demand,
    end_at,
    follow_situation,
    follow_value,
)
from tests.unit.quantizing import model_of, normal

MODEL = "g (float[b, 32] x) => (float[b, 32] y) { m = MatMul(x, w) y = Relu(m) }"
PLAIN = "g (float[b, 32] x) => (float[b, 32] y) { y = Relu(x) }"
OTHER = "g (float[b, 32] x) => (float[b, 32] z) { z = Relu(x) }"
X = TensorSpec("x", "float32", (None, 32))


def save(room: Room, text: str = MODEL, name: str = "m.onnx") -> Path:
    weights = {"w": normal(32, 32)} if "w)" in text else {}
    return Path(file.save(model_of(text, weights), room.folder / name))


def save_samples(room: Room, rows: int = 4) -> Path:
    np.savez(room.folder / "d.npz", x=normal(rows, 32))
    return room.folder / "d.npz"


def load(room: Room, source: Any, *inputs: TensorSpec) -> object:
    return feeds.load_feeds(source, inputs or (X,), room.folder / "loaded")


def read_toml(room: Room, text: str) -> object:
    return settings.read_settings(
        room.write("a.toml", text), ["executor", "cache", "unsafe_pickle", "data"]
    )


def fold(*outputs: str) -> object:
    return make_fold_steps(None, None, outputs)


def name_key(room: Room, key: str) -> None:
    """Write a key of preprocess.toml; its value is not the matter."""
    try:
        make_fold_steps(room.write("p.toml", f"{key} = 1\n"), None, ())
    except BadData as error:
        if "unknown key" in error.what:
            raise


def compare(room: Room, **thresholds: float) -> object:
    path = Path(__file__).parents[1] / "fixtures" / "before_rooms" / "bench.json"
    return ot.compare([path, path], thresholds=thresholds)


def read_share(text: str) -> float:
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def make_up(dtype: str, text: str, folder: Path) -> object:
    low, _, high = text.partition("..")
    spec = TensorSpec("x", dtype, (None, 4))
    return generate_feeds([spec], folder, shapes={}, ranges={"x": (float(low), float(high))})


def list_plugins(text: str) -> object:
    base = catalog.base_of(text)
    return [catalog.load_plugin(base, name) for name in catalog.list_plugins(base)]


VALUES = {
    "a threshold of compare": Value(
        lambda room, text: compare(room, latency=read_share(text)), "-1", r"[\d.]+%?\b"
    ),
    "hours of a day": Value(lambda _, text: Terms(1.0, hours_per_day=float(text)), "25", r"\d+"),
    "an output that is folded": Value(
        lambda room, text: fold(text), "Top K!", r"(?:argmax|uint8|softmax|top-k\(k=5\))"
    ),
    "a key of preprocess.toml": Value(name_key, "sise", r"\b[a-z_]{3,}\b(?=,|$)"),
    "no step": Value(
        lambda room, text: ot.apply(save(room), text.split(), out=room.folder / "o.onnx"),
        "",
        r"such as (\S+)",
    ),
    "a table of inspect": Value(lambda _, text: Tables().read(text), "edges", r"\b\w+s\b(?=,|$)"),
    "a folder of plug-ins": Value(lambda _, text: list_plugins(text), "oddities", r"\b\w+(?=,|$)"),
    "a setting with parentheses": Value(
        lambda _, text: read_step(f"int8-static(observer=mse, exclude=[{text}])"),
        "conv(a=1)",
        r"write (\w+)",
    ),
    "a range beyond float16": Value(
        lambda room, text: make_up("float16", text, room.folder), "-1e9..1e9", r"\S+\.\.\S+"
    ),
    "a range beyond bfloat16": Value(
        lambda room, text: make_up("bfloat16", text, room.folder), "-1e39..1e39", r"\S+\.\.\S+"
    ),
    "columns of a table of texts": Value(
        lambda room, text: [*read_rows(room.write("a.csv", f"{text}\nhello\n"))],
        "words",
        r": (text)\b",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_what_a_fix_spells_is_taken(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    follow_value(VALUES[name], Room(tmp_path, monkeypatch))


SITUATIONS: dict[str, tuple[str, Situation]] = {}
follow = lambda said: add_situation(SITUATIONS, said)  # noqa: E731


@follow("give at least one sample")
def a_source_of_frames_without_samples(room: Room) -> Iterator[tuple[Act, Act]]:
    code = "import numpy as np\nX = np.ones((1, 32), np.float32)\n"
    code += "def none():\n    yield from ()\ndef one():\n    yield {'x': X}\n"
    code += "def frame(engine, sample):\n    return engine(x=sample['x'])\n"
    room.write("frames_to_follow.py", code)
    room.patch.chdir(room.folder)
    asked = {"end_to_end": "frames_to_follow:frame", "seconds": 0.1, "sets": 1}
    model = save(room)
    yield (
        lambda: ot.bench(model, data="frames_to_follow:none", **asked),
        lambda: ot.bench(model, data="frames_to_follow:one", **asked),
    )


@follow("every=True")
def a_cache_of_a_part(room: Room) -> Iterator[tuple[Act, Act]]:
    model, data = save(room), save_samples(room)
    yield (
        lambda: calibrate(model, data=data).save_tensorrt(room.folder / "c"),
        lambda: calibrate(model, data=data, every=True).save_tensorrt(room.folder / "c"),
    )


@follow("give two names")
def two_results_of_one_name(room: Room) -> Iterator[tuple[Act, Act]]:
    model, data, out = save(room), save_samples(room), room.folder / "r"
    yield (
        lambda: calibrate(model, data=data, out=out, tensorrt_cache=out),
        lambda: calibrate(model, data=data, out=out, tensorrt_cache=room.folder / "c"),
    )


@follow("leave it out, or add .* such as int8-static")
def noise_without_ranges(room: Room) -> Iterator[tuple[Act, Act]]:
    model, data, out = save(room), save_samples(room), room.folder / "o.onnx"

    def act(*steps: str, **more: Any) -> None:
        ot.apply(model, steps, data=data, out=out, force=True, **more)

    def both() -> None:
        act("simplify")
        act("simplify", "int8-static", augment="noise")

    yield lambda: act("simplify", augment="noise"), both


@follow("lower levels")
def a_load_test_that_kept_nothing(room: Room) -> Iterator[tuple[Act, Act]]:
    row = {"keeps_up": True, "per_second": 9.0, "batch": 1, "model": "m", "backend": "cpu"}
    row |= {"workload": "load", "concurrency": 1, "rate": None}
    content = {"rows": [row], "slo": "p99<=5ms", "kept": None}
    yield (
        lambda: cost.of_load_test(content, Path("x.json")),
        lambda: cost.of_load_test(content | {"kept": 0}, Path("x.json")),
    )


@follow("same outputs")
def models_of_other_outputs(room: Room) -> Iterator[tuple[Act, Act]]:
    one, other = save(room, PLAIN, "a.onnx"), save(room, OTHER, "b.onnx")
    yield lambda: ot.verify(one, other), lambda: ot.verify(one, save(room, PLAIN, "c.onnx"))


@follow("another name, or --force")
def a_folder_of_a_bisection_that_is_there(room: Room) -> Iterator[tuple[Act, Act]]:
    one = save(room, PLAIN)
    (room.folder / "held").mkdir()

    def act(name: str) -> None:
        ot.verify(one, one, bisect=True, out=room.folder / name)

    yield lambda: act("held"), lambda: act("new")


@follow("end it in a quantizer, such as")
def steps_that_set_no_precision(room: Room) -> Iterator[tuple[Act, Act]]:
    model, data = save(room), save_samples(room)

    def act(*steps: str) -> None:
        ot.sensitivity(model, data=data, steps=steps, time=0.1)

    yield lambda: act("simplify"), lambda: act("simplify", "int8-weights")


def refuse_search(*_: object) -> None:
    raise OrtuneError("the search begins", fix="wait")


@follow("another -o folder")
def a_demo_in_a_folder_that_holds_something(room: Room) -> Iterator[tuple[Act, Act]]:
    room.write("held/a.txt")
    room.patch.setattr(optimize, "run", refuse_search)
    yield (
        lambda: demand("demo", "-o", room.folder / "held"),
        end_at("the search begins", lambda: demand("demo", "-o", room.folder / "new")),
    )


@follow("another -o folder")
def a_demo_in_the_folder_of_another(room: Room) -> Iterator[tuple[Act, Act]]:
    room.write("held/demo.txt", "other complete")
    room.patch.setattr(optimize, "run", refuse_search)
    yield (
        lambda: demand("demo", "-o", room.folder / "held"),
        end_at("the search begins", lambda: demand("demo", "-o", room.folder / "new")),
    )


@follow("leave it out")
def a_name_where_no_environment_is_added(room: Room) -> Iterator[tuple[Act, Act]]:
    where = ("doctor", "--executor", "ssh:none.toml")
    yield lambda: demand(*where, "--name", "a"), end_at("none.toml", lambda: demand(*where))


@follow("give one of them: cosine>=0.99")
def a_list_of_budgets_where_one_is_asked_for(room: Room) -> Iterator[tuple[Act, Act]]:
    model = save(room)
    yield (
        lambda: ot.verify(model, model, budget="cosine>=0.99|0.9"),
        lambda: ot.verify(model, model, budget="cosine>=0.99"),
    )


@follow("download the folder again")
def settings_of_a_folder_that_are_a_list(room: Room) -> Iterator[tuple[Act, Act]]:
    yield (
        lambda: hub.read_json(room.write("config.json", "[]")),
        lambda: hub.read_json(room.write("config.json", "{}")),
    )


@follow("one public class")
def a_plugin_of_two_classes(room: Room) -> Iterator[tuple[Act, Act]]:
    kind = "from ortune.core.step import Transform\n"
    one = "class {}(Transform):\n    def apply(self, model):\n        return 0\n"
    room.patch.syspath_prepend(room.folder)
    entries = {"twice": "twice_to_follow", "once": "once_to_follow"}
    room.write("twice_to_follow.py", kind + one.format("A") + one.format("B"))
    room.write("once_to_follow.py", kind + one.format("A"))
    real = catalog.map_modules
    room.patch.setattr(catalog, "map_modules", lambda folder: real(folder) | entries)
    yield (
        lambda: catalog.load_plugin(Transform, "twice"),
        lambda: catalog.load_plugin(Transform, "once"),
    )


RULES = """
from ortune.core.step import Transform

class Whole(Transform):
    def apply(self, model):
        return 0

class Half(Transform):
    pass
"""


@follow(r"path of a Python file, such as \./my_rules\.py:NAME")
def a_file_of_rules_that_is_not_there(room: Room) -> Iterator[tuple[Act, Act]]:
    room.write("my_rules.py", RULES)
    room.patch.chdir(room.folder)
    yield lambda: read_step("./rules.py:Whole"), lambda: read_step("./my_rules.py:Whole")


@follow("write .*:Whole$")
def a_rule_misspelled(room: Room) -> Iterator[tuple[Act, Act]]:
    path = room.write("my_rules.py", RULES)
    yield lambda: read_step(f"{path}:Whol"), lambda: read_step(f"{path}:Whole")


@follow("give it apply")
def a_rule_without_its_function(room: Room) -> Iterator[tuple[Act, Act]]:
    path = room.write("my_rules.py", RULES)
    yield lambda: read_step(f"{path}:Half"), lambda: read_step(f"{path}:Whole")


@follow("name the step on the command line|by its spelling")
def a_step_of_a_stored_result(room: Room) -> Iterator[tuple[Act, Act]]:
    path = room.write("my_rules.py", RULES)
    stored = catalog.find_plugin_class(f"transforms/{path}:Whole", ())
    yield lambda: stored().apply(None), lambda: read_step(f"{path}:Whole").apply(model_of(PLAIN))


for key, said in {
    "executor = 'ssh:x'": "executor, which connects",
    "cache = 's3://x'": "cache, which is read",
    "unsafe_pickle = true": "unsafe_pickle, which runs",
}.items():

    @follow("command line")
    def a_setting_that_only_a_person_may_give(
        room: Room, key: str = key, said: str = said
    ) -> Iterator[tuple[Act, Act]]:
        yield lambda: read_toml(room, key), lambda: read_toml(room, "data = 'x'")

    SITUATIONS[said] = SITUATIONS.pop("a_setting_that_only_a_person_may_give")


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_a_fix_says_helps(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    follow_situation(SITUATIONS[name], Room(tmp_path, monkeypatch))
