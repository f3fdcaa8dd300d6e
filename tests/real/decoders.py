"""Small decoders of transformers, and news to train their tokenizers and them on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ortune.core.sample import locate_installed_file

_END = "<|endoftext|>"


def read_news(name: str = "lee_background.cor") -> list[str]:
    """Return the articles of a corpus that gensim ships: 300 of some 200 words, or 50."""
    path = locate_installed_file("gensim", f"gensim/test/test_data/{name}")
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def make_decoder(folder: Path, kind: str = "llama", words: int = 600, **sizes: int) -> Path:
    """Write a decoder of random weights and its tokenizer, which is trained on news.

    Args:
        folder: To write into.
        kind: ``llama`` or ``gpt2``.
        words: Tokens of the vocabulary.
        sizes: Settings of the model in the words of its configuration.
    """
    import torch
    import transformers

    _train_tokenizer(words).save_pretrained(folder)
    torch.manual_seed(0)
    shared = {"vocab_size": words, "bos_token_id": 0, "eos_token_id": 0}
    if kind == "gpt2":
        small = {"n_positions": 256, "n_embd": 64, "n_layer": 2, "n_head": 4}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shared, **small, **sizes))
    else:
        small = {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
        }
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shared, **small | sizes))
    model.save_pretrained(folder)
    return folder


def _train_tokenizer(words: int) -> Any:
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(read_news(), trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_END)


def train_decoder(folder: Path, articles: list[str], steps: int, length: int = 128) -> float:
    """Train a folder's decoder on articles and write it back; return its last loss in nats."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    ids = torch.tensor([token for text in articles for token in [*tokenizer.encode(text), 0]])
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    model.train()
    losses = []
    for _ in range(steps):
        starts = torch.randint(0, len(ids) - length, (16,))
        batch = torch.stack([ids[start : start + length] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    model.eval().save_pretrained(folder)
    return sum(losses[-20:]) / len(losses[-20:])


def make_encoder_decoder(folder: Path, kind: str) -> Path:
    """Write an encoder-decoder of random weights, a tokenizer and perhaps a feature extractor.

    Args:
        kind: ``t5``, ``bart`` or ``marian``; or ``whisper``, of which an answer takes a second.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    shared = {"vocab_size": 600, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 2}
    halves = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}
    sizes = {f"{half}_{k}": n for half in ("encoder", "decoder") for k, n in halves.items()}
    sizes |= {"d_model": 64, "init_std": 0.3}
    _train_tokenizer(600).save_pretrained(folder)
    if kind == "t5":
        sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
        config = transformers.T5Config(**shared, **sizes)
        model = transformers.T5ForConditionalGeneration(config)
    elif kind == "whisper":
        sizes |= {"num_mel_bins": 16, "max_source_positions": 50}
        config = transformers.WhisperConfig(**shared, bos_token_id=1, **sizes)
        model = transformers.WhisperForConditionalGeneration(config)
        extractor = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=1)
        extractor.save_pretrained(folder)
    else:
        sizes |= {"max_position_embeddings": 256}
        name = {"bart": "Bart", "marian": "Marian"}[kind]
        head = {"bart": "BartForConditionalGeneration", "marian": "MarianMTModel"}[kind]
        config = getattr(transformers, f"{name}Config")(**shared, bos_token_id=3, **sizes)
        model = getattr(transformers, head)(config)
    model.save_pretrained(folder)
    return folder


def make_spelling(folder: Path, norm: str = "layer") -> Path:
    """Write a wav2vec2 of random weights that spells (CTC), its alphabet and feature extractor."""
    import torch
    import transformers

    torch.manual_seed(0)
    folder.mkdir(parents=True)
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAOINSHRDLUMCWFGYPB"]
    (folder / "vocab.json").write_text(json.dumps({c: n for n, c in enumerate(letters)}))
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "conv_dim": (32,) * 3, "conv_kernel": (10, 8, 4)}
    sizes |= {"conv_stride": (5, 8, 4), "num_conv_pos_embeddings": 16}
    sizes |= {"num_conv_pos_embedding_groups": 4, "feat_extract_norm": norm}
    sizes |= {"do_stable_layer_norm": norm == "layer", "initializer_range": 0.3}
    config = transformers.Wav2Vec2Config(vocab_size=len(letters), pad_token_id=0, **sizes)
    model = transformers.Wav2Vec2ForCTC(config).eval()
    with torch.no_grad():  # else one letter is always the likeliest, and words never end
        model.lm_head.bias -= model(torch.randn(1, 16000)).logits[0].mean(0)
        model.lm_head.bias[1:4] = -100
    model.save_pretrained(folder)
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=norm == "layer")
    transformers.Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)
    return folder
