"""A decoder of transformers with random weights: its folder in, its own text out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ortune as ot
from ortune.cli.main import DONE, main
from ortune.core.sample import locate_installed_file

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

PROMPT, TOKENS = "The president said that", 20
GENERATE = "generate(prompt=8, tokens=4)"


def read_news() -> list[str]:
    file = locate_installed_file("gensim", "gensim/test/test_data/lee_background.cor")
    return file.read_text().splitlines()[:60]


def make_decoder(kind: str, folder: Path) -> Path:
    """Write a small decoder and a tokenizer that is trained on news."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    tokenizer.train_from_iterator(
        read_news(),
        trainers.BpeTrainer(
            vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0])
    fast.save_pretrained(folder)
    shared = {"vocab_size": 600, "bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(**shared, n_positions=256, n_embd=64, n_layer=2, n_head=4)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            **shared,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
        model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder


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
    folder = make_decoder(kind, tmp_path / kind)
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
    folder = make_decoder("llama", tmp_path / "llama")
    ot.export(str(folder), out=folder / "onnx" / "model.onnx")
    texts = tmp_path / "news.txt"
    texts.write_text("\n".join(line[:120] for line in read_news()))
    ot.apply(folder, steps=["int8-weights(form=nbits)"], out=tmp_path / "int8.onnx")
    compared = ot.verify(folder, tmp_path / "int8.onnx", data=texts)
    assert str(compared.budget) == "agreement(output=logits)>=0.99"
    scores = {score.metric: score for score in compared.scores}
    assert scores["agreement(output=logits)"].value > 0.9
    surprise: Any = scores["perplexity"]
    assert 400 < surprise.base < 800, "random weights know next to nothing of 600 words"
    assert abs(surprise.value - surprise.base) < 5


@pytest.mark.long
def test_onnxruntime_genai_writes_what_the_bundle_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    genai = pytest.importorskip("onnxruntime_genai")
    folder = make_decoder("llama", tmp_path / "llama")
    ot.export(str(folder), out=folder / "onnx" / "model.onnx")
    texts = tmp_path / "news.txt"
    texts.write_text("\n".join(line[:120] for line in read_news()))
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
