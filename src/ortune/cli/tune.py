"""Find the runtime settings that a model runs fastest with; the model is left as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ortune.cli import shared
from ortune.cli._figures import interval


@shared.verb(shared.Verb)
@shared.model
@shared.data
@shared.labels
@shared.budget
@shared.on("cpu")
@shared.custom_ops
@click.option(
    "--workload",
    metavar="SPEC",
    default="latency",
    show_default=True,
    help='How it will be used, such as "throughput(sessions=2)".',
)
@shared.batch
@shared.shapes
@shared.ranges
@click.option(
    "--time", metavar="DURATION", default="60s", show_default=True, help="Time for the search."
)
@click.option("--beside-load", is_flag=True, help="Keep one core busy meanwhile.")
@shared.output("Write the settings and all that was measured to this JSON file.")
@shared.force
def command(
    model: Path,
    data: str | None,
    labels: str | None,
    budget: str | None,
    on: str,
    custom_ops: tuple[str, ...],
    workload: str,
    batch: int,
    shapes: tuple[str, ...],
    ranges: tuple[str, ...],
    time: str,
    beside_load: bool,
    out: Path | None,
    force: bool,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Find the runtime settings that MODEL runs fastest with on one backend.

    Settings are tried one by one, each in a paired test against the best so far, and kept when
    the 99 % interval of the ratio excludes 1. Fields given in --on stay as they are. Settings
    that change numbers must keep the budget. Without --data the inputs are made up.

    \b
    Example:
      ortune tune model.onnx --data samples/
      ortune tune model.onnx --on "cpu(threads=2)" --time 2m --beside-load -o settings.json
    """
    from ortune.analysis.tuning.tune import tune
    from ortune.cli import progress

    target = None if out is None else shared.free(out, force, model)
    found = tune(
        model,
        on=shared.equipped(on, custom_ops),
        data=data,
        labels=labels,
        budget=budget,
        workload=workload,
        batch=batch,
        shapes=shared.shape_map(shapes),
        ranges=shared.range_map(ranges),
        seconds=shared.seconds(time),
        beside_load=int(beside_load),
        sink=progress.lines(verbose),
    )
    if target is not None:
        text = json.dumps(shared.plain({"ortune": shared.version(), **found}), indent=1)
        target.write_text(text + "\n", encoding="utf-8")
    shared.answer(json_to, found, lambda: show(found))
    return 0


def show(found: Mapping[str, Any]) -> None:
    """Print one line a value, then what to paste."""
    shared.table(
        ("setting", "value", "ratio to the best so far [99 %]>", "", "why"),
        [
            (
                one["setting"],
                one["value"],
                interval(one["ratio"]),
                "kept" if one["kept"] else "",
                one["why"],
            )
            for one in found["attempts"]
        ],
    )
    if found["finished"] == "time":
        shared.say("time is up: not every setting was tried")
    if not found["improved"]:
        shared.say(f"nothing was faster beyond the noise: stay with --on {quoted(found['start'])}")
        return
    shared.say(f"ratio to {found['start']}: {interval(found['ratio'])}, in fresh pairs")
    cpu = found["cpu_ratio"]
    if cpu is not None:
        shared.say(f"CPU time per inference, spinning included: {cpu['value']:.2f} times")
    if found["lossy"]:
        shared.say(f"these settings change numbers; within the budget {found['budget']}")
    shared.say(f"use: --on {quoted(found['best'])}")


def quoted(spelling: str) -> str:
    """Quote a backend for the shell."""
    escaped = spelling.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
