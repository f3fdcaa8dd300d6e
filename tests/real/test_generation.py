"""A decoder of transformers with random weights: its folder in, its own text out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ortune as ot
from ortune.cli.main import DONE, main
from tests.real.decoders import make_decoder, read_news

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

PROMPT, TOKENS = "The president said that", 20
GENERATE = "generate(prompt=8, tokens=4)"


def write_by_transformers(folder: Path) -> list[int]:
    """Return the tokens that transformers writes after the prompt."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    fed = tokenizer(PROMPT, return_tensors="pt")
    fed.pop("token_type_ids", None)
    tokens = model.generate(**fed, max_new_tokens=TOKENS, do_sample=False)
    return list(map(int, tokens[0][fed["input_ids"].shape[1] :]))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_folder_writes_what_transformers_writes(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_decoder(tmp_path / kind, kind)
    exported = ot.export(str(folder), out=folder / "onnx" / "model.onnx")
    assert {"past": 0}.items() <= exported.sizes[1].items(), "without a cache it is right too"
    capsys.readouterr()
    assert main(["run", str(folder), PROMPT, "--tokens", str(TOKENS), "--json"]) == DONE
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    expected = write_by_transformers(folder)
    ends = expected.index(0) if 0 in expected else len(expected)
    assert answer["tokens"] == expected[:ends]
    assert len(set(answer["tokens"])) > 1 or kind == "gpt2"


@pytest.mark.long
def test_four_bits_are_judged_on_texts(tmp_path: Path) -> None:
    folder = make_decoder(tmp_path / "llama")
    ot.export(str(folder), out=folder / "onnx" / "model.onnx")
    texts = tmp_path / "news.txt"
    texts.write_text("\n".join(line[:120] for line in read_news()[:60]))
    ot.apply(folder, steps=["int8-weights(form=nbits)"], out=tmp_path / "int8.onnx")
    compared = ot.verify(folder, tmp_path / "int8.onnx", data=texts)
    assert str(compared.budget) == "agreement(output=logits)>=0.99"
    scores = {score.metric: score for score in compared.scores}
    assert not any("present" in metric for metric in scores), "a cache is judged by the logits"
    assert scores["agreement(output=logits)"].value > 0.9
    surprise: Any = scores["perplexity"]
    assert 400 < surprise.base < 800, "random weights know next to nothing of 600 words"
    assert abs(surprise.value - surprise.base) < 5


@pytest.mark.long
def test_onnxruntime_genai_writes_what_the_bundle_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    genai = pytest.importorskip("onnxruntime_genai")
    folder = make_decoder(tmp_path / "llama")
    ot.export(str(folder), out=folder / "onnx" / "model.onnx")
    texts = tmp_path / "news.txt"
    texts.write_text("\n".join(line[:120] for line in read_news()[:60]))
    study = ot.optimize(folder, data=texts, on="cpu", time="15s", out=tmp_path / "run")
    packed = ot.pack(study, tmp_path / "genai", target="genai", original=True)
    bundle = ot.pack(study, tmp_path / "decoder.ortune")
    capsys.readouterr()
    assert main(["run", str(bundle), PROMPT, "--tokens", str(TOKENS), "--json"]) == DONE
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    model = genai.Model(str(packed))
    prompt = genai.Tokenizer(model).encode(PROMPT)
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=len(prompt) + TOKENS, do_sample=False)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    written = list(map(int, generator.get_sequence(0)[len(prompt) :]))
    assert [token for token in written if token] == answer["tokens"]
    (packed / "config.json").unlink()
    assert main(["bench", str(packed), "--workload", GENERATE, "--time", "1s"]) == DONE
