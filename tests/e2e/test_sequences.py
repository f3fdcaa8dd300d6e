"""--sequence and --state on the command line: every verb that calibrates, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.models import write_classifier
from tests.stateful import WIDTH, cell_states, write_cell, write_decoder

from ortune.cli.main import main
from ortune.data.stream import Stream

CAPSYS = pytest.CaptureFixture[str]
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
def test_wrong_words_are_refused(
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
