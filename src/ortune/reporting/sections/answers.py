"""What changes in the answers: how many are lost and won, and the samples that changed most."""

import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording as say
from ortune.core.errors import OrtuneError
from ortune.core.metric import Metric
from ortune.core.section import Block, Chart, Heading, Section, Shot, Shots, Table, Text
from ortune.core.session import Tensors
from ortune.core.study import SampleScores, Study
from ortune.data.stream import Stream
from ortune.search.experiment.ledger import read_sample_scores

_SIDE = 96
"""Longest side of a picture, px."""
_BINS = 24
_COLOURS = {"same": "rough", "changed": "s4", "won": "winner", "lost": "fails"}


@dataclass(frozen=True)
class AnswersSection(Section):
    """The winner's answers beside the original's, sample by sample."""

    order: ClassVar[int] = 7

    def blocks(self, study: Study) -> Iterable[Block]:
        """Yield counts, the samples that changed most, and how far all of them are off."""
        best = study.best
        if best.key == study.baseline.key or not study.root:
            return
        try:
            kept = read_sample_scores(Path(study.root), best.key)
        except OrtuneError as error:
            yield Text(f"Answers are left out: {error.what}.", "warn")
            return
        if kept is None or not kept.samples:
            return
        metric, inputs = study.budget.metric, {}
        with suppress(OrtuneError):  # removed, or of another layout: shown by number
            stream = Stream(Path(study.root) / "data" / "feeds.stream")
            inputs = kept.read_worst(stream, higher_is_better=metric.higher_is_better)
        yield from show_answers(kept, metric, inputs)


def show_answers(
    kept: SampleScores, metric: Metric, inputs: Mapping[int, Tensors]
) -> Iterable[Block]:
    """Yield counts of what changed, the samples that changed most, and how far all are off.

    Args:
        metric: What gave the scores.
        inputs: What `SampleScores.read_worst` returned.
    """
    sign = 1 if metric.higher_is_better else -1
    fates = [
        _name_fate(sign * (score - base), metric.needs_labels)
        for base, score in zip(kept.base, kept.scores, strict=True)
    ]
    counts = [f"{fates.count(fate):,} {fate}" for fate in reversed(_COLOURS) if fate in fates]
    yield Heading("What changes in the answers")
    yield Text(f"{say.format_count(len(fates), 'sample')}: {', '.join(counts)}.")
    worst = kept.list_worst(higher_is_better=metric.higher_is_better)
    yield Shots(tuple(_make_shot(kept, place, fates[place], inputs) for place in worst))
    yield from _plot_histogram(kept, fates)


def _name_fate(change: float, has_labels: bool) -> str:
    """Say what became of one answer; without labels any change is just that."""
    if not change:
        return "same"
    if not has_labels:
        return "changed"
    return "won" if change > 0 else "lost"


def _make_shot(kept: SampleScores, place: int, fate: str, inputs: Mapping[int, Tensors]) -> Shot:
    index = kept.samples[place]
    name = say.shorten_metric(kept.metric)
    lines = [f"sample {index:,}", f"{name} {kept.base[place]:.4g} -> {kept.scores[place]:.4g}"]
    if kept.snr_db:
        lines.append(f"{kept.snr_db[place]:.1f} dB")
    image = b""
    if index in inputs:
        sample = inputs[index]
        image = next((png for array in sample.values() if (png := draw_picture(array))), b"")
        if not image and (text := _read_text(sample)):
            lines.insert(0, text)
    return Shot(fate, "; ".join(lines), "plain" if fate == "same" else fate, image)


def _read_text(sample: Tensors) -> str:
    """Return the first words of a sample of text; empty for numbers."""
    for array in sample.values():
        if array.dtype.kind in "OUS" and array.size:
            return str(array.ravel()[0])[:80]
    return ""


def draw_picture(array: NDArray[Any]) -> bytes:
    """Return one picture [1, 1 or 3, H, W] or [1, H, W, 1 or 3] as PNG, made small; else nothing.

    Its own smallest value is black and its largest white.
    """
    if array.ndim != 4 or array.shape[0] != 1 or array.dtype.kind not in "fiu":
        return b""
    pixels = array[0]
    if pixels.shape[-1] not in (1, 3):
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.shape[-1] not in (1, 3) or min(pixels.shape[:2]) < 8:
        return b""
    step = max(1, -(-max(pixels.shape[:2]) // _SIDE))
    values = np.nan_to_num(pixels[::step, ::step].astype(np.float64))
    low, high = values.min(), values.max()
    scaled = ((values - low) / ((high - low) or 1.0) * 255).round().astype(np.uint8)
    height, width, channels = scaled.shape
    lines = b"".join(b"\0" + row.tobytes() for row in scaled)
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _plot_histogram(kept: SampleScores, fates: Sequence[str]) -> Iterable[Block]:
    values = [value for value in kept.snr_db if math.isfinite(value)]
    if len(values) < 2 or max(values) == min(values):
        return
    counts: dict[tuple[int, str], int] = {}
    low, wide = min(values), (max(values) - min(values)) / _BINS
    for value, fate in zip(kept.snr_db, fates, strict=True):
        if math.isfinite(value):
            place = (min(int((value - low) / wide), _BINS - 1), fate)
            counts[place] = counts.get(place, 0) + 1
    present = [fate for fate in _COLOURS if any(fate == name for _, name in counts)]
    rows = [
        {"from": low + k * wide, "to": low + (k + 1) * wide, "samples": count, "fate": fate}
        | {"order": present.index(fate)}
        for (k, fate), count in sorted(counts.items())
    ]
    scale = {"domain": present, "range": [f"var(--{_COLOURS[fate]})" for fate in present]}
    legend = {"title": None, "symbolType": "square"}
    x = {"field": "from", "type": "quantitative", "title": "SNR of a sample's outputs, dB"}
    spec = {
        "description": "samples by the signal-to-noise ratio of their outputs",
        "height": 170,
        "data": {"values": rows},
        "mark": {"type": "bar", "binSpacing": 1},
        "encoding": {
            "x": {**x, "bin": {"binned": True, "step": wide}},
            "x2": {"field": "to"},
            "y": {"field": "samples", "type": "quantitative", "title": "samples"},
            "order": {"field": "order"},
            "color": {"field": "fate", "type": "nominal", "scale": scale, "legend": legend},
            "tooltip": [{"field": "samples"}, {"field": "fate", "title": "answers"}],
        },
    }
    cells = tuple(
        (f"{r['from']:.1f}", f"{r['to']:.1f}", str(r["fate"]), f"{r['samples']:,}") for r in rows
    )
    yield Chart(spec, Table(("dB from", "to", "answers", "samples"), cells))
