"""Arabic names to Latin letters: GRU encoder and attention decoder, one job of two graphs."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.real import task as tasks
from tests.real.task import Runs, Task, installed

PACKAGE = "arabic-name-romanizer==0.2.0"
NAMES, BATCH, LONGEST, ATTESTED = 400, 50, 32, 20
PAD, START, END = 0, 1, 2


def missing() -> str | None:
    """Return the pip line for what is not installed."""
    return tasks.missing((PACKAGE,))


def task(folder: Path) -> Task:
    """Return a search over both graphs."""
    return Task(
        (_file("encoder.onnx"), _file("decoder.onnx")),
        "score>=base-0.01",
        lambda runs: float(np.mean(evaluate(runs))),
        evaluate=f"{__name__}:evaluate",
    )


def evaluate(runs: Runs) -> list[bool]:
    """Return for every name whether the spelling found is attested for it."""
    sources, attested, tokens = names()
    found: list[bool] = []
    for start in range(0, len(sources), BATCH):
        rows = decode(runs, sources[start : start + BATCH])
        for row, spellings in zip(rows, attested[start : start + BATCH], strict=True):
            ids = row.tolist()
            ids = ids[: ids.index(END)] if END in ids else ids
            text = "".join(tokens[i] for i in ids if i > 3 and not tokens[i].startswith("<"))
            found.append(text.strip() in spellings)
    return found


def decode(runs: Runs, sources: list[list[int]]) -> NDArray[np.int64]:
    """Return greedy token ids [names, steps]."""
    padded = np.zeros((len(sources), max(map(len, sources))), np.int64)
    for row, source in zip(padded, sources, strict=True):
        row[: len(source)] = source
    code = runs["encoder"](src=padded, src_mask=padded == PAD)
    hidden, prefix = code["hidden_out"], np.full((len(sources), 1), START, np.int64)
    done = np.zeros(len(sources), bool)
    for step in range(LONGEST):
        answer = runs["decoder"](
            prefix=prefix, memory=code["memory_out"], src_mask=code["src_mask_out"], hidden=hidden
        )
        scores, hidden = np.array(answer["logprobs"]), answer["hidden_out"]
        scores[:, [PAD, START] if step else [PAD, START, END]] = -np.inf
        chosen = np.where(done, PAD, scores.argmax(1))
        prefix = np.concatenate([prefix, chosen[:, None]], 1)
        done |= chosen == END
        if done.all():
            break
    return prefix[:, 1:]


@cache
def names() -> tuple[list[list[int]], list[set[str]], dict[int, str]]:
    """Return token ids and attested spellings of 400 names, and the vocabulary by id."""
    words = json.loads(_file("vocab.json").read_text("utf-8"))["tokens"]
    ids = {token: i for i, token in enumerate(words)}
    counts: dict[str, dict[str, int]] = {}
    with closing(sqlite3.connect(f"file:{_file('names.sqlite3')}?mode=ro", uri=True)) as table:
        rows = table.execute("select arabic_key, latin, count from units order by rowid")
        for key, latin, count in rows:
            if " " not in key and all(letter in ids for letter in key):
                known = counts.setdefault(key, {})
                known[latin] = known.get(latin, 0) + count
    often = sorted(key for key, known in counts.items() if sum(known.values()) >= ATTESTED)
    drawn = np.random.default_rng(0).choice(len(often), NAMES, replace=False)
    keys = [often[i] for i in drawn]
    head = [ids["<UNK_COUNTRY>"], ids["<ROLE_UNKNOWN>"]]
    sources = [[*head, *(ids[letter] for letter in key), END] for key in keys]
    return sources, [set(counts[key]) for key in keys], {i: token for token, i in ids.items()}


def _file(name: str) -> Path:
    return installed("arabic-name-romanizer", f"arabic_name_romanizer/resources/{name}")
