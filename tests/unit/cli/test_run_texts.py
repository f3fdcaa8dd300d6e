"""`run` takes a sentence where a model's folder, or a bundle of one, says how it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit import studies, texts

from ortune.bundle.answers import find_settings
from ortune.bundle.engine.call import Call
from ortune.bundle.pack import pack
from ortune.cli.main import BAD, DONE, main
from ortune.core import hub
from ortune.data.sentences import Sentences

pytest.importorskip("tokenizers")

CLASSES = {"0": "animal", "1": "place"}


def answer(capsys: pytest.CaptureFixture[str], path: Path, *sentences: str) -> list[Any]:
    assert main(["run", str(path), *sentences, "--json"]) == DONE
    answers: list[Any] = json.loads(capsys.readouterr().out)["answers"]
    return answers


def test_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts.write_reader(tmp_path / "f", "BertForSequenceClassification", id2label=CLASSES)
    first, second = answer(capsys, tmp_path / "f", "a cat sat", "a here")
    assert (first["label"], second["label"]) == ("animal", "place")
    assert first["score"] == pytest.approx(1 / (1 + 2.718281828**-3), abs=1e-5)
    assert second["classes"] == [
        {"label": "place", "score": 0.952574},
        {"label": "animal", "score": 0.047426},
    ]
    assert main(["run", str(tmp_path / "f"), "a here"]) == DONE
    assert "place 0.952574, animal 0.047426" in capsys.readouterr().out


def test_words_for_a_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts.write_reader(tmp_path / "f", "BertForMaskedLM")
    (tmp_path / "f/tokenizer_config.json").write_text('{"mask_token": "sat"}')
    (only,) = answer(capsys, tmp_path / "f", "a sat")
    (mask,) = only["masks"]
    assert (mask["start"], mask["end"]) == (2, 5)
    assert mask["words"][0] == {"word": "cat", "token": 5, "score": 0.652047}
    assert main(["run", str(tmp_path / "f"), "a sat"]) == DONE
    assert "2:5" in capsys.readouterr().out
    assert main(["run", str(tmp_path / "f"), "a cat"]) == BAD
    assert capsys.readouterr().err.splitlines() == [
        "ortune run: there is no word to find in 'a cat'",
        "  fix: write sat in its place",
    ]


def test_classes_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts.write_reader(tmp_path / "f", "BertForTokenClassification", id2label=CLASSES)
    (only,) = answer(capsys, tmp_path / "f", "cat here")
    assert only["words"] == [
        {"word": "cat", "label": "animal", "score": 0.952574, "start": 0, "end": 3},
        {"word": "here", "label": "place", "score": 0.880797, "start": 4, "end": 8},
    ]
    assert main(["run", str(tmp_path / "f"), "cat here"]) == DONE
    assert "4:8" in capsys.readouterr().out


def test_classes_of_words_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts.write_reader(tmp_path / "f", "BertForTokenClassification", id2label=CLASSES)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "cat here"}\n{"text": ["undo", "here"]}\n')
    first, second = answer(capsys, tmp_path / "f", str(rows))
    assert [word["word"] for word in first["words"]] == ["cat", "here"]
    places = [(word["word"], word["start"], word["end"]) for word in second["words"]]
    assert places == [("undo", 0, 4), ("here", 5, 9)], "as joined by blanks"


def test_a_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts.write_reader(tmp_path / "f", "BertForSequenceClassification", id2label=CLASSES)
    given = ("a cat", "a here here", "--text-pair", "sat")
    first, second = answer(capsys, tmp_path / "f", *given)
    assert (first["label"], second["label"]) == ("animal", "place")
    assert first["score"] == pytest.approx(1 / (1 + 2.718281828**-3), abs=1e-5)


def test_a_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts.write_reader(tmp_path / "f", "BertForQuestionAnswering")
    (only,) = answer(capsys, tmp_path / "f", "here", "--text-pair", "a cat sat here")
    assert (only["answer"], only["start"], only["end"]) == ("cat sat here", 2, 14)
    assert main(["run", str(tmp_path / "f"), "here"]) == BAD
    assert capsys.readouterr().err.splitlines() == [
        "ortune run: a question needs the text that has its answer",
        "  fix: give it as --text-pair TEXT",
    ]
    (tmp_path / "rows.txt").write_text("here\n")
    assert main(["run", str(tmp_path / "f"), str(tmp_path / "rows.txt")]) == BAD
    assert "rows.txt line 1: a question without" in capsys.readouterr().err


def test_a_question_about_a_long_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts.write_reader(tmp_path / "f", "BertForQuestionAnswering", max_position_embeddings=9)
    rows = tmp_path / "rows.jsonl"
    long = '{"text": "a a", "text_pair": "a a a a a cat sat here a"}'
    rows.write_text(f'{long}\n{{"text": "a", "text_pair": "cat here"}}\n{long}\n')
    found = answer(capsys, tmp_path / "f", str(rows))
    assert [one["answer"] for one in found] == ["cat sat here", "cat here", "cat sat here"]
    assert (found[2]["start"], found[2]["end"]) == (10, 22)


@pytest.mark.parametrize(
    ("architecture", "given", "message"),
    [
        ("BertForTokenClassification", ["a"], "takes one text at a time"),
        ("BertForSequenceClassification", ["f/config.json"], "and f/config.json is none"),
        ("BertForSequenceClassification", ["--data", "f", "-o", "out"], "goes with INPUT"),
    ],
)
def test_a_second_text_where_none_can_be(
    tmp_path: Path, capsys, monkeypatch, architecture: str, given: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    texts.write_reader(tmp_path / "f", architecture)
    assert main(["run", "f", *given, "--text-pair", "b"]) == BAD
    problem, fix = capsys.readouterr().err.splitlines()
    assert message in problem and fix.startswith("  fix: ")


def test_a_vector(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts.write_reader(tmp_path / "f", "BertModel", similarity=True)
    (only,) = answer(capsys, tmp_path / "f", "cat here here")
    assert only["vector"] == pytest.approx([0.6, 0.8], abs=1e-6)
    assert main(["run", str(tmp_path / "f"), "cat"]) == DONE
    assert "vector of 2: 1.0000, 0.0000" in capsys.readouterr().out


def test_the_text_that_follows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts.write_generator(tmp_path / "f")
    assert main(["run", str(tmp_path / "f"), "a cat", "--tokens", "5", "--json"]) == DONE
    (only,) = json.loads(capsys.readouterr().out)["answers"]
    assert 0 < len(only["tokens"]) <= 5
    words = [texts.WORDS[token] for token in only["tokens"] if token < len(texts.WORDS)]
    assert all(word.strip("#") in only["text"] for word in words if word[0] != "[")


def test_a_text_is_tokenized_once_and_each_token_computed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts.write_generator(tmp_path / "f")
    calls = []

    def count(kind: type, name: str) -> None:
        do = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *given: (calls.append(name), do(*given))[1])

    count(Call, "run")
    count(Sentences, "tokenize")
    assert main(["run", str(tmp_path / "f"), "a cat", "--tokens", "5", "--json"]) == DONE
    (only,) = json.loads(capsys.readouterr().out)["answers"]
    assert calls.count("tokenize") == 1
    assert calls.count("run") == 1 + len(only["tokens"]), "one run is not timed"


def test_a_bundle_carries_the_tokenizer(tmp_path: Path) -> None:
    settings = texts.make_folder(tmp_path / "f", similarity=True)
    study = studies.study(tmp_path)
    hub.copy_side_files(settings, Path(study.root) / "hub")
    bundle = pack(study, tmp_path / "toy.ortune")
    found = find_settings(bundle, tmp_path / "unpacked")
    assert found is not None and found.task == "sentence-similarity"
    assert (found.folder / "tokenizer.json").read_bytes() == (
        settings.folder / "tokenizer.json"
    ).read_bytes()


def test_a_text_for_a_model_alone_is_refused(tmp_path: Path, capsys) -> None:
    texts.write_reader(tmp_path / "f", "BertModel")
    alone = (tmp_path / "f/onnx/model.onnx").rename(tmp_path / "alone.onnx")
    assert main(["run", str(alone), "a cat"]) == BAD
    assert "no file or folder a cat" in capsys.readouterr().err
    assert main(["run", str(alone), "a cat", "--text-pair", "sat"]) == BAD
    assert "needs a model that takes texts" in capsys.readouterr().err
    (tmp_path / "f/tokenizer.json").unlink()
    alone.rename(tmp_path / "f/onnx/model.onnx")
    assert main(["run", str(tmp_path / "f"), "a cat"]) == BAD
    assert "no file or folder a cat" in capsys.readouterr().err
