"""Judge another model against a reference by the accuracy budget, sample by sample."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortune.cli import shared
from ortune.cli.main import DONE, NO

if TYPE_CHECKING:
    from ortune.study.verify import Comparison


@shared.verb(shared.Verb)
@click.argument("reference", type=shared.FILE)
@click.argument("other", type=shared.FILE)
@shared.data
@shared.labels
@shared.budget
@shared.evaluate
@shared.on("cpu")
@shared.shapes
@shared.ranges
@click.option("--strict", is_flag=True, help="A verdict that is only likely is a no, too.")
def command(
    reference: Path,
    other: Path,
    data: str | None,
    labels: str | None,
    budget: str | None,
    evaluate: str | None,
    on: str,
    shapes: tuple[str, ...],
    ranges: tuple[str, ...],
    strict: bool,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Judge whether OTHER answers like REFERENCE, within the budget.

    Exit code 0 for proved and likely, 1 when it fails. Without --data the inputs are made up.

    \b
    Example:
      ortune verify model.onnx small.onnx --data samples/ --budget "top1>=base-0.01"
      ortune verify model.onnx small.onnx --shape x:1x3x320x320
    """
    from ortune.core.trial import Verdict
    from ortune.study.verify import verify

    found = verify(
        reference,
        other,
        data=data,
        labels=labels,
        budget=budget,
        on=on,
        evaluate=evaluate,
        shapes=shared.shape_map(shapes),
        ranges=shared.range_map(ranges),
    )
    result = {
        "reference": reference,
        "other": other,
        "verdict": found.verdict,
        "budget": str(found.budget),
        "budget_rule": found.rule,
        "samples": found.samples,
        "synthetic": found.synthetic,
        "scores": found.scores,
    }
    shared.answer(json_to, result, lambda: _show(found))
    good = {Verdict.PROVED} if strict else {Verdict.PROVED, Verdict.LIKELY}
    return DONE if found.verdict in good else NO


def _show(found: Comparison) -> None:
    made_up = " made-up" if found.synthetic else ""
    rule = f" ({found.rule})" if found.rule else ""
    shared.table(
        ("metric", "value>", "reference>", "95 % interval>", "verdict", "basis"),
        [
            (
                score.metric,
                f"{score.value:.6g}",
                "-" if math.isnan(score.base) else f"{score.base:.6g}",
                "-" if math.isnan(score.low) else f"[{score.low:.6g}, {score.high:.6g}]",
                score.verdict or "",
                score.basis,
            )
            for score in found.scores
        ],
    )
    shared.say(f"{found.verdict}: {found.budget}{rule}, over {found.samples}{made_up} samples")
    needed = found.scores[0].needed if found.scores else None
    if needed:
        shared.say(f"about {needed} samples would prove it")
