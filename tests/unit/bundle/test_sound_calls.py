"""An engine answers files of sound where the folder of its model says how."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.unit.data.test_sounds import tone, write

from ortune.bundle.answers import MOST_SOUNDS, add_answers
from ortune.bundle.engine.load import load_engine
from ortune.core.errors import BadData

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
listener (float[batch,samples] input_values) => (float[%s] logits)
<float[1,1,3] gain = {0, 1, -1}> { %s }
"""
SPELLS = """last = Constant<value = int64[1] {2}>() column = Unsqueeze(input_values, last)
    logits = Mul(column, gain)"""
DECIDES = """one = Constant<value = int64[1] {1}>() last = Constant<value = int64[1] {2}>()
    column = Unsqueeze(input_values, last) all = Mul(column, gain)
    logits = ReduceMax<keepdims = 0, axes = [1]>(all)"""
EXTRACTOR = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": False}


def write_folder(root: Path, kind: str) -> Path:
    """Write a model that says A of what is above 0, and B or a class of what is below."""
    (root / "onnx").mkdir(parents=True)
    spells = kind == "ForCTC"
    dims, body = ("batch,samples,3", SPELLS) if spells else ("batch,3", DECIDES)
    onnx.save(onnx.parser.parse_model(MODEL % (dims, body)), root / "onnx" / "model.onnx")
    names = {"0": "nothing", "1": "up", "2": "down"}
    config = {"model_type": "wav2vec2", "architectures": [f"Wav2Vec2{kind}"], "id2label": names}
    (root / "config.json").write_text(json.dumps(config | {"pad_token_id": 0}))
    (root / "vocab.json").write_text('{"<pad>": 0, "A": 1, "B": 2}')
    (root / "preprocessor_config.json").write_text(json.dumps(EXTRACTOR))
    return root / "onnx" / "model.onnx"


def ask(path: Path, files: list[bytes]) -> dict[str, Any]:
    with load_engine(path) as engine:
        add_answers(engine, path)
        assert engine.models == ("", "sound")
        return asyncio.run(engine["sound"].submit(sound=np.array(files, object)))


def make_wav(folder: Path, values: np.ndarray, rate: int = 16000) -> bytes:
    content: bytes = write(folder / "a.wav", values, rate).read_bytes()
    return content


def test_text_of_files_of_several_lengths(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "f", "ForCTC")
    files = [make_wav(tmp_path, np.array(x) * 9000) for x in ([1, 1, -1, 0, -1], [-1, 1], [0])]
    assert ask(path, files)["text"].tolist() == ["ABB", "BA", ""]


def test_classes(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "f", "ForSequenceClassification")
    found = ask(path, [make_wav(tmp_path, np.full(40, x)) for x in (9000, -9000)])
    assert found["label"].tolist() == ["up", "down"] and found["scores"].shape == (2, 3)


def test_what_is_too_much_or_no_sound(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "f", "ForCTC")
    sound = make_wav(tmp_path, tone(100))
    long = make_wav(tmp_path, np.zeros(1300), 10)
    for files, what in (
        ([], "0 sounds"),
        ([sound] * (MOST_SOUNDS + 1), "17 sounds"),
        ([sound + bytes(1 << 25)], "the largest of 33554"),
        ([long], r"sound of 130.0 s\n  fix: send 120 s at most"),
        ([sound, b"ID3 mp3"], r"the file.*no RIFF/WAVE file"),
        ([b"fLaC" + sound], "no RIFF/WAVE file"),
        ([sound[:90]], "it ends early"),
    ):
        with pytest.raises(BadData, match=what) as error:
            ask(path, files)
        assert "ortune-" not in str(error.value), "a folder of the server's is nobody's business"


def test_without_letters_only_tensors_are_taken(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "f", "ForCTC")
    (tmp_path / "f" / "vocab.json").unlink()
    with load_engine(path) as engine:
        add_answers(engine, path)
        assert engine.models == ("",)
