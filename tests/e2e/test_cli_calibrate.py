"""calibrate on the bundled digits: ranges, verdict, files that are taken again, observers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.models import write_classifier
from tests.stateful import WIDTH, cell_states, write_cell, write_decoder

from ortune.cli.main import main
from ortune.data.stream import Stream
from ortune.data.zoo.digit_cnn import DigitCnn
from ortune.graph.io import file

CAPSYS = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    DigitCnn().write(folder)
    return folder


@pytest.fixture(scope="module")
def calibrated(digits: Path) -> dict[str, Any]:
    """Ranges and a cache of the whole calibration set, and what was said of them."""
    said = digits / "said.json"
    args = [
        "calibrate",
        str(digits / "model.onnx"),
        "--data",
        str(digits / "calibration"),
        "-o",
        str(digits / "ranges.json"),
        "--tensorrt-cache",
        str(digits / "model.cache"),
        "--samples",
        "100",
        f"--json={said}",
    ]
    assert main(args) == 0
    found: dict[str, Any] = json.loads(said.read_text())
    return found


def _scales(path: Path) -> dict[str, float]:
    """Step of every tensor that a pair was put behind."""
    graph = onnx.load(path).graph
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return {
        node.input[0]: float(held[node.input[1]])
        for node in graph.node
        if node.op_type == "QuantizeLinear" and held[node.input[1]].ndim == 0
    }


def _refused(capsys: CAPSYS, *args: object) -> str:
    """Run a command that must be refused with two lines."""
    assert main([str(arg) for arg in args]) == 2
    out, said = capsys.readouterr()
    lines = [line for line in said.splitlines() if line.startswith(("ortune ", "  fix: "))]
    assert len(lines) == 2, said
    assert lines[0].startswith(f"ortune {args[0]}: ")
    assert lines[1].startswith("  fix: ")
    assert out == ""
    return lines[0]


def test_what_was_found_is_told(digits: Path, calibrated: dict[str, Any]) -> None:
    tensors = {tensor["name"]: tensor for tensor in calibrated["tensors"]}
    image = np.load(digits / "calibration" / "digits.npz")["image"]
    assert tensors["image"]["low"] == pytest.approx(float(image.min()))
    assert tensors["image"]["op"] == ""
    assert tensors["relu"]["op"] == "Relu"
    assert tensors["relu"]["low"] == 0
    for tensor in tensors.values():
        assert len(tensor["halves"]) == 2
        assert all(low >= tensor["low"] - 1e-6 for low, _ in tensor["halves"])
        assert all(high <= tensor["high"] + 1e-6 for _, high in tensor["halves"])
    assert max(tensor["apart"] for tensor in tensors.values()) > 0
    assert calibrated["stability"]["enough"] in (True, False)
    assert calibrated["samples"] == 100
    dead = [one for one in calibrated["idle"] if one["channels"]]
    assert dead, "some channels of this network are 0 on a hundred digits"


def test_the_file_holds_what_was_told(digits: Path, calibrated: dict[str, Any]) -> None:
    data = json.loads((digits / "ranges.json").read_text())
    assert (data["format"], data["version"]) == ("ortune-ranges", 1)
    assert data["model"]["digest"] == file.compute_digest(digits / "model.onnx")
    assert data["samples"]["count"] == len(data["samples"]["digests"]) == 100
    told = {tensor["name"]: (tensor["low"], tensor["high"]) for tensor in calibrated["tensors"]}
    assert {one["name"]: (one["low"], one["high"]) for one in data["tensors"]} == told


def test_the_cache_covers_every_float_tensor(digits: Path, calibrated: dict[str, Any]) -> None:
    first, *lines = (digits / "model.cache").read_text().splitlines()
    assert first == "TRT-8601-EntropyCalibration2"
    names = {line.rpartition(": ")[0] for line in lines}
    graph = onnx.load(digits / "model.onnx").graph
    assert names == {"image", *(name for node in graph.node for name in node.output)}


@pytest.mark.parametrize("name", ["ranges.json", "model.cache"])
def test_apply_takes_the_ranges_without_data(
    name: str, digits: Path, calibrated: dict[str, Any], tmp_path: Path, capsys: CAPSYS
) -> None:
    out = tmp_path / "out.onnx"
    model = str(digits / "model.onnx")
    args = ["apply", model, "int8-static", "--ranges-from", str(digits / name), "-o", str(out)]
    assert main(args) == 0
    assert "ranges from" in capsys.readouterr().err
    told = {tensor["name"]: tensor for tensor in calibrated["tensors"]}
    scales = _scales(out)
    assert scales.keys() >= {"image", "relu"}
    # Behind a Relu the cache's symmetric range is cut at zero: both files give the same step.
    assert scales["relu"] == pytest.approx(told["relu"]["high"] / 255, rel=1e-6)


def test_apply_with_ranges_is_apply_with_the_data_they_came_from(
    digits: Path, calibrated: dict[str, Any], tmp_path: Path
) -> None:
    model, spread = str(digits / "model.onnx"), tmp_path / "spread"
    spread.mkdir()
    images = np.load(digits / "calibration" / "digits.npz")["image"]
    np.savez(spread / "all.npz", image=images[np.arange(100) * len(images) // 100])
    one, two = tmp_path / "one.onnx", tmp_path / "two.onnx"
    ranges = str(digits / "ranges.json")
    assert main(["apply", model, "int8-static", "--ranges-from", ranges, "-o", str(one)]) == 0
    assert main(["apply", model, "int8-static", "--data", str(spread), "-o", str(two)]) == 0
    assert _scales(one) == _scales(two)


@pytest.mark.long
def test_convert_takes_the_ranges_without_data(
    digits: Path, calibrated: dict[str, Any], tmp_path: Path, capsys: CAPSYS
) -> None:
    out = tmp_path / "out.onnx"
    args = ["convert", str(digits / "model.onnx"), str(out), "--precision", "int8"]
    assert main([*args, "--ranges-from", str(digits / "ranges.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes_after"] < 0.3 * found["bytes_before"]
    assert any(
        op.op_type.startswith("QLinear") or op.op_type == "QuantizeLinear"
        for op in onnx.load(out).graph.node
    )


@pytest.mark.long
def test_altered_copies_are_calibrated_on(digits: Path, capsys: CAPSYS) -> None:
    args = ["calibrate", str(digits / "model.onnx"), "--data", str(digits / "calibration")]
    more = ["--samples", "16", "--augment", "scale(low=2, high=2)", "--json"]
    assert main([*args, *more]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 32
    image = next(one for one in found["tensors"] if one["name"] == "image")
    assert image["high"] == pytest.approx(2 * 2.8214867, rel=1e-5)


def test_observers_are_compared_on_samples_that_were_not_calibrated_on(
    digits: Path, tmp_path: Path, capsys: CAPSYS
) -> None:
    whole = np.load(digits / "data" / "digits.npz")
    np.savez(tmp_path / "some.npz", **{name: whole[name][:240] for name in whole.files})
    args = ["calibrate", str(digits / "model.onnx"), "--data", str(tmp_path), "--compare"]
    several = ["--observer", "min-max", "--observer", "percentile(p=60)"]
    assert main([*args, *several, "--samples", "32", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["observer"] for row in found["rows"]] == ["min-max", "percentile(p=60)"]
    assert found["best"] == "min-max"
    assert found["calibrated"] == 32
    assert found["scored"] == 180
    assert found["overlap"] is False
    assert [row["standing"] for row in found["rows"]] == ["best", "worse"]
    assert found["rows"][0]["snr"] > found["rows"][1]["snr"] + 3


def test_wrong_words_are_refused(digits: Path, tmp_path: Path, capsys: CAPSYS) -> None:
    model, data = digits / "model.onnx", digits / "calibration"
    out = tmp_path / "r.json"
    base = ("calibrate", model, "--data", data)
    assert "--data is missing" in _refused(capsys, "calibrate", model, "-o", out)
    assert "no observer 'nothing'" in _refused(capsys, *base, "--observer", "nothing", "-o", out)
    assert "keeps nothing" in _refused(capsys, *base, "--observer", "percentile(p=0)", "-o", out)
    assert "does not calibrate" in _refused(capsys, *base, "--step", "int8-dynamic", "-o", out)
    assert "observers given: 2" in _refused(
        capsys, *base, "--observer", "mse", "--observer", "entropy"
    )
    assert "-o cannot be combined" in _refused(capsys, *base, "--compare", "-o", out)
    assert "--budget needs --compare" in _refused(
        capsys, *base, "--budget", "top1>=0.9", "-o", out
    )
    assert "no augmentation 'blur'" in _refused(capsys, *base, "--augment", "blur", "-o", out)
    assert "--samples" in _refused(capsys, *base, "--samples", "0", "-o", out)
    assert "needs --tensorrt-cache" in _refused(capsys, *base, "--tensorrt-version", "8.6")
    cache = tmp_path / "m.cache"
    bad = ("--tensorrt-cache", cache, "--tensorrt-version", "new")
    assert "'new' is not a version" in _refused(capsys, *base, *bad, "-o", out)
    old = ("--tensorrt-cache", cache, "--tensorrt-version", "11.0.0")
    assert "reads no calibration cache" in _refused(capsys, *base, *old)
    assert "both write" in _refused(capsys, *base, "-o", out, "--tensorrt-cache", out)
    assert "no budget" not in _refused(capsys, *base, "--compare", "--budget", "top1")
    assert list(tmp_path.iterdir()) == []
    out.write_text("mine")
    assert "exists" in _refused(capsys, *base, "-o", out)
    assert out.read_text() == "mine"


def test_files_that_do_not_fit_are_refused(
    digits: Path, calibrated: dict[str, Any], tmp_path: Path, capsys: CAPSYS
) -> None:
    model, out = digits / "model.onnx", tmp_path / "out.onnx"
    base = ("apply", model, "int8-static", "-o", out, "--ranges-from")
    assert "none.json" in _refused(capsys, *base, tmp_path / "none.json")
    few = tmp_path / "few.json"
    data = json.loads((digits / "ranges.json").read_text())
    data["tensors"] = [one for one in data["tensors"] if one["name"] != "relu"]
    few.write_text(json.dumps(data))
    assert "has no ranges of relu" in _refused(capsys, *base, few)
    data["model"]["digest"] = "another"
    few.write_text(json.dumps(data))
    assert "was made for another model" in _refused(capsys, *base, few)
    convert = ("convert", model, out, "--ranges-from", digits / "ranges.json")
    assert "--ranges-from needs" in _refused(capsys, *convert)
    idle = ("apply", model, "simplify", "int8-dynamic", "-o", out)
    assert "--ranges-from: no step here" in _refused(capsys, *idle, "--ranges-from", few)
    noisy = ("--data", digits / "calibration", "--augment", "noise")
    assert "--augment: no step here" in _refused(capsys, *idle, *noisy)
    alter = ("apply", model, "int8-static", "-o", out, "--augment", "noise")
    assert "--augment alters samples" in _refused(capsys, *alter)
    search = ("optimize", model, "--augment", "noise", "-o", tmp_path / "run")
    assert "--augment alters samples" in _refused(capsys, *search)
    search = ("optimize", model, "--data", digits / "data", "--ranges-from", few)
    assert "was made for another model" in _refused(capsys, *search, "-o", tmp_path / "run")
    assert not out.exists()
    assert not (tmp_path / "run").exists()


# --sequence and --state on the command line: every verb that calibrates, and what is refused.


SEQUENCES, STEPS = 12, 10


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    return write_cell(tmp_path / "cell.onnx")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for at in range(SEQUENCES):
        np.savez(folder / f"{at:02}.npz", x=drawn(at)[:, 0])
    return folder


def drawn(at: int) -> np.ndarray:
    rng = np.random.default_rng(at)
    return rng.standard_normal((STEPS, 1, WIDTH)).astype(np.float32)


def test_calibrate_finds_the_ranges_of_states_as_they_run(
    cell: Path, data: Path, tmp_path: Path, capsys: CAPSYS
) -> None:
    out = tmp_path / "said.json"
    args = ["calibrate", str(cell), "--data", str(data), "--sequence", "file", f"--json={out}"]
    assert main(args) == 0
    said = json.loads(out.read_text())
    held = np.concatenate([cell_states(drawn(at)) for at in range(SEQUENCES)])
    found = {one["name"]: one for one in said["tensors"]}["h"]
    assert found["low"] == pytest.approx(held.min(), rel=1e-3)
    assert found["high"] == pytest.approx(held.max(), rel=1e-3)
    assert said["samples"] == SEQUENCES * STEPS
    assert "rolled through 12 sequences of 10 steps: hn:h" in said["notes"]


def test_observers_are_compared_on_other_sequences(cell: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "said.json"
    args = ["calibrate", str(cell), "--data", str(data), "--sequence", "file", "--compare"]
    args += ["--observer", "min-max", "--observer", "percentile(p=90)", f"--json={out}"]
    assert main(args) == 0
    said = json.loads(out.read_text())
    assert said["calibrated"] % STEPS == said["scored"] % STEPS == 0
    assert not said["overlap"] and said["calibrated"] > 0 and said["scored"] > 0
    assert said["rows"][0]["observer"] == "min-max"


def test_apply_and_verify_roll_the_original(
    cell: Path, data: Path, tmp_path: Path, capsys: CAPSYS
) -> None:
    small = tmp_path / "small.onnx"
    rolled = ["--data", str(data), "--sequence", "file", "--state", "hn:h"]
    assert main(["apply", str(cell), "int8-static", *rolled, "-o", str(small)]) == 0
    assert "rolled through 12 sequences" in capsys.readouterr().err
    judged = ["--budget", "cosine>=0.99", f"--json={tmp_path / 'v'}"]
    assert main(["verify", str(cell), str(small), *rolled, *judged]) == 0
    assert json.loads((tmp_path / "v").read_text())["samples"] == SEQUENCES * STEPS


def test_regions_are_measured_on_rolled_states(
    cell: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CAPSYS
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["sensitivity", str(cell), "--data", str(data), "--metric", "snr", "--time", "5s"]
    words += ["--on", "cpu(threads=1)", f"--json={tmp_path / 's'}"]
    assert main([*words, "--sequence", "file"]) == 0
    assert "rolled through 12 sequences" in capsys.readouterr().err
    rolled = json.loads((tmp_path / "s").read_text())["regions"]
    assert all(region["accuracy_cost"]["value"] is not None for region in rolled)
    assert main([*words, "--state", "hn:h"]) == 2
    assert "needs sequences" in capsys.readouterr().err


def test_optimize_divides_whole_sequences_and_a_resumed_run_keeps_its_samples(
    cell: Path, data: Path, tmp_path: Path, capsys: CAPSYS
) -> None:
    run = tmp_path / "run"
    args = ["optimize", str(cell), "--data", str(data), "--sequence", "file", "--time", "3s"]
    args += ["--budget", "cosine>=0.9", "--on", "cpu(threads=1)", "-o", str(run)]
    assert main(args) == 0
    stream = run / "data" / "feeds.stream"
    before, number = stream.read_bytes(), stream.stat().st_ino
    parts = json.loads((run / "header.json").read_text())["parts"]
    held = [{at // STEPS for at in parts[name]} for name in ("calibration", "search", "final")]
    assert sum(map(len, held)) == SEQUENCES == len(set.union(*held))
    assert {"hn:h"} == {text for text in (capsys.readouterr().err).split() if text == "hn:h"}
    assert main(args) == 0
    assert (stream.read_bytes(), stream.stat().st_ino) == (before, number)
    states = np.stack([sample["h"] for sample in Stream(stream)])
    wanted = np.concatenate([cell_states(drawn(at)) for at in range(SEQUENCES)])
    np.testing.assert_allclose(states, wanted, rtol=1e-3, atol=1e-4)
    assert 'sequence = "file"' in (run / "ortune.toml").read_text()
    assert main([*args[:5], "12", *args[6:]]) == 2
    assert "another job" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (["--sequence", "files"], "cannot read 'files'", "write file, group"),
        (["--sequence", "1"], "1 is too small", "two steps or more"),
        (["--state", "hn:h"], "needs sequences", "--sequence file"),
        (["--sequence", "group"], "the samples have no group", "add 'group'"),
        (["--sequence", "file", "--state", "nn:h"], "no output 'nn'", "its outputs are: y, hn"),
        (["--sequence", "file", "--state", "hn:g"], "no input 'g'", "its inputs are: x, h"),
        (["--sequence", "file", "--state", "y:h"], "the output is float32", "pair an output"),
        (["--sequence", "file", "--shape", "x:1x16"], "--shape x", "give it of a state: h"),
        (["--sequence", "file", "--shape", "h:1x9"], "wrong shape in dimension 1", "give"),
        (["--sequence", "file", "--state", "hn"], "cannot read state 'hn'", "OUTPUT:INPUT"),
    ],
)
def test_wrong_words_are_refused_sequences(
    cell: Path, data: Path, tmp_path: Path, capsys: CAPSYS, words: list[str], what: str, fix: str
) -> None:
    out = tmp_path / "out.onnx"
    for verb in (["calibrate", str(cell)], ["apply", str(cell), "int8-static", "-o", str(out)]):
        assert main([*verb, "--data", str(data), *words]) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert len(said) == 2 and what in said[0] and fix in said[1]
        assert not out.exists()


def test_sequences_need_samples_and_a_model_with_state(
    data: Path, cell: Path, tmp_path: Path, capsys: CAPSYS
) -> None:
    run = ["-o", str(tmp_path / "run")]
    assert main(["optimize", str(cell), "--sequence", "file", *run]) == 2
    assert "none are given" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    model, samples = write_classifier(tmp_path / "plain", samples=20)
    assert main(["optimize", str(model), "--data", str(samples), "--sequence", "4", *run]) == 2
    said = capsys.readouterr().err
    assert "no output is named like the state of an input" in said and "--state OUT:IN" in said
    assert not (tmp_path / "run").exists()


def test_a_decoder_that_does_not_take_its_tokens_is_refused(
    tmp_path: Path, capsys: CAPSYS
) -> None:
    model = write_decoder(tmp_path / "decoder.onnx")
    np.savez(tmp_path / "ids.npz", input_ids=np.array([[1], [77], [3]]))
    args = ["calibrate", str(model), "--data", str(tmp_path / "ids.npz"), "--sequence", "file"]
    assert main(args) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 2 and "sequence 0 step 1: the model does not run" in said[0]
