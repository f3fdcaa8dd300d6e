"""The overhead over OpenVINO's own API: its summary, and that both sides compute the same."""

from __future__ import annotations

import cProfile
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import ortune as ot
from ortune.backends.openvino import Openvino
from ortune.backends.runtimes.openvino import native
from ortune.cli.main import BAD, main
from ortune.core.backend import VERIFIED
from ortune.core.hardware import gpu

pytest.importorskip("torch")
from benchmarks.gpu import __main__ as bench
from benchmarks.gpu import found, levels
from benchmarks.gpu import models as gpu_models
from benchmarks.gpu.steps import Step
from benchmarks.speed import growth
from benchmarks.speed import openvino_overhead as overhead


def rounds(ratio: float, noise: float = 0.01) -> list[list[tuple[float, float]]]:
    rng = np.random.default_rng(1)
    return [
        [(1e6, 1e6 * ratio * float(rng.normal(1, noise))) for _ in range(50)] for _ in range(8)
    ]


def test_the_ratio_lies_in_its_interval() -> None:
    found = overhead.summary(rounds(1.01))
    ratio = found["ratio"]
    assert ratio["low"] < 1.01 < ratio["high"]
    assert ratio["high"] - ratio["low"] < 0.01
    assert found["within"] is True
    assert (found["rounds"], found["turns"]) == (8, 400)


def test_what_costs_more_is_not_within() -> None:
    assert overhead.summary(rounds(1.05))["within"] is False


def test_rounds_that_differ_widen_it() -> None:
    """A few lucky places in memory are no proof."""
    lucky = [*rounds(1.0, 0.001)[:4], *rounds(1.05, 0.001)[:4]]
    assert overhead.summary(lucky)["within"] is False


def test_the_properties_are_those_of_the_plan() -> None:
    assert Openvino(threads=1).build_properties() == overhead.PROPERTIES
    assert str(Openvino(threads=1)) == overhead.PLAN


@pytest.mark.skipif(not native.is_openvino_installed(), reason="needs openvino")
def test_both_sides_of_a_round_answer_alike(tmp_path: Path) -> None:
    path = tmp_path / "relu.onnx"
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1,64] x) => (float[1,64] y) { y = Relu(x) }"""
    onnx.save(onnx.parser.parse_model(text), path)
    feeds = {"x": np.linspace(-1, 1, 64, dtype=np.float32)[None]}
    for number, shared in ((0, False), (1, True)):
        turns = overhead.taken(path, feeds, number, shared, seconds=0.02)
        assert len(turns) >= 4
        assert all(min(pair) > 0 for pair in turns)
    with pytest.raises(AssertionError):
        overhead.agree(overhead.request(path, feeds, False)(), {"y": -feeds["x"]})


# Verbs that run nothing call four times as many functions for four times as many nodes.


FEW, MANY = 100, 400
KINDS = ("Identity in a row", "Fan of different nodes", "If in a row", "Outputs")


def calls(kind: str, verb: str, nodes: int) -> int:
    growth.write_models(kind, nodes, Path())
    profile = cProfile.Profile()
    profile.enable()
    code = main(list(growth.VERBS[verb]))
    profile.disable()
    assert code != BAD
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("verb", growth.VERBS)
def test_calls_grow_as_nodes_do(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls("Relu in a row", verb, FEW)  # what is imported and looked up once
    for kind in KINDS:
        few, many = (calls(kind, verb, nodes) for nodes in (FEW, MANY))
        assert many < 1.3 * (MANY / FEW) * few, f"{kind}: {few} calls, then {many}"


def test_a_command_is_timed_or_its_refusal_noted(tmp_path: Path) -> None:
    growth.write_models("Outputs", 60, tmp_path)
    seconds, refusal = growth.time_command(("inspect", "a.onnx"), tmp_path, 60)
    assert seconds is not None and 0 < seconds < 60 and not refusal
    seconds, refusal = growth.time_command(("inspect", "none.onnx"), tmp_path, 60)
    assert seconds is not None and refusal.startswith("ortune inspect: ")


# What of the GPU's benchmark needs no GPU: its silence, its steps, its judgement.


ROOT = Path(__file__).resolve().parents[3]


def test_without_a_device_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "list_gpus", lambda: ())
    assert bench.main(["--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "not run: no device\n"
    assert not (tmp_path / "out").exists()


def test_a_step_that_fails_or_has_no_time_lets_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [Step("unheard-of", 60), Step("tensorrt", 60)]
    monkeypatch.setattr(bench, "find_steps", lambda names: steps)
    assert bench.main(["--dry", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "unheard-of: exit code 1" in said and "tensorrt: exit code 0" in said
    assert "missing" in json.loads((tmp_path / "tensorrt.json").read_text())
    assert bench.main(["--dry", "--out", str(tmp_path), "--seconds", "5"]) == 1
    assert "tensorrt: left out" in capsys.readouterr().out


def test_answers_are_compared_in_decibels() -> None:
    one = [np.ones(4)]
    assert levels.compute_snr(one, one) == pytest.approx(300)
    assert levels.compute_snr(one, [np.full(4, 1.1)]) == pytest.approx(20)
    assert levels.compute_snr(one, [np.full(4, np.nan)]) is None


def test_the_best_by_hand_is_the_fastest_within_the_budget() -> None:
    times = {"ortune": [2.0, 2.2], "right": [1.0, 1.1], "wrong": [0.1, 0.1], "nan": [0.1, 0.1]}
    race = found.judge_race(times, {"ortune": 90.0, "right": 50.0, "wrong": 12.0, "nan": None})
    assert race["best_by_hand"] == "right"
    assert race["found_over_best"] == pytest.approx([2.0] * 3)


def test_the_models_run(tmp_path: Path) -> None:
    small = tmp_path / "small.onnx"
    onnx.save(gpu_models.residual(side=32), small)
    onnx.checker.check_model(small, full_check=True)
    sample = gpu_models.samples(small)[0]
    with ot.load(small, on="cpu(threads=1)") as engine:
        (scores,) = engine(**sample).values()
    assert scores.shape == (8, 1000) and np.isfinite(scores).all() and scores.std() > 0


def test_what_is_called_verified_has_passed_its_tests() -> None:
    for path in VERIFIED.values():
        results = json.loads((ROOT / path).read_text())
        assert any(" passed" in line for line in results["tests"]["said"])
