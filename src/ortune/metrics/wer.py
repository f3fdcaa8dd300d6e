"""Errors of a model that spells what it hears (CTC), of words or of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.metric import Metric
from ortune.core.plugins import bounds
from ortune.core.plugins.bounds import Bounds
from ortune.core.session import Tensors
from ortune.metrics.common import outputs


@dataclass(frozen=True)
class Wer(Metric):
    """The mean of the samples' word error rates, each 1 at most; 0 is the same text.

    Words that are wrong, missing or too many, as a share of those of the label, which is a list of
    tokens; without labels of those that the original spells.

    Attributes:
        output: Output of logits [..., frames, tokens].
        blank: The token that stands for no letter.
        delimiter: The token between words; -1 counts tokens in the place of words.
        share: Of the samples that must keep the limit; 0 takes the mean.
    """

    higher_is_better: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    output: str = "logits"
    blank: Annotated[int, Bounds()] = 0
    delimiter: Annotated[int, Bounds(-1)] = -1
    share: Annotated[float, bounds.SHARE] = 0.0

    @property
    def kept_by(self) -> float:
        return self.share

    def record(self, expected: Tensors, actual: Tensors, label: Any) -> float:
        """Return the share of a sample's words that are wrong.

        Raises:
            BadData: There is no such output, or the label is no list of tokens.
        """
        (name,) = outputs.select_outputs(expected, self.output)
        if outputs.has_broken_values(expected, actual, [name]):
            return float("nan")
        if not outputs.has_same_shape(expected, actual, name):
            return 1.0
        right = collapse_path(expected[name], self.blank)
        if label is not None:
            right = np.ravel(np.asarray(label)).tolist()
            if not all(type(token) is int for token in right):
                raise BadData(
                    f"label {str(label)[:40]!r} is no list of tokens",
                    fix="give the model's folder with vocab.json, and texts as labels",
                )
        words, spelled = map(self._split_words, (right, collapse_path(actual[name], self.blank)))
        return min(1.0, count_edits(words, spelled) / max(1, len(words)))

    def _split_words(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        if self.delimiter < 0:
            return [(token,) for token in tokens]
        words: list[tuple[int, ...]] = [()]
        for token in tokens:
            if token == self.delimiter:
                words.append(())
            else:
                words[-1] += (token,)
        return list(filter(None, words))


def collapse_path(logits: NDArray[Any], blank: int) -> list[int]:
    """Return the likeliest tokens of one sample [..., frames, tokens], greedily.

    Equal ones side by side are one token, and blanks are left out.
    """
    path = logits.reshape(-1, logits.shape[-1]).argmax(-1)
    firsts = path[np.flatnonzero(np.diff(path, prepend=-1))]
    return [int(token) for token in firsts if token != blank]


def count_edits(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return how many items must be changed, added or left out to make one list the other."""
    numbers: dict[Any, int] = {}
    before, after = (
        [numbers.setdefault(x, len(numbers)) for x in side] for side in (first, second)
    )
    places = np.arange(len(after) + 1)
    row = places.copy()
    for item in before:
        changed = row[:-1] + (np.array(after, np.int64) != item)
        reached = np.concatenate(([row[0] + 1], np.minimum(changed, row[1:] + 1)))
        row = np.minimum.accumulate(reached - places) + places
    return int(row[-1])
