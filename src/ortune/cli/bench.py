"""Time models on backends side by side; no winner inside the noise."""

from __future__ import annotations

from pathlib import Path

import click

from ortune.cli import _benching, shared
from ortune.cli.main import DONE, NO


@shared.verb(shared.Verb)
@shared.models
@shared.data
@click.option(
    "--on",
    metavar="BACKENDS",
    multiple=True,
    default=("cpu",),
    show_default="cpu",
    help='Where to run: backends by comma, such as "cpu(threads=2),openvino"; may be repeated.',
)
@shared.custom_ops
@click.option("--threads", metavar="N,...", help="Time every backend at these thread counts.")
@click.option(
    "--levels", metavar="LEVEL,...", help="Time at these graph levels, where a backend has levels."
)
@shared.batch
@click.option(
    "--batches", metavar="N,...", help="Time at these batches; rows of one are compared."
)
@click.option(
    "--workload",
    metavar="SPEC",
    default="latency",
    show_default=True,
    help='How runs are driven: "throughput(sessions=2)", "arrivals(rate=50)".',
)
@shared.shapes
@shared.ranges
@click.option("--self-check", is_flag=True, help="Time the first row against itself too: an A/A.")
@click.option("--memory-by-node", is_flag=True, help="List the nodes that take most memory.")
@click.option("--wide", is_flag=True, help="Show every figure.")
@click.option(
    "--seconds",
    type=shared.Finite(min=0.1),
    default=10.0,
    show_default=True,
    help="Time for timing; more where many rows need it.",
)
@click.option(
    "--sets",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Sets of fresh processes; fewer are quicker, and intervals wider.",
)
def command(
    models: tuple[Path, ...],
    data: str | None,
    on: tuple[str, ...],
    custom_ops: tuple[str, ...],
    threads: str | None,
    levels: str | None,
    batch: int,
    batches: str | None,
    workload: str,
    shapes: tuple[str, ...],
    ranges: tuple[str, ...],
    self_check: bool,
    memory_by_node: bool,
    wide: bool,
    seconds: float,
    sets: int,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Time MODELS on backends side by side: in turns, in fresh processes, raw samples kept.

    Every model is timed on every backend, at every level and thread count, at every batch. Ratios
    are to the first row of a batch. A row is called the fastest only if the 99 % intervals of its
    ratios to all others exclude 1. Without --data the inputs are made up.

    Exit code 1 if --self-check finds that the first row differs from itself.

    \b
    Example:
      ortune bench model.onnx --on cpu,openvino --threads 1,2
      ortune bench before.onnx after.onnx --data samples/ --json out.json
      ortune bench model.onnx --batches 1,8 --levels basic,all --self-check --wide
    """
    from ortune.analysis.benchmark.bench import bench
    from ortune.cli import progress

    found = bench(
        models,
        on=[shared.equipped(one, custom_ops) for one in on],
        data=data,
        shapes=shared.shape_map(shapes),
        ranges=shared.range_map(ranges),
        batch=batch,
        batches=_benching.counts(batches, "--batches"),
        threads=_benching.counts(threads, "--threads"),
        levels=_benching.words(levels),
        workload=workload,
        self_check=self_check,
        memory_by_node=memory_by_node,
        seconds=seconds,
        sets=sets,
        sink=progress.lines(verbose),
    )
    shared.answer(json_to, found, lambda: _benching.show(found, wide=wide))
    check = found["self_check"]
    return NO if check is not None and not check["equal"] else DONE
