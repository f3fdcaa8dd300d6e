"""Samples as they are given: read, or made up where none are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortune.core.errors import BadData
from ortune.core.event import Note, Sink, ignore_event
from ortune.core.facts import TensorSpec
from ortune.core.hub import HubFolder
from ortune.data import batches, feeds, synthetic
from ortune.data.feeds import Feeds
from ortune.data.sentences import list_cache_shapes
from ortune.data.sources import Source

_SYNTHETIC_COUNT = 8


def load_or_generate_feeds(
    data: Source | None,
    inputs: Sequence[TensorSpec],
    out: Path,
    *,
    labels: str | Path | Sequence[Any] | None = None,
    batch: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    count: int = _SYNTHETIC_COUNT,
    classes: Sequence[str] = (),
    settings: HubFolder | None = None,
    sink: Sink = ignore_event,
) -> Feeds:
    """Read `data` into a stream in ``OUT``, or make samples up when it is None.

    Args:
        data: See `feeds.load_feeds`.
        out: Folder for the stream file.
        classes: See `feeds.load_feeds`; likewise `settings`.

    Raises:
        BadData: The data, a shape or the batch does not fit the model, or labels have no data.
    """
    synthetic.require_input_names(inputs, shapes or {}, ranges or {})
    if data is not None:
        samples = feeds.load_feeds(
            data,
            inputs,
            out,
            labels=labels,
            batch=batch,
            classes=classes,
            settings=settings,
            sink=sink,
        )
    elif labels is not None:
        raise BadData("labels are given without samples", fix="give --data too")
    else:
        batches.check_batch(batch, inputs)
        sizes = {**list_cache_shapes(settings, inputs), **(shapes or {})}
        samples = synthetic.generate_feeds(
            inputs, out, shapes=sizes, ranges=ranges or {}, count=count
        )
    for text in samples.notes:
        sink(Note(text))
    return samples
