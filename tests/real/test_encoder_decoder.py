"""Encoder-decoders of transformers with random weights: a folder in, its own answers out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortune as ot
from ortune.bundle.engine.load import load_engine
from ortune.bundle.text_call import add_texts
from ortune.cli.main import DONE, main
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
    path = folder / "features.npz"
    features = np.random.default_rng(0).standard_normal((40, 16, 100)).astype(np.float32)
    np.savez(path, input_features=features)
    first = folder / "first.npz"
    np.savez(first, input_features=features[:1])
    return path, {"input_features": torch.from_numpy(features[:1])}, str(first)


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
    assert agreed >= 0.5 * len(expected) and ("text" in answer) == (kind == "t5")
    if kind == "t5":
        with load_engine(bundle) as engine:
            add_texts(engine, bundle)
            (text,) = asyncio.run(engine["text"].submit(text=np.array([words], object)))["text"]
        assert text.startswith(answer["text"])
