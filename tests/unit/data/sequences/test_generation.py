"""Greedy tokens with a cache are those of the whole text without one."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.stateful import WORDS, write_decoder

import ortune as ot
from ortune.core.errors import BadData
from ortune.data.sequences.generation import CachedDecoder, Generation, generate_tokens

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
        assert list(generate_tokens(decoder, PROMPT, 9, ends)) == kept
        assert list(generate_tokens(decoder, PROMPT, 2)) == expected[:2]


def test_what_has_no_growing_cache_is_refused() -> None:
    def run(fed: Any) -> Any:
        return {"logits": np.zeros((1, WORDS), np.float32), "hn": np.zeros((1, 4), np.float32)}

    with pytest.raises(BadData, match="no cache"):
        CachedDecoder(run, {"input_ids": PROMPT})
    with pytest.raises(BadData, match="'h0' does not grow"):
        CachedDecoder(run, {"input_ids": PROMPT, "h0": np.zeros((1, 4), np.float32)})
    with pytest.raises(BadData, match="no input 'input_ids'"):
        CachedDecoder(run, {"x": PROMPT})
