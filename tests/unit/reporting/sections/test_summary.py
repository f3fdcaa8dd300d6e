"""What is seen first: three answers, four figures, commands, and the answers that changed."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit import studies

from ortune.core.section import Chart, Pills, Shots, Text, Tiles
from ortune.core.study import SampleScores, Study
from ortune.core.trial import Interval, UntriedPlan, Verdict
from ortune.data.stream import write_stream
from ortune.reporting.sections.answers import AnswersSection, draw_picture
from ortune.reporting.sections.next_steps import NextStepsSection, list_commands
from ortune.reporting.sections.summary import SummarySection
from ortune.search.experiment.ledger import read_sample_scores, write_sample_scores


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return studies.study(tmp_path)


def judged(study: Study, verdict: Verdict) -> Study:
    best = study.trials[-1]
    scores = (replace(best.scores[0], verdict=verdict, needed=470), *best.scores[1:])
    return replace(study, trials=(*study.trials[:-1], replace(best, scores=scores)))


def pills(study: Study) -> list[tuple[str, str]]:
    block = next(b for b in SummarySection().blocks(study) if isinstance(b, Pills))
    return [(pill.text, pill.tone) for pill in block.pills]


def test_three_answers_are_seen_at_once(study: Study) -> None:
    assert pills(study) == [
        ("faster", "good"),
        ("accuracy proved", "good"),
        ("machine was quiet", "good"),
    ]
    noisy = studies.changed(judged(study, Verdict.LIKELY), too_noisy=True, advice=("pin it",))
    assert pills(noisy)[1:] == [
        ("accuracy likely, not proved", "warn"),
        ("machine was noisy: timing is loose", "bad"),
    ]
    alone = replace(study, trials=study.trials[:1])
    assert [text for text, _ in pills(alone)][:2] == ["the original stays", "same answers"]


def test_tiles_hold_what_the_ledger_holds(study: Study) -> None:
    tiles = next(b for b in SummarySection().blocks(study) if isinstance(b, Tiles)).tiles
    speed, score, size, start = tiles
    found = study.speedup(study.best)
    assert speed.figure == f"{found.value:.2f}x as fast" and speed.span == (found.low, found.high)
    assert score.figure == "0.9995" and str(study.budget) in score.note
    assert size.change.startswith("was ") and start.change.startswith("was ")


def test_commands_fit_what_is_known(study: Study) -> None:
    assert [command.split()[1] for _, command in list_commands(study)] == ["pack"]
    left = UntriedPlan(
        "p", "out of time", "int8 · bf16", speedup=Interval(2.4, 2.0, 3.0), chance=0.9, seconds=5.0
    )
    more = studies.changed(judged(study, Verdict.LIKELY), left_out=(left,), finished="time")
    found = dict(list_commands(more))
    assert any("int8 · bf16 is expected at about 2.4x" in about for about in found)
    assert any("470 independent samples" in about for about in found)
    assert any(command.endswith("--time 2m") for command in found.values())


def test_at_most_three_doubts_are_named(study: Study) -> None:
    many = studies.changed(study, advice=tuple(f"advice {n}" for n in range(9)))
    blocks = [b for b in NextStepsSection().blocks(many) if isinstance(b, Text)]
    assert sum(block.tone == "warn" for block in blocks) == 3


def answered(study: Study, base: list[float], scores: list[float], snr: list[float]) -> Study:
    root = Path(study.root)
    (root / "data").mkdir(parents=True, exist_ok=True)
    pictures = [{"x": np.full((1, 3, 16, 16), n, np.float32)} for n in range(len(base))]
    write_stream(root / "data" / "feeds.stream", pictures)
    kept = SampleScores("top1", tuple(range(len(base))), tuple(base), tuple(scores), tuple(snr))
    write_sample_scores(root, study.best.key, kept)
    return study


def test_the_samples_that_changed_most_come_first(study: Study) -> None:
    scores = [1.0] * 20
    for lost in (3, 11, 17):
        scores[lost] = 0.0
    told = answered(study, [1.0] * 20, scores, [30.0 - n for n in range(20)])
    blocks = list(AnswersSection().blocks(told))
    shots = next(b for b in blocks if isinstance(b, Shots)).shots
    assert [shot.caption.split(";")[0] for shot in shots[:4]] == [
        "sample 17",
        "sample 11",
        "sample 3",
        "sample 19",
    ]
    assert [shot.title for shot in shots[:4]] == ["changed"] * 3 + ["same"]
    assert all(shot.image.startswith(b"\x89PNG") for shot in shots)
    assert any(isinstance(b, Text) and b.text == "20 samples: 3 changed, 17 same." for b in blocks)
    chart = next(b for b in blocks if isinstance(b, Chart))
    assert sum(row["samples"] for row in chart.spec["data"]["values"]) == 20


def test_without_labels_there_is_no_winning() -> None:
    kept = SampleScores("snr", (0, 1, 2), (300.0,) * 3, (20.0, math.nan, 30.0))
    worst = kept.list_worst(higher_is_better=True)
    assert worst == [1, 0, 2], "what has no score is worst"


@pytest.mark.parametrize(
    "text", ["{]", '{"metric": "top1", "samples": [0], "base": [], "scores": [1]}']
)
def test_kept_scores_that_do_not_fit_are_told(study: Study, text: str) -> None:
    answered(study, [1.0], [1.0], [])
    (Path(study.root) / "answers" / f"{study.best.key}.json").write_text(text)
    (block,) = AnswersSection().blocks(study)
    assert isinstance(block, Text) and block.tone == "warn"


def test_a_key_is_no_path(tmp_path: Path) -> None:
    assert read_sample_scores(tmp_path, "../header") is None


@pytest.mark.parametrize(
    ("shape", "size"),
    [((1, 3, 224, 224), (75, 75)), ((1, 28, 28, 1), (28, 28)), ((1, 1, 500, 20), (84, 4))],
)
def test_pictures_are_made_small(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    data = draw_picture(np.random.default_rng(0).random(shape, np.float32))
    height, width = size
    assert data[16:24] == width.to_bytes(4, "big") + height.to_bytes(4, "big")
    start = data.index(b"IDAT") + 4
    lines = zlib.decompressobj().decompress(data[start:])
    assert len(lines) == height * (1 + width * (3 if shape[1] == 3 else 1))


@pytest.mark.parametrize("shape", [(1, 10), (2, 3, 32, 32), (1, 4, 32, 32), (1, 3, 2, 2)])
def test_what_is_no_picture_is_not_drawn(shape: tuple[int, ...]) -> None:
    assert draw_picture(np.zeros(shape, np.float32)) == b""
