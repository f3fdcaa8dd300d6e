"""A folder of wav2vec2 in, one command, a bundle out that writes what transformers writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortune as ot
from ortune.bundle.answers import add_answers
from ortune.bundle.engine.load import load_engine
from ortune.cli.main import DONE, main
from ortune.metrics.wer import count_edits
from tests.real.decoders import make_spelling

torch = pytest.importorskip("torch")
soundfile = pytest.importorskip("soundfile")
soxr = pytest.importorskip("soxr")
transformers = pytest.importorskip("transformers")

RATE, COUNT, ASKED = 16000, 80, 10


def write_sounds(folder: Path) -> list[Path]:
    """Write sounds of several lengths, the first of another rate and of two channels."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = []
    for number in range(COUNT):
        at = np.arange(int(rng.integers(6000, 12000)))
        pitch = np.cumsum(rng.choice([200, 500, 900, 2000], len(at) // 800 + 1).repeat(800))
        sound = 0.3 * np.sin(pitch[: len(at)] * 6.28 / RATE) + rng.normal(0, 0.1, len(at))
        sound, rate = (np.stack([sound, -0.5 * sound], 1), 22050) if not number else (sound, RATE)
        paths.append(folder / f"{number:02}.wav")
        soundfile.write(paths[-1], sound.astype(np.float32), rate, subtype="FLOAT")
    return paths


def spell(folder: Path, path: Path) -> str:
    """Return what transformers writes of a file."""
    signal, rate = soundfile.read(path, dtype="float32", always_2d=True)
    signal = signal.mean(1)
    signal = soxr.resample(signal, rate, RATE) if rate != RATE else signal
    processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModelForCTC.from_pretrained(folder, local_files_only=True)
    fed = processor(signal, sampling_rate=RATE, return_tensors="pt")
    with torch.no_grad():
        numbers = model(fed.input_values).logits[0].argmax(-1)
    return str(processor.decode(numbers))


@pytest.mark.long
@pytest.mark.parametrize("labelled", [False, True])
def test_one_command_takes_a_folder_that_spells(
    labelled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_spelling(tmp_path / "w")
    paths = write_sounds(tmp_path / "sounds")
    assert main(["run", str(folder), str(paths[0])]) != DONE, "there is no ONNX file yet"
    ot.export(str(folder), out=folder / "onnx" / "model.onnx")
    capsys.readouterr()
    asked = paths[:ASKED]
    assert main(["run", str(folder), *map(str, asked), "--json"]) == DONE
    answers: list[Any] = json.loads(capsys.readouterr().out)["answers"]
    right = [spell(folder, path) for path in asked]
    assert [answer["text"] for answer in answers] == right
    assert len({*right}) > 1 and any(" " in text for text in right)
    (folder / "onnx" / "model.onnx").unlink()
    labels = None
    if labelled:
        lines = [f'{path.name},"{spell(folder, path).lower()}"\n' for path in paths]
        labels = tmp_path / "metadata.csv"
        labels.write_text("file_name,text\n" + "".join(lines))
    study = ot.optimize(
        folder, data=paths[0].parent, labels=labels, on="cpu", time="20s", out=tmp_path / "run"
    )
    budget = "wer(delimiter=4)<=base+0.01" if labelled else "wer(share=0.95)<=0.01"
    assert str(study.job.budget) == budget
    assert study.best.ratio is None or study.best.ratio.high <= 1
    bundle = ot.pack(study, tmp_path / "best.ortune")
    capsys.readouterr()
    assert main(["run", str(bundle), *map(str, asked)]) == DONE
    shown = capsys.readouterr().out
    with load_engine(bundle) as engine:
        add_answers(engine, bundle)
        sent = np.array([path.read_bytes() for path in asked], object)
        served = asyncio.run(engine["sound"].submit(sound=sent))["text"]
    assert all(text in shown for text in served)
    edits = sum(map(count_edits, right, served))
    assert edits <= 0.05 * sum(map(len, right)), str(study.best.plan)
