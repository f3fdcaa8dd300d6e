"""Numbers of tokens as text, and letters as numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ortune.core import hub
from ortune.data.classes import Alphabet, read_alphabet

TOKENS = {"<pad>": 0, "|": 1, "A": 2, "B": 3}


def read(folder: Path, vocabulary: Any, **settings: Any) -> Alphabet | None:
    config = {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return read_alphabet(hub.find_folder(folder))


def test_text_and_back(tmp_path: Path) -> None:
    alphabet = read(tmp_path, TOKENS)
    assert alphabet is not None and alphabet.words_end == 1
    assert alphabet.join_tokens([1, 2, 3, 1, 2, 9]) == "AB A<unk>"
    assert alphabet.number_text(" ab\t b?") == [2, 3, 1, 3, -1]


def test_what_the_tokenizer_says(tmp_path: Path) -> None:
    added = {"4": {"content": "<s>"}, "x": {}, "\u00b2": {}}
    settings = {"do_lower_case": True, "word_delimiter_token": {"content": "B"}}
    found = read(
        tmp_path, {"eng": TOKENS}, target_lang="eng", added_tokens_decoder=added, **settings
    )
    assert found is not None and (found.words_end, found.blank) == (3, 0)
    assert found.join_tokens([2, 3, 1, 4]) == "a |<s>"
    odd = read(tmp_path, {"x": [1], **TOKENS}, target_lang=["x"], added_tokens_decoder=3)
    assert odd is not None and odd.tokens == {number: token for token, number in TOKENS.items()}


def test_none_of_other_models_or_without_letters(tmp_path: Path) -> None:
    assert read(tmp_path, TOKENS) is not None
    (tmp_path / "vocab.json").unlink()
    assert read_alphabet(hub.find_folder(tmp_path)) is None and read_alphabet(None) is None
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "architectures": ["GPT2Model"]}')
    assert read_alphabet(hub.find_folder(tmp_path)) is None
