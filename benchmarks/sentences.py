"""The metric of a sentence encoder: the cosine of mean-pooled embeddings, padding left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Outputs = Mapping[str, NDArray[Any]]


def cosine(expected: Outputs, actual: Outputs, label: object) -> float:
    """Return the cosine between the two embeddings of one unpadded sentence.

    Args:
        expected: ``last_hidden_state`` of the original, float32 [1, tokens, width].
        actual: The same of a candidate.
        label: Ignored.
    """
    one, two = (
        np.asarray(o["last_hidden_state"], np.float64)[0].mean(0) for o in (expected, actual)
    )
    return float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))


cosine.share = 0.95  # type: ignore[attr-defined]
