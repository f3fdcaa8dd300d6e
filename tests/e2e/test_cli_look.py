"""doctor, inspect, bench, verify and run on the packaged model."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortune.cli.main import main
from ortune.data.zoo.digit_cnn import DigitCnn


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    DigitCnn().write(folder)
    return folder


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the one JSON object on stdout."""
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    assert "ortune" in found
    return found


@pytest.fixture(scope="module")
def doctor(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What it says and writes, asked once: it runs a model on every backend."""
    file = tmp_path_factory.mktemp("doctor") / "doctor.json"
    with redirect_stdout(io.StringIO()) as said:
        assert main(["doctor", "--json", str(file)]) == 0
    return said.getvalue(), json.loads(file.read_text())


def test_doctor_proves_the_cpu_backend(doctor: tuple[str, dict[str, Any]]) -> None:
    _, found = doctor
    assert "ortune" in found
    cpu = next(item for item in found["backends"] if item["name"] == "cpu")
    detail = "13 nodes on CPUExecutionProvider"
    assert cpu == {"name": "cpu", "state": "works", "detail": detail, "unverified": ""}
    assert 1 <= found["cpus"]["effective"] <= found["cpus"]["host"]
    assert {"name", "state", "detail"} <= set(found["samples"][0])
    assert found["fitness"]["state"] in ("fit", "disturbed", "not fit")
    assert {"environments", "gpus", "driver", "problems"} <= set(found)


def test_doctor_tries_every_device_of_openvino(doctor: tuple[str, dict[str, Any]]) -> None:
    """One that is not there says what is missing, and that nobody ran it."""
    _, found = doctor
    tried = {item["name"]: item for item in found["backends"]}
    for name in ("openvino(device=gpu)", "openvino(device=npu, precision=f16)"):
        if tried[name]["state"] != "works":
            assert tried[name]["detail"]
        assert tried[name]["unverified"].startswith("never run on")
    assert tried["openvino"]["unverified"] == ""
    assert any(name.startswith("plugin") for name in tried)
    assert tried["directml"]["state"] in ("no device", "not installed", "works")


def test_doctor_shows_tables(doctor: tuple[str, dict[str, Any]]) -> None:
    out, _ = doctor
    assert out.startswith("this machine is ")
    assert "fit to measure" in out.splitlines()[0]
    assert "instruction sets" in out
    assert "13 nodes on CPUExecutionProvider" in out


def test_a_model_against_itself_has_no_winner_and_raw_samples(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = str(digits / "model.onnx"), tmp_path / "out.json"
    args = ["bench", model, model, "--data", str(digits / "calibration"), "--sets", "2"]
    args += ["--time", "1"]
    assert main([*args, "--on", "cpu(threads=1)", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert [row["error"] for row in found["rows"]] == [None, None]
    assert all(ns > 0 for row in found["rows"] for ns in row["latency_ns"])
    assert found["ratios"][0] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert set(found["ratios"][1]) == {"value", "low", "high"}
    assert "that of the first row" in capsys.readouterr().out


def test_verify_proves_a_model_equal_to_itself(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(digits / "model.onnx")
    data = ["--data", str(digits / "data"), "--budget", "top1>=base-0.01"]
    assert main(["verify", model, model, *data, "--json"]) == 0
    found = answer(capsys)
    assert found["verdict"] == "proved"
    assert found["scores"][0]["value"] == pytest.approx(0.998)
    assert not found["synthetic"]


def test_verify_says_no_to_a_broken_model(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx
    from onnx import numpy_helper

    broken = onnx.load(digits / "model.onnx")
    for weight in broken.graph.initializer:
        array = numpy_helper.to_array(weight)
        if array.dtype == np.float32:
            weight.CopyFrom(numpy_helper.from_array(array[::-1].copy(), weight.name))
    onnx.save(broken, tmp_path / "broken.onnx")
    args = ["verify", str(digits / "model.onnx"), str(tmp_path / "broken.onnx")]
    assert main([*args, "--data", str(digits / "data")]) == 1
    assert "fails: " in capsys.readouterr().out


def test_verify_takes_made_up_samples_and_says_so(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(digits / "model.onnx")
    assert main(["verify", model, model, "--shape", "image:1x1x28x28"]) == 0
    assert "made-up samples" in capsys.readouterr().out


def test_run_writes_outputs_that_fit_the_labels(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.npz"
    model, data = str(digits / "model.onnx"), str(digits / "data")
    assert main(["run", model, data, "-o", str(out), "--json"]) == 0
    found = answer(capsys)
    assert found["samples"] == len(found["latency_ns"]) == 2000
    assert found["p90_ns"] >= found["p50_ns"] > 0
    with np.load(out) as outputs, np.load(digits / "data" / "digits.npz") as given:
        assert outputs["logits"].shape == (2000, 10)
        right = outputs["logits"].argmax(1) == given["label"]
    assert right.mean() == pytest.approx(0.998)


def test_run_takes_one_image_file_a_level_and_says_no_p90(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with np.load(digits / "data" / "digits.npz") as given:
        np.savez(tmp_path / "one.npz", image=given["image"][:1])
    args = ["run", str(digits / "model.onnx"), str(tmp_path / "one.npz"), "--opt-level", "disable"]
    assert main([*args, "--json", "-o", str(tmp_path / "out.npz")]) == 0
    found = answer(capsys)
    assert found["backend"] == "cpu(level=disabled)"
    assert found["p90_ns"] is None
    assert (tmp_path / "out.npz").is_file()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": "wrong rank"}, ("Got", "expected")),
        ({"image": "wrong shape"}, ("Got", "expected")),
        ({"image": "wrong dtype"}, ("Got", "expected")),
        ({"image": "nan"}, ("not finite",)),
        ({"picture": "right"}, ("no input 'picture'",)),
    ],
)
def test_bad_samples_are_two_lines_and_write_nothing(
    change: dict[str, str],
    said: tuple[str, ...],
    digits: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arrays = {
        "right": np.zeros((2, 1, 28, 28), np.float32),
        "wrong rank": np.zeros((2, 28, 28), np.float32),
        "wrong shape": np.zeros((2, 1, 14, 28), np.float32),
        "wrong dtype": np.zeros((2, 1, 28, 28), np.complex64),
        "nan": np.full((2, 1, 28, 28), np.nan, np.float32),
    }
    (name, kind), *_ = change.items()
    np.savez(tmp_path / "bad.npz", **{name: arrays[kind]})
    for args in (
        ["run", str(digits / "model.onnx"), str(tmp_path / "bad.npz"), "-o", "out.npz"],
        ["run", str(digits / "model.onnx"), "--data", str(tmp_path / "bad.npz"), "-o", "out"],
    ):
        place = tmp_path / args[-1]
        assert main([*args[:-1], str(place)]) == 2
        what, fix = capsys.readouterr().err.strip().splitlines()[-2:]
        assert what.startswith(f"ortune {args[0]}: ")
        assert all(text in what for text in said)
        assert fix.startswith("  fix: ")
        assert not place.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a Linux device")
def test_a_full_disk_is_two_lines(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    out.symlink_to("/dev/full")
    assert main(["inspect", str(digits / "model.onnx"), "--json", str(out)]) == 2
    what, fix = capsys.readouterr().err.strip().splitlines()
    assert "no space left" in what.lower()
    assert fix.startswith("  fix: free some space")
