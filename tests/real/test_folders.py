"""A folder of transformers in, one command, a bundle out that answers as its pipeline does."""

from __future__ import annotations

import json
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ortune as ot
from ortune.cli.main import DONE, main
from tests.real.decoders import read_news
from tests.real.samples import written
from tests.real.test_text_answers import make_encoder

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

COUNT, ASKED, KEPT = 250, 40, 0.95
"""Samples of the command, of those that are asked again, and the share of equal decisions that
the budget of 99 % leaves where only so many are asked."""
SIZES: dict[str, Any] = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 1024, "initializer_range": 0.1}
DECIDED = {"nli": "text-classification", "tagger": "token-classification"}
DECIDED |= {"vit": "image-classification"}


def make_vit(folder: Path) -> Path:
    """Write a vision transformer of random weights and its preprocessor."""
    torch.manual_seed(0)
    names = dict(enumerate(("cat", "cup", "coin", "moon")))
    config = transformers.ViTConfig(**SIZES, image_size=64, patch_size=8, id2label=names)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)
    return folder


def spread_decisions(folder: Path, task: str, samples: list[str]) -> None:
    """Take the mean over samples off the logits: random heads say the same of everything."""
    pipeline = transformers.pipeline(task, str(folder))
    model = pipeline.model
    with torch.no_grad():
        if task == "image-classification":
            fed = [pipeline.preprocess(one) for one in samples[:ASKED]]
        else:
            fed = [pipeline.tokenizer(one, return_tensors="pt") for one in samples[:ASKED]]
        logits = [model(**one).logits for one in fed]
        flat = torch.cat([one.reshape(-1, one.shape[-1]) for one in logits])
        model.classifier.bias -= flat.mean(0)
    model.save_pretrained(folder)


def write_photos(folder: Path) -> list[str]:
    """Write views of photographs as PNG files; return their paths."""
    from PIL import Image

    folder.mkdir()
    paths = []
    for source in sorted(written("efficientnet-lite0").glob("*/*.npz")):
        for view in np.load(source)["image"]:
            pixels = (view.transpose(1, 2, 0) * 127 + 128).clip(0, 255).astype(np.uint8)
            paths.append(str(folder / f"{len(paths):03}.png"))
            Image.fromarray(pixels).save(paths[-1])
            if len(paths) == COUNT:
                return paths
    raise AssertionError(f"only {len(paths)} views")


def write_lines(path: Path) -> list[str]:
    """Write sentences of news, one a line; return them."""
    lines = [line[:90].strip() for line in read_news() if len(line) > 90][:COUNT]
    assert len(lines) == COUNT
    path.write_text("\n".join(lines))
    return lines


def decide(kind: str, pipeline: Any, sample: str) -> list[str]:
    """Return what the pipeline of transformers decides."""
    found = pipeline(sample)
    if kind == "tagger":
        return [token["entity"] for token in found if not token["word"].startswith("##")]
    return [found[0]["label"]]


@pytest.mark.long
@pytest.mark.parametrize("kind", DECIDED)
def test_one_command_keeps_the_decisions(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, task = tmp_path / kind, DECIDED[kind]
    if kind == "vit":
        make_vit(folder)
        samples = write_photos(data := tmp_path / "photos")
    else:
        make_encoder(folder, kind, **SIZES)
        samples = write_lines(data := tmp_path / "texts.txt")
        shutil.rmtree(folder / "onnx")
    spread_decisions(folder, task, samples)
    study = ot.optimize(folder, data=data, on="cpu", time="60s", out=tmp_path / "run")
    bundle = ot.pack(study, tmp_path / "best.ortune")
    asked = samples[-ASKED:]
    capsys.readouterr()
    assert main(["run", str(bundle), *asked, "--json"]) == DONE
    answers = json.loads(capsys.readouterr().out)["answers"]
    words = {"ignore_labels": []} if kind == "tagger" else {}
    pipeline = transformers.pipeline(task, str(folder), **words)
    right = [decide(kind, pipeline, one) for one in asked]
    found = [[word["label"] for word in one.get("words", [one])] for one in answers]
    assert [len(one) for one in right] == [len(one) for one in found]
    pairs = list(zip(chain(*right), chain(*found), strict=True))
    assert len({one for one, _ in pairs}) > 1, "a model that always says the same tells nothing"
    assert np.mean([one == other for one, other in pairs]) >= KEPT, str(study.best.plan)
    assert study.best.ratio is not None and study.best.ratio.high <= 1
