"""Time models on backends side by side; no winner inside the noise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ortune.cli import shared


@shared.verb(shared.Verb)
@shared.models
@shared.data
@shared.on("cpu")
@shared.batch
@shared.shapes
@shared.ranges
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Time spent on timing.",
)
def command(
    models: tuple[Path, ...],
    data: str | None,
    on: str,
    batch: int,
    shapes: tuple[str, ...],
    ranges: tuple[str, ...],
    seconds: float,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Time MODELS on backends side by side: in turns, in fresh processes, raw samples kept.

    Without --data the inputs are made up. A row is called the winner only if the 99 % interval of
    its ratio to the next one excludes 1.

    \b
    Example:
      ortune bench model.onnx --on "cpu(threads=1),openvino(threads=1)"
      ortune bench before.onnx after.onnx --data samples/ --json out.json
    """
    from ortune.cli import progress
    from ortune.study.bench import bench

    found = bench(
        models,
        on=on,
        data=data,
        shapes=shared.shape_map(shapes),
        ranges=shared.range_map(ranges),
        batch=batch,
        seconds=seconds,
        sink=progress.lines(verbose),
    )
    shared.answer(json_to, found, lambda: show(found))
    return 0


def show(found: Mapping[str, Any]) -> None:
    """Print one line a row, ratios to the first, and the winner."""
    lines = []
    for row, ratio in zip(found["rows"], found["ratios"], strict=True):
        name = Path(row["model"]).name
        if row["error"]:
            lines.append((name, row["backend"], "-", "-", "-", "-", row["error"]))
            continue
        spread = f"[{ratio['low']:.3f}, {ratio['high']:.3f}]"
        lines.append(
            (
                name,
                row["backend"],
                milliseconds(row["p50_ns"]),
                milliseconds(row["p90_ns"]),
                f"{ratio['value']:.3f} {spread}",
                shared.size(row["size"]),
                f"{len(row['latency_ns'])} samples",
            )
        )
    shared.table(
        ("model", "backend", "p50 ms>", "p90 ms>", "ratio to the first [99 %]>", "size>", ""),
        lines,
    )
    winner = found["winner"]
    if len(lines) > 1:
        shared.say(
            "no winner: the difference is inside the noise"
            if winner is None
            else f"fastest: {lines[winner][0]} on {lines[winner][1]}"
        )


def milliseconds(ns: float | None) -> str:
    """Write nanoseconds as milliseconds; a dash where the samples support no such figure."""
    return "-" if ns is None else f"{ns / 1e6:.3f}"
