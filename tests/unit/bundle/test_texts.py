"""An engine answers texts as well as tensors where the folder of its model says how."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit import texts

from ortune.bundle.answers import MOST_TEXTS, add_answers
from ortune.bundle.engine.load import load_engine
from ortune.cli.main import DONE, main
from ortune.core.errors import BadData

pytest.importorskip("tokenizers")
CLASSES = {"0": "animal", "1": "place"}


def answer(
    folder: Path, sentences: Sequence[str], pairs: Sequence[str] | None = None
) -> dict[str, Any]:
    path = folder / "onnx" / "model.onnx"
    with load_engine(path) as engine:
        add_answers(engine, path)
        assert engine.models == ("", "text")
        given = {"text": np.array(sentences, object)}
        if pairs is not None:
            given["text_pair"] = np.array(pairs, object)
        return asyncio.run(engine["text"].submit(**given))


def test_classes(tmp_path: Path) -> None:
    texts.write_reader(tmp_path / "f", "BertForSequenceClassification", id2label=CLASSES)
    found = answer(tmp_path / "f", ["a cat sat", "a here"])
    assert found["label"].tolist() == ["animal", "place"]
    assert found["score"].dtype == np.float32
    assert found["score"][0] == pytest.approx(1 / (1 + np.exp(-3.0)), abs=1e-5)
    assert found["labels"].tolist() == [["animal", "place"], ["place", "animal"]]
    assert found["scores"].tolist()[1] == pytest.approx([0.952574, 0.047426], abs=1e-6)


def test_pairs_are_one_sample_each(tmp_path: Path) -> None:
    texts.write_reader(tmp_path / "f", "BertForSequenceClassification", id2label=CLASSES)
    found = answer(tmp_path / "f", ["a cat", "a"], ["sat", "here here"])
    assert found["label"].tolist() == ["animal", "place"]
    assert found["score"][1] == pytest.approx(1 / (1 + np.exp(-5.0)), abs=1e-5), "of all words"
    with pytest.raises(BadData, match="'text_pair': Got 1, expected 2"):
        answer(tmp_path / "f", ["a cat", "a"], ["sat"])


def test_a_model_without_names_of_classes_has_those_of_transformers(tmp_path: Path) -> None:
    texts.write_reader(tmp_path / "f", "BertForSequenceClassification")
    assert answer(tmp_path / "f", ["a cat sat", "a here"])["label"].tolist() == [
        "LABEL_0",
        "LABEL_1",
    ]


@pytest.mark.parametrize(
    ("settings", "score"),
    [
        ({"problem_type": "multi_label_classification"}, 1 / (1 + np.exp(-4.0))),
        ({"problem_type": "regression"}, 4.0),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, 4.0),
    ],
)
def test_scores_are_what_the_folder_says(
    tmp_path: Path, settings: dict[str, Any], score: float
) -> None:
    texts.write_reader(tmp_path / "f", "BertForSequenceClassification", **settings)
    assert answer(tmp_path / "f", ["cat sat"])["score"][0] == pytest.approx(score, abs=1e-5)


def test_words_with_classes_and_places(tmp_path: Path) -> None:
    texts.write_reader(tmp_path / "f", "BertForTokenClassification", id2label=CLASSES)
    found = answer(tmp_path / "f", ["cat  undo here", "", "here"])
    assert found["text_index"].tolist() == [0, 0, 0, 2]
    assert found["word"].tolist() == ["cat", "undo", "here", "here"]
    assert found["label"].tolist() == ["animal", "animal", "place", "place"]
    assert found["start"].tolist() == [0, 5, 10, 0] and found["end"].tolist() == [3, 9, 14, 4]
    assert found["score"].tolist() == pytest.approx([0.9526, 0.5, 0.8808, 0.8808], abs=1e-4)
    assert not any(array.size for array in answer(tmp_path / "f", [""]).values())


def test_the_answer_to_a_question_is_a_part_of_the_second_text(tmp_path: Path) -> None:
    """`cat` begins an answer and `here` ends it, in the question too."""
    texts.write_reader(tmp_path / "f", "BertForQuestionAnswering")
    found = answer(tmp_path / "f", ["cat here", "a"], ["a a  cat sat here a", ""])
    assert found["answer"].tolist() == ["cat sat here", ""]
    assert found["start"].tolist() == [5, 0] and found["end"].tolist() == [17, 0]
    starts = np.exp([0, 0, 0, 3, 1, 0, 0])  # of the first token and the second text
    ends = np.exp([0, 1, 1, 0, 0, 2, 1])
    likely = starts[3] / starts.sum() * ends[5] / ends.sum()
    assert found["score"][0] == pytest.approx(likely, abs=1e-6)


def test_a_long_text_is_read_in_parts_that_overlap(tmp_path: Path) -> None:
    """Of nine tokens four are left for the text; `cat sat here` is whole in the fifth part."""
    texts.write_reader(tmp_path / "f", "BertForQuestionAnswering", max_position_embeddings=9)
    context = "a a a a a cat sat here a"
    found = answer(tmp_path / "f", ["a a", "a " * 9], [context, context])
    assert found["answer"].tolist() == ["cat sat here", "a"], "a long question leaves no room"
    assert (found["start"][0], found["end"][0]) == (10, 22)
    likely = np.exp(3) / np.exp([0, 3, 1, 0, 0]).sum() * np.exp(2) / np.exp([0, 0, 0, 2, 1]).sum()
    assert found["score"][0] == pytest.approx(likely, abs=1e-6)
    many = answer(tmp_path / "f", ["a a"] * 2, ["a " * 800 + context] * 2)
    assert many["answer"].tolist() == ["cat sat here"] * 2, "more parts than a queue holds"


def test_words_for_a_mask(tmp_path: Path) -> None:
    """The model says of `sat`, which stands for a missing word, that it is `cat`."""
    texts.write_reader(tmp_path / "f", "BertForMaskedLM")
    (tmp_path / "f/tokenizer_config.json").write_text('{"mask_token": {"content": "sat"}}')
    found = answer(tmp_path / "f", ["a sat sat", "undo sat"])
    assert found["text_index"].tolist() == [0, 0, 1]
    assert found["start"].tolist() == [2, 6, 5] and found["end"].tolist() == [5, 9, 8]
    assert found["words"].shape == found["scores"].shape == (3, 5)
    assert found["words"][:, :2].tolist() == [["cat", "sat"]] * 3
    assert found["tokens"][:, :2].tolist() == [[5, 6]] * 3
    assert found["scores"][2, 0] == pytest.approx(np.exp(3) / (np.exp([3, 1]).sum() + 8), abs=1e-6)
    with pytest.raises(BadData, match="no word to find in 'a cat'"):
        answer(tmp_path / "f", ["a cat"])


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


def test_a_model_that_says_neither_class_nor_vector_takes_tensors_alone(tmp_path: Path) -> None:
    texts.write_reader(tmp_path / "f", "BertModel", id2label=CLASSES)
    path = tmp_path / "f" / "onnx" / "model.onnx"
    with load_engine(path) as engine:
        add_answers(engine, path)
        assert engine.models == ("",)
