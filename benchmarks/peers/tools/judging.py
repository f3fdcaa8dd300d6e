"""The budget's score, for tools that look at it while they quantize; runs in their environments.

The race itself judges every file by ortune's own metrics; these are the same sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

Arrays = Mapping[str, np.ndarray]
NOT_FED = ("label", "group")
SHARE = 0.95
"""Of the sentences that must keep the cosine."""
CAP_DB = 200.0


def samples(folder: Path) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray | None]]:
    """Yield feeds with their label, None where there is none."""
    for path in sorted(folder.glob("*.npz")):
        arrays = dict(np.load(path))
        label = arrays.get("label")
        yield {name: array for name, array in arrays.items() if name not in NOT_FED}, label


def top1(outputs: Sequence[Arrays], _: Sequence[Arrays], labels: Sequence[np.ndarray]) -> float:
    """Return the share of samples whose highest score is the labelled class."""
    right = [
        int(next(iter(one.values())).argmax(-1).ravel()[0]) == int(np.ravel(label)[0])
        for one, label in zip(outputs, labels, strict=True)
    ]
    return float(np.mean(right))


def sentence_cosine(outputs: Sequence[Arrays], expected: Sequence[Arrays], _: object) -> float:
    """Return the cosine of mean-pooled embeddings that `SHARE` of the sentences keep."""
    found = []
    for pair in zip(expected, outputs, strict=True):
        one, two = (np.asarray(o["last_hidden_state"], np.float64)[0].mean(0) for o in pair)
        found.append(float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two))))
    found.sort()
    return found[len(found) - int(np.ceil(SHARE * len(found) - 1e-9))]


def snr(outputs: Sequence[Arrays], expected: Sequence[Arrays], _: object) -> float:
    """Return signal over noise in dB, powers summed over samples and outputs."""
    signal = noise = 0.0
    for want, got in zip(expected, outputs, strict=True):
        for name, array in want.items():
            one = np.asarray(array, np.float64).ravel()
            two = np.asarray(got[name], np.float64).ravel()
            signal, noise = signal + float(one @ one), noise + float((one - two) @ (one - two))
    if not noise:
        return CAP_DB
    return float(np.clip(10 * np.log10(signal / noise), -CAP_DB, CAP_DB)) if signal else -CAP_DB


METRICS = {"top1": top1, "sentence cosine": sentence_cosine, "snr": snr}


class Judge:
    """Scores against the original's outputs, which are computed once.

    Attributes:
        base: The original's own score.
        least: What a file within the budget scores at least.
    """

    def __init__(self, model: Path, data: Path, metric: str, drop: float) -> None:
        both = list(samples(data))
        self.feeds = [feed for feed, _ in both]
        self._labels = [label for _, label in both]
        self._metric = METRICS[metric]
        self._expected = self._outputs(running(model))
        self.base = self._metric(self._expected, self._expected, self._labels)
        self.least = self.base - drop - 1e-9

    def score(self, run: Callable[[Arrays], Arrays]) -> float:
        """Score what answers a feed with its outputs by name."""
        return self._metric(self._outputs(run), self._expected, self._labels)

    def some(
        self, run: Callable[[Arrays], Arrays], indices: Sequence[int]
    ) -> tuple[float, list[float]]:
        """Score what answers the feeds of some indices: together, and each by itself."""
        found = [
            (run(self.feeds[k]), self._expected[k], self._labels[k]) for k in map(int, indices)
        ]
        each = [self._metric(*([part] for part in one)) for one in found]
        return self._metric(*map(list, zip(*found, strict=True))), each

    def file(self, model: str | Path) -> float:
        """Score a file, run by onnxruntime."""
        return self.score(running(model))

    def _outputs(self, run: Callable[[Arrays], Arrays]) -> list[Arrays]:
        return [run(feed) for feed in self.feeds]


def running(model: str | Path | bytes) -> Callable[[Arrays], Arrays]:
    """Return a function from feeds to the outputs that onnxruntime's CPU provider gives."""
    import onnxruntime

    source = model if isinstance(model, bytes) else str(model)
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(None, dict(feed)), strict=True))
