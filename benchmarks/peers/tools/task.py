"""What a tool's script is told and what it tells; runs inside that tool's own environment."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from judging import Judge, samples


@dataclass(frozen=True)
class Task:
    """One file to make.

    Attributes:
        model: The original, float32.
        samples: Folder of .npz files, one sample each, for calibration.
        out: Where the made model goes.
        recipe: Which of the tool's ways.
        transformer: The model is one; some tools want to be told.
        goal: What the file must keep: folder ``data`` of samples, ``metric``, the ``drop`` that
            is allowed, and the ``seconds`` there are; empty outside the race.
    """

    model: Path
    samples: Path
    out: Path
    recipe: str
    transformer: bool
    goal: dict[str, Any] = field(default_factory=dict)

    def feeds(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield the calibration samples, arrays by input name."""
        yield from (feed for feed, _ in samples(self.samples))

    def judge(self) -> Judge:
        """Return what scores by the goal's metric."""
        goal = self.goal
        return Judge(self.model, Path(goal["data"]), goal["metric"], goal["drop"])

    def stacked(self) -> dict[str, np.ndarray]:
        """Return all samples as one batch; shorter ones are filled up with zeros behind."""
        feeds = list(self.feeds())
        found = {}
        for name in feeds[0]:
            arrays = [feed[name] for feed in feeds]
            shape = np.max([array.shape[1:] for array in arrays], axis=0)
            padded = [
                np.pad(a, [(0, 0), *((0, w - h) for w, h in zip(shape, a.shape[1:], strict=True))])
                for a in arrays
            ]
            found[name] = np.concatenate(padded)
        return found


class Reader:
    """The samples one by one, as onnxruntime's calibration and tools built on it ask for them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.rewind()

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)

    def rewind(self) -> None:
        self._left = self._task.feeds()


def told() -> Task:
    """Read the command line: MODEL SAMPLES OUT RECIPE KIND [GOAL]."""
    model, samples, out, recipe, kind, *more = sys.argv[1:]
    goal = json.loads(more[0]) if more else {}
    return Task(Path(model), Path(samples), Path(out), recipe, kind == "transformer", goal)


def tell(distribution: str, note: str = "") -> None:
    """Print the line that the caller reads; it is the last."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = max(resource.getrusage(who).ru_maxrss for who in whose) * 1024
    facts = {"version": version(distribution), "note": note, "peak_rss": peak}
    print(json.dumps(facts))
