"""Encoder-decoders of transformers with random weights: a folder in, its own answers out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortune as ot
from ortune.bundle.answers import Answerer, RunSample, add_answers
from ortune.bundle.engine.load import load_engine
from ortune.cli.main import DONE, main
from ortune.core import hub
from ortune.data.feeds import load_feeds
from ortune.data.sentences import open_sentences
from ortune.data.stream import Stream
from tests.real.decoders import make_encoder_decoder, read_news

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

TOKENS = 12


def write_samples(folder: Path, kind: str) -> tuple[Path, dict[str, Any], str]:
    """Write samples of a model; return their file, the first, and how `run` is given it."""
    if kind == "t5":
        path, lines = folder / "texts.txt", [line[:80] for line in read_news()[:40]]
        path.write_text("\n".join(lines))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        fed = dict(tokenizer(lines[0].strip(), return_tensors="pt"))
        fed.pop("token_type_ids", None)
        return path, fed, lines[0].strip()
    soundfile = pytest.importorskip("soundfile")
    (path := folder / "speech").mkdir()
    sounds = np.random.default_rng(0).normal(0, 0.2, (40, 16000)).astype(np.float32)
    for number, sound in enumerate(sounds):
        soundfile.write(path / f"{number:02}.wav", sound, 16000, subtype="FLOAT")
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    fed = dict(extractor(sounds[0], sampling_rate=16000, return_tensors="pt"))
    return path, fed, str(path / "00.wav")


def write_by_transformers(folder: Path, fed: dict[str, Any]) -> list[int]:
    """Return the likeliest tokens, each by the whole model, without a cache."""
    kind = {"t5": "T5", "whisper": "Whisper"}[folder.name] + "ForConditionalGeneration"
    model = getattr(transformers, kind).from_pretrained(folder, local_files_only=True)
    ids = torch.tensor([[2]])
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = model(**fed, decoder_input_ids=ids, use_cache=False).logits
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    return list(map(int, ids[0, 1:]))


class Pair(dict[str, Any]):
    """Two loaded models, as an engine has them."""

    models = property(tuple)


def answer(folder: Path, sample: Callable[[Any], tuple[Any, Any]]) -> dict[str, Any]:
    """Export both parts of a folder, and answer what `sample` makes of its encoder's inputs."""
    settings = hub.find_folder(folder)
    assert settings is not None
    with ExitStack() as opened:
        pair = Pair()
        for part in ("encoder", "decoder"):
            out = folder / "parts" / f"{part}.onnx"
            out.parent.mkdir(exist_ok=True)
            ot.export(str(folder), out=out, part=part)
            pair[part] = opened.enter_context(load_engine(out))[""]
        answerer = Answerer(pair, settings)  # type: ignore[arg-type]
        inputs, text = sample(answerer.main.signature.inputs)
        given = RunSample(inputs, answerer.main.run(inputs), text)
        found = answerer.answer([given], TOKENS)
    assert found is not None
    return dict(found)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["t5", "bart", "marian"])
@pytest.mark.parametrize("rules", [False, True])
def test_texts_are_answered_as_transformers_generates(
    kind: str, rules: bool, tmp_path: Path
) -> None:
    folder = make_encoder_decoder(tmp_path / kind, kind)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True)
    if rules:
        model.generation_config.forced_bos_token_id = 3
        model.generation_config.bad_words_ids = [[0], [59]]
        model.generation_config.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    words = read_news()[0][:80].strip()
    fed = tokenizer(words, return_tensors="pt", return_token_type_ids=False)
    # Its last token may be forced to end the text: one more is asked for.
    (expected,) = model.generate(**fed, max_new_tokens=TOKENS + 1, num_beams=1, do_sample=False)
    expected = expected[1 : TOKENS + 1].tolist()
    expected = expected[: expected.index(1)] if 1 in expected else expected

    def tokenize(inputs: Any) -> tuple[Any, Any]:
        sentences = open_sentences(hub.find_folder(folder), inputs, lambda text: None)
        assert sentences is not None
        (text,) = sentences.tokenize(words)
        return text.inputs, text

    found = answer(folder, tokenize)
    assert found["tokens"] == expected and len(expected) > 3
    assert found["text"] == tokenizer.decode(expected, skip_special_tokens=True)
    assert (found["tokens"][0] == 3) == rules


def write_by_rules(model: Any, features: Any) -> list[int]:
    """Return greedy tokens behind the likelier language, the task and no time stamps.

    Releases of transformers differ in which of these `generate` takes from a folder's file.
    """
    tokens = [model.config.decoder_start_token_id]
    while len(tokens) <= TOKENS:
        with torch.no_grad():
            logits = model(features, decoder_input_ids=torch.tensor([tokens])).logits[0, -1]
        logits[[50, 51, 52]] = -torch.inf
        if len(tokens) == 4:
            logits[[53, 1]] = -torch.inf
        rest = {2: 32, 3: 34}.get(len(tokens), int(logits.argmax()))
        tokens.append(30 + int(logits[31] > logits[30]) if len(tokens) == 1 else rest)
    return tokens[1:]


@pytest.mark.long
@pytest.mark.parametrize("rules", [False, True])
def test_sound_is_answered_as_transformers_generates(rules: bool, tmp_path: Path) -> None:
    """A file of another rate and two channels becomes the features of transformers' extractor."""
    soundfile, soxr = pytest.importorskip("soundfile"), pytest.importorskip("soxr")
    folder = make_encoder_decoder(tmp_path / "whisper", "whisper")
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    if rules:
        speech = {"lang_to_id": {"<|de|>": 30, "<|en|>": 31}, "is_multilingual": True}
        speech |= {"task_to_id": {"transcribe": 32, "translate": 33}}
        speech |= {"forced_decoder_ids": [[1, None], [2, 32]], "no_timestamps_token_id": 34}
        speech |= {"suppress_tokens": [50, 51, 52], "begin_suppress_tokens": [53, 1]}
        path = folder / "generation_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | speech))
        model = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    rng = np.random.default_rng(0)
    tones = [np.sin(np.arange(16000) * hertz / 22050 * 6.28) for hertz in (440, 900)]
    sound = (np.stack(tones, 1) * 0.4 + rng.normal(0, 0.05, (16000, 2))).astype(np.float32)
    soundfile.write(tmp_path / "speech.wav", sound, 22050, subtype="FLOAT")
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    signal = soxr.resample(sound.mean(1), 22050, 16000)
    features = extractor(signal, sampling_rate=16000, return_tensors="pt").input_features
    (expected,) = model.generate(features, max_new_tokens=TOKENS, num_beams=1, do_sample=False)
    right = write_by_rules(model, features) if rules else expected.tolist()
    settings = hub.find_folder(folder)

    def read(inputs: Any) -> tuple[Any, Any]:
        fed = load_feeds(tmp_path / "speech.wav", inputs, tmp_path / "fed", settings=settings)
        (tensors,) = Stream(fed.stream)
        found = tensors["input_features"]
        np.testing.assert_allclose(found, features.numpy(), atol=1e-4)
        return tensors, None

    tokens = answer(folder, read)["tokens"]
    begun = [right[place : place + len(tokens)] for place in range(5)]
    assert tokens in begun and len(tokens) > 3, "with or without the first ones, by its release"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["t5", "whisper"])
def test_one_command_takes_a_folder_and_keeps_its_answers(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_encoder_decoder(tmp_path / kind, kind)
    data, fed, words = write_samples(folder, kind)
    study = ot.optimize(folder, data=data, on="cpu", time="20s", out=tmp_path / "run")
    assert study.job.budget.metric.name() == "score"
    kept = json.loads((tmp_path / "run" / "export" / "answers.json").read_text())
    expected = write_by_transformers(folder, fed)
    expected = expected[: expected.index(1)] if 1 in expected else expected
    assert kept["tokens"][0][: len(expected)] == expected
    assert len(kept["tokens"]) == 40
    bundle = ot.pack(study, tmp_path / "pair.ortune")
    capsys.readouterr()
    assert main(["run", str(bundle), words, "--tokens", str(TOKENS), "--json"]) == DONE
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    agreed = sum(a == b for a, b in zip(answer["tokens"], expected, strict=False))
    assert agreed >= 0.5 * len(expected)
    name = "text" if kind == "t5" else "sound"
    sent: Any = words if kind == "t5" else Path(words).read_bytes()
    with load_engine(bundle) as engine:
        add_answers(engine, bundle)
        (text,) = asyncio.run(engine[name].submit(**{name: np.array([sent], object)}))["text"]
    assert answer["text"] and text.startswith(answer["text"].rstrip("\ufffd"))
