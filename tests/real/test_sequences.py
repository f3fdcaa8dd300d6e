"""A voice detector calibrates as it runs: ranges of its states, and int8 that keeps more of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ortune.cli.main import main
from ortune.data.stream import Stream
from tests.real.jobs import silero
from tests.real.task import installed

SHORT = 40
"""Frames of a sequence."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Frames [steps, 1, samples] of parts of a phone call, one file a sequence."""
    folder = tmp_path / "calls"
    folder.mkdir()
    sound, _ = silero.conditions()[0]
    padded = np.concatenate([np.zeros(silero.CONTEXT, np.float32), sound])
    for number in range(4):
        starts = [silero.FRAME * (SHORT * number + at) for at in range(SHORT)]
        frames = [padded[at : at + silero.CONTEXT + silero.FRAME] for at in starts]
        np.savez(folder / f"{number}.npz", input=np.stack(frames)[:, None], sr=np.array(16000))
    return folder


@pytest.mark.skipif(silero.missing() is not None, reason=str(silero.missing()))
@pytest.mark.parametrize("name", ["silero_vad", "silero_vad_16k_op15"])
def test_silero_is_calibrated_on_its_own_states(name: str, data: Path, tmp_path: Path) -> None:
    """The state is found by its name, in the file with control flow too, and has 128 channels."""
    model = installed("silero-vad", f"silero_vad/data/{name}.onnx")
    out = tmp_path / "said.json"
    args = ["calibrate", str(model), "--data", str(data), "--sequence", "file", f"--json={out}"]
    assert main(args) == 0
    said = json.loads(out.read_text())
    assert said["samples"] == 4 * SHORT
    assert "rolled through 4 sequences of 40 steps: stateN:state" in said["notes"]


@pytest.mark.skipif(silero.missing() is not None, reason=str(silero.missing()))
def test_a_search_holds_the_states_that_the_runtime_gives(data: Path, tmp_path: Path) -> None:
    """They are those of a loop over the plain session, frame by frame."""
    import onnxruntime as ort

    model = installed("silero-vad", "silero_vad/data/silero_vad_16k_op15.onnx")
    run = tmp_path / "run"
    args = ["optimize", str(model), "--data", str(data), "--sequence", "file", "--time", "5s"]
    args += ["--budget", "snr(share=0)>=15", "--on", "cpu(threads=1)", "-o", str(run)]
    assert main(args) == 0
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    state = np.zeros((2, 1, 128), np.float32)
    for at, sample in enumerate(Stream(run / "data" / "feeds.stream")):
        if at % SHORT == 0:
            state[:] = 0
        np.testing.assert_allclose(sample["state"], state, rtol=1e-3, atol=1e-4)
        fed = {"input": sample["input"], "state": state, "sr": sample["sr"]}
        taken = {one.name for one in session.get_inputs()}
        _, state = session.run(None, {k: v for k, v in fed.items() if k in taken})
        state = np.array(state)
