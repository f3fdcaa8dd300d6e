"""Small encoders of transformers with random weights answer texts as its pipelines do."""

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
from tests.real.decoders import read_news

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}
NAMES = {0: "O", 1: "B-PER", 2: "B-LOC"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "nli": ("BertForSequenceClassification", {"id2label": NLI}),
    "unnamed": ("BertForSequenceClassification", {}),
    "cross-encoder": ("BertForSequenceClassification", {"num_labels": 1}),
    "tagger": ("BertForTokenClassification", {"id2label": NAMES}),
    "questions": ("BertForQuestionAnswering", {}),
    "masks": ("BertForMaskedLM", {}),
}
FIRST = ["The President said so, didn't he?", "Flights from São Paulo are late."]
SECOND = ["He said nothing in New York.", "All flights are on time, it's said, and none is late."]


def make_encoder(folder: Path, kind: str, **other: float) -> Path:
    """Write an encoder of random weights, its tokenizer and its ONNX file."""
    from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

    words = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words.train_from_iterator(
        read_news()[:50],
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False),
    )
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.BertTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    torch.manual_seed(0)
    architecture, settings = KINDS[kind]
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 128, "vocab_size": 400}
    config = transformers.BertConfig(**{"initializer_range": 0.4} | sizes | other, **settings)
    getattr(transformers, architecture)(config).save_pretrained(folder)
    ot.export(str(folder), out=folder / "onnx" / "model.onnx")
    return folder


def serve(folder: Path, **given: list[str]) -> dict[str, Any]:
    """Return what a server of the folder answers."""
    path = folder / "onnx" / "model.onnx"
    with load_engine(path) as engine:
        add_answers(engine, path)
        arrays = {name: np.array(texts, object) for name, texts in given.items()}
        return asyncio.run(engine["text"].submit(**arrays))


def run(capsys: pytest.CaptureFixture[str], folder: Path, *given: str) -> list[Any]:
    """Return what `ortune run` answers."""
    capsys.readouterr()
    assert main(["run", str(folder), *given, "--json"]) == DONE
    answers: list[Any] = json.loads(capsys.readouterr().out)["answers"]
    return answers


@pytest.mark.long
@pytest.mark.parametrize("kind", ["nli", "unnamed", "cross-encoder"])
def test_classes_of_texts_and_pairs(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_encoder(tmp_path / kind, kind)
    pipeline = transformers.pipeline("text-classification", str(folder))
    pairs = [{"text": a, "text_pair": b} for a, b in zip(FIRST, SECOND, strict=True)]
    for asked, given in ((FIRST, {"text": FIRST}), (pairs, {"text": FIRST, "text_pair": SECOND})):
        right, found = pipeline(asked), serve(folder, **given)
        assert found["label"].tolist() == [one["label"] for one in right]
        assert found["score"].tolist() == pytest.approx([one["score"] for one in right], abs=1e-4)
    every = pipeline(pairs, top_k=None)
    assert found["labels"].tolist() == [[one["label"] for one in row] for row in every]
    for scores, row in zip(found["scores"], every, strict=True):
        assert scores.tolist() == pytest.approx([one["score"] for one in row], abs=1e-4)
    (shown,) = run(capsys, folder, FIRST[0], "--text-pair", SECOND[0])
    assert shown["label"] == right[0]["label"]
    assert shown["score"] == pytest.approx(right[0]["score"], abs=1e-4)
    assert [one["label"] for one in shown["classes"]] == [one["label"] for one in every[0]]


@pytest.mark.long
def test_classes_of_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_encoder(tmp_path / "tagger", "tagger")
    pipeline = transformers.pipeline(
        "token-classification", str(folder), aggregation_strategy="first", ignore_labels=[]
    )
    plain = transformers.pipeline("token-classification", str(folder), ignore_labels=[])
    found = serve(folder, text=FIRST)
    shown = [word for answer in run(capsys, folder, *FIRST) for word in answer["words"]]
    for name in ("word", "label", "start", "end"):
        assert found[name].tolist() == [word[name] for word in shown]
    for number, text in enumerate(FIRST):
        words = [word for word, at in zip(shown, found["text_index"], strict=True) if at == number]
        assert all(text[word["start"] : word["end"]] == word["word"] for word in words)
        tokens = {token["start"]: token for token in plain(text)}
        for word in words:
            assert word["label"] == tokens[word["start"]]["entity"]
            assert word["score"] == pytest.approx(tokens[word["start"]]["score"], abs=1e-4)
        for group in pipeline(text):
            of_it = [w for w in words if group["start"] <= w["start"] < group["end"]]
            assert of_it[0]["start"] == group["start"] and of_it[-1]["end"] == group["end"]
            assert all(w["label"].removeprefix("B-") == group["entity_group"] for w in of_it)


@pytest.mark.long
def test_words_for_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_encoder(tmp_path / "masks", "masks")
    pipeline = transformers.pipeline("fill-mask", str(folder))
    texts = ["The [MASK] said so, didn't [MASK]?", "Flights from [MASK] are late."]
    right = [*pipeline(texts[0]), pipeline(texts[1])]
    found = serve(folder, text=texts)
    shown = [mask for answer in run(capsys, folder, *texts) for mask in answer["masks"]]
    assert found["text_index"].tolist() == [0, 0, 1] and len(shown) == len(right) == 3
    for number, (mask, row) in enumerate(zip(shown, right, strict=True)):
        assert texts[number // 2][mask["start"] : mask["end"]] == "[MASK]"
        assert [word["token"] for word in mask["words"]] == [one["token"] for one in row]
        assert found["words"][number].tolist() == [one["token_str"] for one in row]
        scores = pytest.approx([one["score"] for one in row], abs=1e-4)
        assert found["scores"][number].tolist() == scores


@pytest.mark.long
def test_answers_to_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Transformers 5 has no such pipeline: of its model's tokens the likeliest are looked up.

    The third text is long: it is read in parts, which are cut as its tokenizer cuts them.
    """
    folder = make_encoder(tmp_path / "questions", "questions")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.BertForQuestionAnswering.from_pretrained(folder, local_files_only=True)
    questions, contexts = [*FIRST, FIRST[0]], [*SECOND, " ".join(read_news()[:2])]
    found = serve(folder, text=questions, text_pair=contexts)
    for number, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        best = max(find_spans(tokenizer, model, question, context))
        assert (found["start"][number], found["end"][number]) == best[1:]
        assert found["answer"][number] == context[slice(*best[1:])]
        assert found["score"][number] == pytest.approx(best[0], abs=1e-4)
        (shown,) = run(capsys, folder, question, "--text-pair", context)
        assert shown["answer"] == context[slice(*best[1:])]


def find_spans(tokenizer, model, question: str, context: str) -> list[tuple[float, int, int]]:
    """Return of every part of a text how likely the best answer is, and its characters."""
    encoded = tokenizer(
        question,
        context,
        return_tensors="pt",
        truncation="only_second",
        max_length=128,
        stride=64,
        return_overflowing_tokens=True,
        padding=True,
    )
    encoded.pop("overflow_to_sample_mapping")
    with torch.no_grad():
        answer = model(**encoded)
    spans = []
    for part in range(len(encoded.input_ids)):
        inside = [at for at, which in enumerate(encoded.sequence_ids(part)) if which == 1]
        starts, ends = (
            torch.softmax(logits[part, [0, *inside]], 0)[1:]
            for logits in (answer.start_logits, answer.end_logits)
        )
        score, first, last = max(
            (float(starts[a] * ends[b]), a, b)
            for a in range(len(inside))
            for b in range(a, min(a + 15, len(inside)))
        )
        first, last = (
            encoded.word_to_chars(part, encoded.token_to_word(part, inside[at]), 1)[side]
            for at, side in ((first, 0), (last, 1))
        )
        spans.append((score, first, last))
    return spans
