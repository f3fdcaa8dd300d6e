"""An engine answers texts as well as tensors where the folder of its model says how."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit import texts

from ortune.bundle.answers import MOST_TEXTS, add_texts
from ortune.bundle.engine.load import load_engine
from ortune.cli.main import DONE, main
from ortune.core.errors import BadData

pytest.importorskip("tokenizers")
CLASSES = {"0": "animal", "1": "place"}


def answer(folder: Path, sentences: Sequence[str]) -> dict[str, Any]:
    path = folder / "onnx" / "model.onnx"
    with load_engine(path) as engine:
        add_texts(engine, path)
        assert engine.models == ("", "text")
        given = np.array(sentences, object)
        return asyncio.run(engine["text"].submit(text=given))


def test_classes(tmp_path: Path) -> None:
    texts.write_reader(tmp_path / "f", "BertForSequenceClassification", id2label=CLASSES)
    found = answer(tmp_path / "f", ["a cat sat", "a here"])
    assert found["label"].tolist() == ["animal", "place"]
    assert found["score"].dtype == np.float32
    assert found["score"][0] == pytest.approx(1 / (1 + np.exp(-3.0)), abs=1e-5)


def test_vectors_of_texts_of_several_lengths(tmp_path: Path) -> None:
    texts.write_reader(tmp_path / "f", "BertModel", similarity=True)
    found = answer(tmp_path / "f", ["cat here here", "cat", ""])["vector"]
    assert found.dtype == np.float32 and found.shape == (3, 2)
    np.testing.assert_allclose(found, [[0.6, 0.8], [1, 0], [0, 0]], atol=1e-6)


def test_a_decoder_answers_with_what_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts.write_generator(tmp_path / "f")
    sentences = ["a cat sat", "here " * 30]
    written = answer(tmp_path / "f", sentences)["text"]
    for text, sentence in zip(written, sentences, strict=True):
        assert main(["run", str(tmp_path / "f"), sentence, "--json"]) == DONE
        (shown,) = json.loads(capsys.readouterr().out)["answers"]
        assert text == shown["text"]
        assert 0 < len(shown["tokens"]) <= 64 - len(sentence.split())


@pytest.mark.parametrize("sentences", [[], ["a"] * (MOST_TEXTS + 1), ["a" * 70_000]])
def test_too_many_or_too_long(tmp_path: Path, sentences: list[str]) -> None:
    texts.write_reader(tmp_path / "f", "BertModel", similarity=True)
    with pytest.raises(BadData, match="texts, the longest of"):
        answer(tmp_path / "f", sentences)


@pytest.mark.parametrize("architecture", ["BertForTokenClassification", "BertModel"])
def test_a_model_that_says_neither_class_nor_vector_takes_tensors_alone(
    tmp_path: Path, architecture: str
) -> None:
    texts.write_reader(tmp_path / "f", architecture, id2label=CLASSES)
    path = tmp_path / "f" / "onnx" / "model.onnx"
    with load_engine(path) as engine:
        add_texts(engine, path)
        assert engine.models == ("",)
