"""Vectors of sentences, made of a model's outputs as sentence-transformers does."""

from __future__ import annotations

import numpy as np

from ortune.core.errors import BadData
from ortune.core.hub import Pooling
from ortune.core.session import Tensors
from ortune.metrics.common.outputs import Floats, is_exact, select_outputs

_MASK = "attention_mask"
_TOKENS = 3


def find_vectors(outputs: Tensors, output: str) -> str:
    """Return the output that holds vectors: of sentences where there is one, else of tokens.

    Args:
        outputs: The baseline's.
        output: Its name; empty takes the first of rank 2 whose name speaks of sentences, else the
            first of rank 3, else the first of rank 2.

    Raises:
        BadData: There is none.
    """
    if output:
        return select_outputs(outputs, output)[0]
    ranks = {name: array.ndim for name, array in outputs.items() if not is_exact(array)}
    sentences = [name for name, rank in ranks.items() if rank == 2 and "sentence" in name.lower()]
    by_rank = [name for want in (_TOKENS, 2) for name, rank in ranks.items() if rank == want]
    if not (names := [*sentences, *by_rank]):
        raise BadData(
            f"no output of {', '.join(outputs)} holds vectors of sentences or tokens",
            fix="use cosine or agreement",
        )
    return names[0]


def pool_sentences(outputs: Tensors, name: str, pooling: Pooling, inputs: Tensors) -> Floats:
    """Return one vector a sentence, float64 [sentences, width].

    Args:
        pooling: How vectors of tokens [sentences, tokens, width] become one.
        inputs: Their ``attention_mask`` says which tokens count; without one all do.
    """
    values = outputs[name].astype(np.float64)
    if values.ndim != _TOKENS:
        return values.reshape(len(values), -1)
    mask = np.asarray(inputs.get(_MASK, np.ones(values.shape[:2])), np.float64)
    weights = mask.reshape(values.shape[:2])[..., None]
    if pooling == "cls":
        return np.asarray(values[:, 0])
    if pooling == "max":
        return np.asarray(np.where(weights > 0, values, -np.inf).max(1))
    if pooling == "last":
        last = values.shape[1] - 1 - np.argmax(weights[:, ::-1, 0] > 0, axis=1)
        return np.asarray(values[np.arange(len(values)), last])
    return np.asarray((values * weights).sum(1) / np.maximum(weights.sum(1), 1e-9))


def compute_cosines(first: Floats, second: Floats) -> Floats:
    """Return the cosine of each two rows; 0 where one of them is zero."""
    lengths = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    products = (first * second).sum(-1)
    cosines = np.divide(products, lengths, np.zeros_like(products), where=lengths > 0)
    return np.asarray(np.clip(cosines, -1, 1))
