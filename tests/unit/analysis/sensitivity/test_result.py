"""Rows in the order in which they are worth giving back, and what is kept of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit import surveys

from ortune.analysis.sensitivity import run
from ortune.analysis.sensitivity.requests import SensitivityRequest
from ortune.analysis.sensitivity.run import Sensitivity, find_result, sort_regions, store_result
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.result import as_json
from ortune.search.mixed_precision.survey import cost_per_time

LOSS = surveys.cost("slow", 0.01, -0.1)
"""It costs accuracy and time."""


def found(**changes: object) -> Sensitivity:
    made = Sensitivity(
        model="toy.onnx",
        model_digest="d" * 16,
        by="region",
        recipe=("simplify", "int8-static"),
        precision="int8-static",
        on="cpu",
        budget="cosine>=0.999",
        budget_rule="",
        unit="cosine",
        samples=32,
        regions=sort_regions((*surveys.REGIONS, surveys.FAILED, LOSS)),
        whole_cost=0.09,
        not_reached=(),
        finished="done",
        seconds=12.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ortune" / "sensitivity"


def test_what_is_worth_giving_back_comes_first() -> None:
    names = [one.region for one in found().regions]
    assert names == ["slow", "fragile", "alike", "plain", "odd"]
    assert cost_per_time(LOSS) == math.inf
    assert cost_per_time(surveys.cost("gain", -0.01, 0.1)) == pytest.approx(-0.1)
    assert cost_per_time(surveys.cost("nothing", 0.0, 0.0)) == 0
    assert cost_per_time(surveys.FAILED) == -math.inf


def test_json_has_the_keys_that_are_promised() -> None:
    told = json.loads(as_json(found().result()))
    first, last = told["regions"][0], told["regions"][-1]
    assert {"pattern", "nodes", "accuracy_cost", "time_gained", "region", "saved"} <= first.keys()
    assert first["time_gained"] == pytest.approx({"value": -0.1, "low": -0.11, "high": -0.09})
    assert first["cost_per_time"] is None
    assert told["regions"][1]["cost_per_time"] == pytest.approx(0.8)
    assert last["error"] == "the worker died"
    assert last["accuracy_cost"] == {"value": None, "low": None, "high": None}


def test_rows_are_a_table() -> None:
    assert [row["region"] for row in found().records()][:2] == ["slow", "fragile"]
    assert "0.09" in repr(found())


def test_a_kept_result_is_found_again(home: Path) -> None:
    assert find_result("k" * 16) is None
    store_result("k" * 16, found())
    held = find_result("k" * 16)
    assert held is not None
    assert held.regions[:-1] == found().regions[:-1]
    assert find_result("j" * 16) is None


def test_what_is_not_whole_is_not_kept(home: Path) -> None:
    store_result("k", found(finished="time", not_reached=("plain",)))
    assert not home.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"key": "k"}', b"[" * 100_000]
)
def test_a_file_that_cannot_be_read_is_no_result(home: Path, content: bytes) -> None:
    home.mkdir(parents=True)
    (home / "k.json").write_bytes(content)
    assert find_result("k") is None
    store_result("k", found())
    assert find_result("k") is not None


def test_a_result_under_another_name_is_none(home: Path) -> None:
    store_result("k", found())
    (home / "k.json").rename(home / "j.json")
    assert find_result("j") is None


def test_the_oldest_go_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(260):
        store_result(f"k{number}", found(regions=()))
    assert len(list(home.iterdir())) == 256


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_cache_folder", lambda: None)
    store_result("k", found())
    assert find_result("k") is None


@pytest.mark.parametrize(
    ("metric", "budget"),
    [("top1", "top1>=base"), ("max-error", "max-error<=base"), ("cosine", "cosine>=base")],
)
def test_a_metric_is_read_as_a_budget(metric: str, budget: str) -> None:
    assert str(SensitivityRequest("m.onnx", metric=metric).read_budget()) == budget


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metric": "nope"}, "nope"),
        ({"metric": "top1", "budget": "top1>=0.5"}, "both set the metric"),
        ({"budget": "top1"}, "cannot read budget"),
        ({"by": "layer"}, "'layer' is not allowed"),
        ({"time": "soon"}, "cannot read the duration"),
    ],
)
def test_what_cannot_be_read_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OrtuneError, match=said) as caught:
        SensitivityRequest("m.onnx", **given)  # type: ignore[arg-type]
    assert len(str(caught.value).splitlines()) == 2


def test_samples_are_needed() -> None:
    with pytest.raises(BadSettings, match="--data is missing"):
        _ = SensitivityRequest("m.onnx").source
