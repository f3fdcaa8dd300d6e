"""The peers' race: goals, entries, who races, what scripts judge by, and the tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.peers import cases
from benchmarks.peers.entering import kept, racers, size
from benchmarks.peers.environments import share
from benchmarks.peers.goals import FACTOR, goal
from benchmarks.peers.making import Made, last_line, outcome
from benchmarks.peers.tools import judging
from benchmarks.sentences import cosine
from benchmarks.speed.budgets import SHAPES
from benchmarks.speed.race import Pilot
from benchmarks.tables.peers import beside, over, own, peers_race, place, rivals

from ortune.core.budget import Budget
from ortune.core.trial import Interval

BUDGET = "top1>=base-0.01"


@pytest.mark.parametrize(
    ("name", "metric", "drop"),
    [
        ("efficientnet-lite0", "top1", 0.01),
        ("minilm", "sentence cosine", 0.01),
        ("resnet50", "snr", 170.0),
    ],
)
def test_the_peers_goals_are_the_budgets_of_the_list(
    tmp_path: Path, name: str, metric: str, drop: float
) -> None:
    found = goal(SHAPES[name].budget, tmp_path, seconds=60.0)
    assert (found.metric, found.limit_s) == (metric, FACTOR * 60.0)
    assert found.drop == pytest.approx(drop)
    told = json.loads(found.told())
    assert told["data"] == str(tmp_path) and told["seconds"] == 60.0


@pytest.mark.parametrize("budget", ["cosine>=0.99", "snr>=base-1"])
def test_a_budget_that_the_scripts_cannot_judge_by_is_refused(tmp_path: Path, budget: str) -> None:
    with pytest.raises(ValueError, match="cannot judge"):
        goal(budget, tmp_path)


def test_the_scripts_score_as_ortune_does() -> None:
    rng = np.random.default_rng(0)
    expected = [
        {"last_hidden_state": rng.standard_normal((1, 5, 8)).astype(np.float32)} for _ in range(40)
    ]
    outputs = [
        {"last_hidden_state": one["last_hidden_state"] + rng.normal(0, k / 40, (1, 5, 8))}
        for k, one in enumerate(expected)
    ]
    snr = Budget.parse("snr(share=0)>=30").metric
    powers = np.array(
        [snr.record(one, two, None) for one, two in zip(expected, outputs, strict=True)]
    )
    assert judging.snr(outputs, expected, None) == pytest.approx(snr.aggregate(powers))
    each = sorted(cosine(*pair, None) for pair in zip(expected, outputs, strict=True))
    assert judging.sentence_cosine(outputs, expected, None) == pytest.approx(each[2])  # 38 of 40
    assert judging.snr(expected, expected, None) == judging.CAP_DB


def test_the_share_of_right_classes_is_counted_by_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "CACHE", tmp_path / "cache")
    (tmp_path / "data").mkdir()
    labels = np.array([0, 1, 1])
    images = np.eye(2, dtype=np.float32)[[0, 1, 0]]
    np.savez(tmp_path / "data" / "0.npz", image=images, label=labels)
    rows = cases.evaluation("toy", tmp_path)
    both = list(judging.samples(rows))
    outputs = [{"logits": feed["image"]} for feed, _ in both]
    assert [set(feed) for feed, _ in both] == [{"image"}] * 3
    assert judging.top1(outputs, outputs, [label for _, label in both]) == pytest.approx(2 / 3)
    assert cases.evaluation("toy", tmp_path) == rows


def test_a_stopped_call_says_after_how_long() -> None:
    assert outcome(None, "", "", False, 270.0)[1] == "no file in 270 s"


def test_large_files_stand_once(tmp_path: Path) -> None:
    for name, byte in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lib.so").write_bytes(bytes([byte]) * (1 << 18))
        (tmp_path / name / "small.py").write_text("same")
    saved = [share(tmp_path / name, tmp_path / "pool") for name in "abc"]
    assert saved == [0, 1 << 18, 0]
    one, two, three = (tmp_path / name / "lib.so" for name in "abc")
    assert one.samefile(two) and not one.samefile(three)
    assert (tmp_path / "c" / "lib.so").read_bytes() == bytes([1]) * (1 << 18)
    assert not (tmp_path / "a" / "small.py").samefile(tmp_path / "b" / "small.py")


def test_openvinos_own_format_has_two_files(tmp_path: Path) -> None:
    (tmp_path / "model.xml").write_bytes(b"12345")
    (tmp_path / "model.bin").write_bytes(b"123")
    assert size(tmp_path / "model.xml") == 8
    assert size(tmp_path / "none.onnx") is None
    assert Made("nncf", "accuracy control", "k", file="model.xml", kind="raced").path(
        "minilm"
    ).parts[-4:] == ("raced", "minilm", "accuracy-control", "model.xml")


def test_results_of_one_model_leave_the_others(tmp_path: Path) -> None:
    out = tmp_path / "race.json"
    for name in ("b", "a"):
        kept(out, name, {"is": name}, ("a", "b"), {"threads": 1})
    assert list(json.loads(out.read_text())["cases"]) == ["a", "b"]


def row(
    tool: str, recipe: str, value: float | None, backend: str = "cpu(threads=1)", **more: Any
) -> dict[str, Any]:
    ratio = value and {"value": value, "low": value - 0.01, "high": value + 0.01}
    on = "" if backend.startswith("cpu") else f" on {backend}"
    found = {
        "tool": tool, "recipe": recipe, "name": f"{tool}: {recipe}{on}", "backend": backend,
        "ratio": ratio, "raced": value is not None, "error": "", "holds": [BUDGET],
        "size": 5_000_000, "seconds": 31.4, "note": "", "scores": {"top1": 0.88},
    }  # fmt: skip
    return found | more


BF16 = "openvino(threads=1, precision=bf16)"


def pilots(rows: list[dict[str, Any]]) -> dict[str, Pilot]:
    return {
        one["name"]: Pilot(Interval(*one["ratio"].values()), 0.004, 1.0, 2.0)
        for one in rows
        if one["ratio"]
    }


def test_who_races() -> None:
    rows = [
        row("", "original", 1.0),
        row("ort", "static, per channel", 0.9, holds=[]),
        row("ort", "worst layers left out", 0.6),
        row("optimum", "static", 0.5),
        row("optimum", "dynamic", 0.9),
        row("nncf", "accuracy control", 0.40, "openvino(threads=1)"),
        row("nncf", "accuracy control", 0.38, BF16),
        row("quark", "INT8 default", 0.39, holds=[]),
        row("quark", "auto mixed precision", 2.0),
        row("onc", "autotune", None, error="died"),
        row("ortune", "int8", 0.95),
    ]
    assert racers(rows, pilots(rows)) == [
        "ort: static, per channel",
        "ort: worst layers left out",
        "optimum: static",
        f"nncf: accuracy control on {BF16}",
        "ortune: int8",
    ]


def case(*peers: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    mine = row("ortune", "int8", 0.4, name="ortune, all backends: int8", note="int8 @ cpu")
    rows = [
        row("", "original", 1.0, size=20_000_000, scores={"top1": 0.885}, seconds=None),
        mine,
        mine | {"name": "ortune, cpu: int8"},
        *peers,
    ]
    logs = {
        one["name"]: [[float(np.log(one["ratio"]["value"])) + 0.001 * k] for k in range(5)]
        for one in rows
        if one["ratio"] and one["raced"]
    }
    attempt = {"too_noisy": False, "seconds_a_pair": 2.5, "blocks": logs}
    tools = {"ort": {"install_s": 12.3, "bytes": 905e6, "error": ""}}
    return {"budget": BUDGET, "rows": rows, "attempts": [attempt], "tools": tools, **more}


def results(**cases: Any) -> dict[str, Any]:
    machine = {"cpu": "Some CPU", "instruction sets": "avx2 amx", "effective cpus": "2"}
    about = {"machine": machine, "versions": {"onnxruntime": "1"}, "seconds": 180.0}
    return about | {"stopped after": 270.0, "cases": cases}


def test_the_standing_is_against_every_peer_within_the_budget() -> None:
    slower = row("ort", "static, per channel", 0.5)
    assert place(case(slower), "all backends") == "first"
    assert place(case(slower, row("nncf", "default", 0.3, BF16)), "all backends") == "behind"
    assert place(case(slower, row("nncf", "default", 0.3, BF16)), "cpu") == "first"
    assert place(case(slower, row("quark", "x", 0.4)), "all backends") == "level"
    assert place(case(row("quark", "wrong", 0.1, holds=[])), "all backends") == "first"
    assert place(case(row("quark", "pilot", 0.1, raced=False)), "all backends") == "first"


def test_a_race_that_stayed_too_noisy_gives_no_verdict() -> None:
    one = case(row("ort", "static", 0.5))
    one["attempts"] = [one["attempts"][0] | {"too_noisy": True}] * 3
    assert place(one, "cpu") == "too noisy for a verdict"
    text = peers_race(results(resnet50=one))
    assert "3 of 3 races were too noisy, **the last one too: no verdict**." in text


def test_a_plan_outside_the_budget_is_not_first() -> None:
    one = case(row("ort", "static", 0.5))
    for each in one["rows"]:
        if each["tool"] == "ortune":
            each["holds"] = []
    assert place(one, "all backends") == "no plan within the budget"


def test_what_as_fast_peers_have_more_of_is_told() -> None:
    better = row("ort", "static", 0.4, scores={"top1": 0.89}, size=4_000_000)
    slow = row("optimum", "static", 0.6, scores={"top1": 0.9}, size=1)
    found = beside(case(better, slow), "all backends")
    assert found == [
        "onnxruntime's tools: static scores 0.89",
        "onnxruntime's tools: static has 4.0 MB",
    ]


def test_a_ratio_between_two_that_did_not_race_is_not_made_up() -> None:
    one = case(row("ort", "static", 0.5, raced=False))
    mine = own(one, "cpu")
    (other,) = rivals(one, "cpu")
    assert mine is not None and over(one, mine, other) is None


def test_the_table_has_all_files_and_what_failed() -> None:
    failed = row("modelopt", "int8", None, error="exit 1: a|b", seconds=12.0, scores={})
    pilot = row("onc", "static", 3.0, raced=False, holds=[])
    stock = row("ort", "static", 0.5, note="no layer left out", version="1.31.1")
    text = peers_race(results(toy=case(stock | {"others": 0.84}, pilot, failed)))
    assert "`top1>=base-0.01`. While files were made, others used up to 0.8 CPUs." in text
    assert "| onnxruntime's tools | 1.31.1 | 905 MB |" in text
    assert "| original | 1 | 0.885 | 20.0 |  | yes |" in text
    assert "One thread of Some CPU (amx), 2 CPUs; onnxruntime 1. A call had 180 s" in text
    assert (
        "| onnxruntime's tools: static (no layer left out) | 0.500 [0.490, 0.510] | 0.88 "
        "| 5.0 (25 %) | 31 s | yes |" in text
    )
    assert "| onnx-neural-compressor: static | about 3.00 (pilot) |" in text
    assert "| ModelOpt: int8 | exit 1: a\\|b |  |  | 12 s | no |" in text
    assert text.rindex("`int8 @ cpu` | 0.400") < text.rindex("(no layer left out) | 0.500")


# What a finished run of a tool is read as.


def test_a_run_with_a_file_gives_the_facts_of_its_last_json_line() -> None:
    said = 'loading\n{"early": 1}\n100 %{"version": "1.2", "note": "x"}\n'
    assert outcome(0, said, "warning", True) == ({"version": "1.2", "note": "x"}, "")


def test_failures_are_told_apart() -> None:
    assert outcome(1, "", "Traceback\nValueError: no\n", True)[1] == "exit 1: ValueError: no"
    assert outcome(-11, "", "", False)[1] == "exit -11: no message"
    assert outcome(0, "done\n", "", False)[1] == "exit 0 without a file: done"
    assert outcome(None, "", "", False)[1].startswith("no file in")
    assert outcome(0, "done\n", "", True)[1] == "wrote a file and told nothing"


def test_messages_lose_colours_folders_and_frames() -> None:
    text = "\x1b[31mError: /some/where/deep/model.onnx is bad\x1b[0m\n    ^^^^~~~\n\n"
    assert last_line(text) == "Error: model.onnx is bad"
    assert last_line("and/or 1/2 stay") == "and/or 1/2 stay"
