"""A search on a cluster of Ray: nodes build ahead, time plans, and may be lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import ortune
from ortune.core.event import ignore_event
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe
from ortune.data.zoo.digit_cnn import DigitCnn
from ortune.search.recipe.ahead import BuildsAhead
from ortune.search.recipe.build import build_in
from ortune.search.recipe.built import Material, find_build

ray = pytest.importorskip("ray")
Cluster = pytest.importorskip("ray.cluster_utils").Cluster
pytestmark = pytest.mark.usefixtures("ray_apart")


def slow_builds_down() -> None:
    """Let builds of a process of Ray take three seconds more, which keep no CPU busy."""
    from ortune.search.recipe import ahead

    def build_slowly(*arguments: Any) -> Any:
        time.sleep(3)
        return build_in(*arguments)

    ahead.build_in = build_slowly


@dataclass
class RunningSearch:
    """A search that runs, and what it wrote."""

    process: subprocess.Popen[str]
    out: Path

    def finish(self) -> dict[str, Any]:
        """Return what it says at the end."""
        stdout, stderr = self.process.communicate(timeout=300)
        assert self.process.returncode in (0, 1), stderr
        answer: dict[str, Any] = json.loads(stdout)
        return answer

    def list_trials(self) -> list[dict[str, Any]]:
        """Return what its ledger holds."""
        ledger = self.out / "ledger.jsonl"
        lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.is_file() else []
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def cluster(ray_apart: None) -> Iterator[Any]:
    """A head that times, and four CPUs elsewhere that build."""
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(2):
        nodes.add_node(num_cpus=2)
    yield nodes
    nodes.shutdown()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    DigitCnn().write(folder)
    return folder


def start_search(
    digits: Path, out: Path, executor: str, address: str, *more: str
) -> RunningSearch:
    words = [sys.executable, "-P", "-m", "ortune.cli.main", "optimize", str(digits / "model.onnx")]
    words += ["--data", str(digits / "data"), "--calibration", str(digits / "calibration")]
    words += ["--batch", "32", "--on", "cpu(threads=1)", "--budget", "top1>=base-0.01"]
    words += ["--executor", executor, "-o", str(out), "--json", *more]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAY_ADDRESS": address},
    )
    return RunningSearch(process, out)


def list_timed_static(search: RunningSearch) -> list[dict[str, Any]]:
    """Return trials of int8 that were timed, and keep the budget on the samples of the search."""
    return [
        trial
        for trial in search.list_trials()
        if "int8-static" in json.dumps(trial["plan"]) and trial["ratio"] and trial["scores"]
        if trial["scores"][0]["verdict"] != "fails"
    ]


def list_recipes() -> list[Recipe]:
    """Return four recipes that need no samples."""
    texts = ("int8-weights", "int8-dynamic", "int8-dynamic(reduce_range=true)", "fp16")
    return [Recipe(text, (parse_plugin(Quantizer, text),)) for text in texts]


@contextmanager
def join_slowly(address: str) -> Iterator[None]:
    """Join a cluster whose builds take three seconds more."""
    environment = {
        "py_modules": [str(Path(ortune.__file__).parent)],
        "worker_process_setup_hook": slow_builds_down,
    }
    ray.init(address=address, runtime_env=environment, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def prepare_builds(model: Path, cache: Path) -> BuildsAhead:
    patient = {"longest_s": 60.0}  # this machine may be busy
    return BuildsAhead({"": model}, {"": Material()}, cache, "", ignore_event, **patient)


def test_plans_are_built_on_other_nodes_and_timed_here(
    cluster: Any, digits: Path, tmp_path: Path
) -> None:
    search = start_search(digits, tmp_path / "run", "ray", cluster.address, "--time", "2m")
    search.finish()
    assert list_timed_static(search), "one was timed and keeps the budget"
    notes = json.loads((search.out / "ending.json").read_text(encoding="utf-8"))["notes"]
    assert any(note.endswith("came from other nodes of the cluster") for note in notes)
    assert not any(note.startswith("0 builds") for note in notes)


def test_four_cpus_build_four_models_at_once(cluster: Any, digits: Path, tmp_path: Path) -> None:
    model, recipes, here = digits / "model.onnx", list_recipes(), tmp_path / "here"
    seconds = []
    with join_slowly(cluster.address):
        for place in ("first", "builds"):  # the first time Ray starts its processes
            ahead = prepare_builds(model, tmp_path / place)
            began = time.monotonic()
            ahead.begin(recipes)
            for recipe in recipes:
                ahead.take("", recipe)
            seconds.append(time.monotonic() - began)
    assert ahead.arrived == 4
    assert seconds[-1] < 4 * 3 / 3, "a third of what they take one after the other"
    for recipe in recipes:
        build_in(here, model, recipe, Material())
    for recipe in recipes:
        built = find_build(tmp_path / "builds", "model", recipe.steps)
        same = find_build(here, "model", recipe.steps)
        assert built is not None and same is not None and built.content == same.content


def test_a_build_whose_node_is_lost_is_made_on_another(digits: Path, tmp_path: Path) -> None:
    model, recipes = digits / "model.onnx", list_recipes()
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    first = nodes.add_node(num_cpus=1)
    with join_slowly(nodes.address):
        ahead = prepare_builds(model, tmp_path / "builds")
        ahead.begin(recipes[:1])
        time.sleep(2)
        nodes.add_node(num_cpus=1)
        nodes.remove_node(first, allow_graceful=False)
        ahead.take("", recipes[0])
    nodes.shutdown()
    assert ahead.arrived == 1
    assert find_build(tmp_path / "builds", "model", recipes[0].steps) is not None


def test_a_search_goes_on_where_the_node_that_timed_is_lost(digits: Path, tmp_path: Path) -> None:
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    first = nodes.add_node(num_cpus=1, resources={"target:box": 1})
    run = tmp_path / "run"
    search = start_search(digits, run, "ray#box", nodes.address, "--time", "2m")
    while search.process.poll() is None and len(search.list_trials()) < 2:
        time.sleep(0.2)
    nodes.add_node(num_cpus=1, resources={"target:box": 1})
    nodes.remove_node(first, allow_graceful=False)
    search.finish()
    nodes.shutdown()
    assert list_timed_static(search)
    notes = json.loads((run / "ending.json").read_text(encoding="utf-8"))["notes"]
    assert "the connection to the device broke: the trial is repeated" in notes
    trials = [trial for trial in search.list_trials() if trial["part"] == "search"]
    plans = [(json.dumps(trial["plan"]), trial["effort"]) for trial in trials]
    assert len(plans) == len(set(plans)), "nothing was tried twice"


def test_nodes_of_a_kind_time_plans_at_once_and_each_one_at_a_time(
    digits: Path, tmp_path: Path
) -> None:
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        home = {"HOME": str(tmp_path / name)}  # two nodes of one machine are one device by theirs
        nodes.add_node(num_cpus=1, resources={"target:box": 1}, env_vars=home)
    search = start_search(digits, tmp_path / "run", "ray#box", nodes.address, "--time", "1m")
    best = find_finalist(search)
    nodes.shutdown()
    local = start_search(digits, tmp_path / "alone", "local", "", "--time", "1m")
    assert best == find_finalist(local)
    timed = [t for t in search.list_trials() if t["part"] == "search" and t.get("device")]
    assert {trial["device"] for trial in timed} == {"box.1", "box.2"}
    first, second = (list_spans(search, device) for device in ("box.1", "box.2"))
    for spans in (first, second):
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert any(a[0] < b[1] and b[0] < a[1] for a in first for b in second), "both at once"


def find_finalist(search: RunningSearch) -> dict[str, Any]:
    """Return the steps of the first finalist: a busy machine may leave it unproved."""
    search.finish()
    final = next(trial for trial in search.list_trials() if trial["part"] == "final")
    recipe: dict[str, Any] = final["plan"]["recipe"]
    return recipe


def list_spans(search: RunningSearch, device: str) -> list[tuple[float, float]]:
    """Return from when to when workers of plans ran on a device; the original's live beside."""
    paths = (search.out / "workers").glob("*-search/device.json")
    traces = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return sorted((t["began"], t["ended"]) for t in traces if t["device"] == device)


def test_finalists_are_timed_on_each_kind_of_node(digits: Path, tmp_path: Path) -> None:
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for kind in ("board", "box"):
        (tmp_path / kind).mkdir()
        home = {"HOME": str(tmp_path / kind)}
        nodes.add_node(num_cpus=1, resources={f"target:{kind}": 1}, env_vars=home)
    more = ("--devices", "ray", "--time", "1m")
    search = start_search(digits, tmp_path / "run", "ray", nodes.address, *more)
    answer = search.finish()
    nodes.shutdown()
    accepted = {trial["key"] for trial in search.list_trials() if trial["part"] == "final"}
    for kind in ("board", "box"):
        ledger = search.out / "machines" / kind / "ledger.jsonl"
        trials = [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()]
        timed = {trial["key"] for trial in trials if trial["part"] == "final" and trial["ratio"]}
        assert timed and timed <= accepted
    assert {row["name"] for row in answer["machines"]} == {"board", "box"}


def test_a_kind_that_no_node_is_of(cluster: Any, digits: Path, tmp_path: Path) -> None:
    search = start_search(digits, tmp_path / "run", "ray#rpi5", cluster.address)
    _, stderr = search.process.communicate(timeout=120)
    assert search.process.returncode == 2
    assert "no node of the Ray cluster is of the kind 'rpi5'" in stderr
    assert "--resources=" in stderr
