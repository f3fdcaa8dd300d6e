"""Greedy tokens with a cache are those of the whole text without one."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.stateful import WORDS, write_decoder
from tests.unit import texts

import ortune as ot
from ortune.core.errors import BadData
from ortune.data.sequences.generation import (
    AnswerRules,
    CachedDecoder,
    Generation,
    compare_answer,
    generate_tokens,
    open_decoder,
    score_answers,
    write_answer,
)
from ortune.data.stream import write_stream

PROMPT = np.array([[3, 7, 1]], np.int64)


def sample(past: int) -> dict[str, Any]:
    return {
        "input_ids": PROMPT,
        "attention_mask": np.ones((1, past + 3), np.int64),
        "position_ids": np.arange(past, past + 3)[None],
        "past_key_values.0.key": np.ones((1, 2, past, 4), np.float32),
    }


def write_without_cache(path: Path, count: int) -> list[int]:
    """Answer by arithmetic: the model's logits are of the sum over all tokens so far."""
    weights = {w.name: numpy_helper.to_array(w) for w in onnx.load(path).graph.initializer}
    ids = [int(token) for token in PROMPT[0]]
    for _ in range(count):
        total = weights["words"][ids].sum(0) + weights["places"][: len(ids)].sum(0)
        ids.append(int((total @ weights["head"]).argmax()))
    return ids[PROMPT.size :]


def test_the_cache_changes_no_token(tmp_path: Path) -> None:
    path = write_decoder(tmp_path / "decoder.onnx")
    expected = write_without_cache(path, 9)
    assert len(set(expected)) > 1, "the model says more than one word"
    with ot.load(path) as engine:
        for past in (0, 5):
            decoder = CachedDecoder(lambda fed: engine(**fed), sample(past))
            generation = Generation(decoder, PROMPT)
            assert [int(token[0]) for token in islice(generation, 9)] == expected
            assert generation.past == 11
            assert generation.cache_bytes == 11 * 2 * 4 * 4
        rows = islice(Generation(decoder, np.repeat(PROMPT, 2, axis=0)), 9)
        assert [token.tolist() for token in rows] == [[token] * 2 for token in expected]
        ends = frozenset([expected[4]])
        kept = expected[: expected.index(expected[4])]
        assert list(generate_tokens(decoder, PROMPT, 9, AnswerRules(ends))) == kept
        assert list(generate_tokens(decoder, PROMPT, 2)) == expected[:2]


def test_an_answer_has_the_tokens_that_rules_allow(tmp_path: Path) -> None:
    with ot.load(write_decoder(tmp_path / "decoder.onnx")) as engine:
        decoder = CachedDecoder(lambda fed: engine(**fed), sample(0))

        def write(**rules: Any) -> list[int]:
            known = AnswerRules(**rules)
            tokens = list(generate_tokens(decoder, PROMPT, 4, known, decoder.first))
            assert tokens == list(generate_tokens(decoder, PROMPT, 4, known))
            return tokens

        free = write()
        pair = frozenset({free[0] + 1, free[0] + 2})
        assert write(forced=(pair, frozenset({3})))[0] in pair
        assert write(forced=(pair, frozenset({3})))[1] == 3
        assert write(banned_first=frozenset({free[0]}))[0] != free[0]
        assert not {free[0], free[1]} & set(write(banned=frozenset({free[0], free[1]})))
        assert write(banned=frozenset({10**6})) == free, "a token that the model does not have"


def test_a_folder_says_which_tokens_an_answer_has(tmp_path: Path) -> None:
    """By the keys of Whisper, BART and Marian in generation_config.json."""
    settings = texts.make_folder(tmp_path, is_encoder_decoder=True, forced_bos_token_id=7)
    keys: dict[str, Any] = {"eos_token_id": [1, 2], "bad_words_ids": [[4], [5, 6]]}
    keys |= {"suppress_tokens": [8, -1], "begin_suppress_tokens": [9]}
    (tmp_path / "generation_config.json").write_text(json.dumps(keys))
    expected = AnswerRules(frozenset({1, 2}), (frozenset({7}),), frozenset({4, 8}), frozenset({9}))
    assert AnswerRules.read_folder(settings) == expected
    speech = {"lang_to_id": {"<|de|>": 3, "<|en|>": 4}, "no_timestamps_token_id": 6}
    speech |= {"task_to_id": {"transcribe": 5, "translate": 8}}
    (tmp_path / "generation_config.json").write_text(json.dumps(speech))
    settings = texts.make_folder(tmp_path)
    assert settings.forced == (frozenset({3, 4}), frozenset({5}), frozenset({6}))


def test_what_has_no_growing_cache_is_refused() -> None:
    def run(fed: Any) -> Any:
        return {"logits": np.zeros((1, WORDS), np.float32), "hn": np.zeros((1, 4), np.float32)}

    with pytest.raises(BadData, match="no cache"):
        CachedDecoder(run, {"input_ids": PROMPT})
    with pytest.raises(BadData, match="'h0' does not grow"):
        CachedDecoder(run, {"input_ids": PROMPT, "h0": np.zeros((1, 4), np.float32)})
    with pytest.raises(BadData, match="no input 'input_ids'"):
        CachedDecoder(run, {"x": PROMPT})


def encode(fed: Any) -> Any:
    return {f"present.0.encoder.{part}": fed["x"] for part in ("key", "value")}


def decode(fed: Any) -> Any:
    """Find the number behind the last one likeliest, and 9 where the encoder's numbers are 0."""
    past, ids = fed["past_key_values.0.decoder.key"], fed["input_ids"]
    new = np.repeat(ids[:, None, :, None], 2, axis=3).astype(np.float32)
    after = ids + 1 if fed["past_key_values.0.encoder.key"].any() else np.full_like(ids, 9)
    present = np.concatenate([past, new], 2)
    caches = {f"present.0.decoder.{part}": present for part in ("key", "value")}
    return {"logits": np.eye(10, dtype=np.float32)[after], **caches}


def test_an_encoder_decoder_answers_and_is_scored_by_answers(tmp_path: Path) -> None:
    samples = [{"x": np.full((1, 1, 3, 2), number, np.float32)} for number in (1, 0)]
    first, second = (open_decoder(encode, decode, sample) for sample in samples)
    assert write_answer(first, 0, 9, frozenset([4])) == [1, 2, 3, 4]
    assert write_answer(first, 3, 2, frozenset()) == [4, 5]
    assert write_answer(second, 0, 2, frozenset()) == [9, 9]
    assert compare_answer(first, 0, [1, 2, 5, 6, 7]) == 0.8, "each behind those that are given"
    write_stream(tmp_path / "samples" / "feeds.stream", samples)
    kept = {"start": 0, "groups": ["a", "b"], "tokens": [[1, 2], [1, 9]]}
    (tmp_path / "answers.json").write_text(json.dumps(kept))
    run = {"encoder": lambda **fed: encode(fed), "decoder": lambda **fed: decode(fed)}
    assert list(score_answers(run, tmp_path)) == [(1.0, "a"), (0.5, "b")]
