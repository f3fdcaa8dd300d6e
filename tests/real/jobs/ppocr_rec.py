"""PP-OCRv6's recogniser: lines of any width, read by CTC."""

from __future__ import annotations

from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.real import rendered
from tests.real import task as tasks
from tests.real.task import Run, Task, installed

LINES = 32


def missing() -> str | None:
    """Return the pip line for what is not installed."""
    return tasks.missing(rendered.PACKAGES)


def task(folder: Path) -> Task:
    """Return a search that is scored by characters read right."""
    return Task(
        (_file(),),
        "score>=base-0.005",
        lambda run: accuracy(np.array(evaluate(run), np.float64)),
        allowed=0.005,
        evaluate=f"{__name__}:evaluate",
    )


def evaluate(run: Run) -> list[tuple[int, int]]:
    """Return (wrong characters, characters) of every line."""
    letters, found = alphabet(), []
    for strip, text in lines():
        (scores,) = run(x=strip).values()
        found.append((distance(read(scores[0], letters), text), len(text)))
    return found


def read(scores: NDArray[np.float32], letters: list[str]) -> str:
    """Decode one line's scores [steps, characters] greedily: repeats and blanks go."""
    best = [key for key, _ in groupby(scores.argmax(1).tolist())]
    return "".join(letters[i] for i in best if i).strip()


def accuracy(rows: NDArray[Any]) -> float:
    """Return the share of characters read right."""
    return 1 - float(rows[:, 0].sum() / rows[:, 1].sum())


evaluate.aggregate = accuracy  # type: ignore[attr-defined]


@cache
def lines() -> list[tuple[NDArray[np.float32], str]]:
    """Return line images [1, 3, 48, width] with their text."""
    rng = np.random.default_rng(0)
    texts = rendered.reviews()[:LINES]
    return [(rendered.strip(rendered.line(text, rng)), text) for text in texts]


@cache
def alphabet() -> list[str]:
    """Return the characters by class number; 0 is CTC's blank."""
    model = onnx.load(_file(), load_external_data=False)
    properties = {item.key: item.value for item in model.metadata_props}
    return ["", *properties["character"].splitlines(), " "]


def distance(one: str, two: str) -> int:
    """Return Levenshtein's edit distance."""
    row = list(range(len(two) + 1))
    for i, x in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(two, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def _file() -> Path:
    return installed("rapidocr", "rapidocr/models/PP-OCRv6_rec_small.onnx")
