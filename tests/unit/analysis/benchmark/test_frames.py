"""A user's frame around the engine, timed beside the model's own part; real sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit import packaged
from tests.unit.studies import MODEL, write_model

import ortune as ot
from ortune.analysis.benchmark.frame_worker import CallLog, load_frame
from ortune.analysis.benchmark.interleave import PER_FRAME
from ortune.bundle.engine.load import load_engine
from ortune.cli.main import main
from ortune.core.errors import BadData, BadSettings, OrtuneError

PIPELINE = """
import time
import numpy as np

def samples():
    for seed in range(3):
        yield {"picture": np.full((6, 8), seed, np.uint8)}

def frame(engine, sample):
    x = sample["picture"].astype(np.float32)[:1, :4]
    time.sleep(0.004)
    return engine(x=x)["y"].argmax()

def twice(engine, sample):
    x = sample["picture"].astype(np.float32)[:1, :4]
    for _ in engine.batch([{"x": x}, {"x": x + 1}]):
        yield engine.run({"x": x}) if hasattr(engine, "run") else engine(x=x)

def idle(engine, sample):
    return sample["picture"].mean()

def broken(engine, sample):
    return engine(x=sample["photo"])

def changing(engine, sample):
    sample["picture"] += 1
    return engine(x=sample["picture"])

async def waiting(engine, sample):
    return await engine.submit(x=sample["picture"])
"""
QUICK: dict[str, Any] = {"seconds": 0.1, "sets": 1}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "camera_of_a_test.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    return write_model(tmp_path / "toy.onnx", MODEL)


def bench(model: Path, frame: str, **how: Any) -> Any:
    words = {"end_to_end": f"camera_of_a_test:{frame}", "data": "camera_of_a_test:samples"}
    return ot.bench(model, **(words | QUICK | how))


def test_a_frame_that_waits_is_told_from_its_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--end-to-end", "camera_of_a_test:frame", "--data", "camera_of_a_test:samples"]
    words += ["--on", "cpu(threads=1),cpu(threads=1, level=basic)", "--time", "0.2"]
    assert main(["bench", str(model), *words, "--sets", "1", "--json", "frames.json"]) == 0
    shown = capsys.readouterr().out
    assert "around the model: frame(camera_of_a_test:frame)" in shown
    assert "frames a second" in shown
    found = json.loads((tmp_path / "frames.json").read_text())
    first, second = found["pipelines"]
    for one in (first, second):
        assert one["frames_per_s"] < 250 < one["model_per_s"]
        assert 0 < one["share"]["value"] < 0.5
    assert first["ratio"]["value"] == first["model_ratio"]["value"] == 1
    assert second["ratio"]["low"] < second["ratio"]["high"]
    assert [row["measure"] for row in found["rows"]] == [PER_FRAME] * 2 + ["latency"] * 2
    assert len({row["workload"] for row in found["rows"]}) == 2
    capsys.readouterr()
    assert main(["cost", "frames.json", "--price", "2/h", "--json"]) == 0
    priced = json.loads(capsys.readouterr().out)
    assert [row["name"].endswith("whole frames") for row in priced["rows"]] == [True, True]
    assert priced["rows"][0]["inference_s"] > 0.004
    assert any("times are of whole frames" in text for text in priced["assumptions"])
    assert main(["compare", "frames.json", "frames.json"]) == 0


def test_every_plan_of_a_bundle_and_a_model_stand_side_by_side(model: Path) -> None:
    bundle = packaged.bundle(model.parent / "packed")
    found = ot.bench(
        [model, bundle],
        end_to_end="camera_of_a_test:frame",
        **QUICK,
        on="cpu",
        data="camera_of_a_test:samples",
    )
    plans = len(found.pipelines) - 1
    assert plans >= 1
    assert [Path(row["model"]).suffix for row in found.rows[: 1 + plans]] == [
        ".onnx",
        *[".ortune"] * plans,
    ]
    assert all(one.frames_per_s for one in found.pipelines)
    assert found.rows[1]["size"] == bundle.stat().st_size


def test_without_data_a_frame_is_given_made_up_inputs(model: Path) -> None:
    Path("plain_of_a_test.py").write_text(
        "def frame(engine, sample):\n  return engine(**sample)\n"
    )
    found = ot.bench(model, end_to_end="plain_of_a_test:frame", **QUICK)
    (one,) = found.pipelines
    assert one.frames_per_s and one.model_per_s and found.rows[0]["error"] is None


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ("idle", "camera_of_a_test:idle does not call the engine"),
        ("broken", "camera_of_a_test:broken fails: KeyError: 'photo'"),
        ("changing", "read-only"),
        ("waiting", "is an async function"),
    ],
)
def test_frames_that_cannot_be_timed(model: Path, frame: str, said: str) -> None:
    with pytest.raises(OrtuneError) as no:
        bench(model, frame)
    assert said in no.value.what
    assert len(str(no.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"batch": 4}, "and --batch both say"),
        ({"batch": "1,8"}, "and --batch both say"),
        ({"workload": "throughput"}, "and --workload both say"),
        ({"self_check": True}, "and --self-check both say"),
        ({"end_to_end": "os:system"}, "is not a frame function"),
        ({"end_to_end": "frame"}, "cannot read 'frame'"),
    ],
)
def test_what_contradicts_a_frame(model: Path, how: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSettings, match=said):
        bench(model, "frame", **how)


def test_a_frames_calls_are_made_again_with_the_inputs_they_had(model: Path) -> None:
    with load_engine(model, on="cpu(threads=1)") as engine:
        log = CallLog(engine, [])
        act = load_frame("camera_of_a_test:twice")
        x = np.zeros((1, 4), np.float32)
        act(log, {"picture": x})
        assert len(log.calls) == 3
        wanted = log(x=x)["y"].copy()
        x += 7
        again: Any = log.calls[-1]()
        np.testing.assert_array_equal(again["y"], wanted)
        assert len(log.calls[0]()) == 2  # type: ignore[arg-type]
        assert log.models == engine.models
        with pytest.raises(BadData, match="fails: KeyError"):
            act(engine, {})


def test_a_frame_that_is_not_there_and_one_that_is_awaited() -> None:
    with pytest.raises(BadSettings, match="has no function 'gone'"):
        load_frame("tests.unit.studies:gone")


def test_a_model_of_several_is_logged_by_its_name(model: Path) -> None:
    with load_engine(model, on="cpu(threads=1)") as engine:
        log = CallLog(engine, [])
        log[""].run({"x": np.zeros((1, 4), np.float32)})
        assert len(log.calls) == 1
