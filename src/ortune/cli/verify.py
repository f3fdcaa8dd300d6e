"""Judge another model against a reference by the accuracy budget, sample by sample."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortune.cli import shared
from ortune.cli.main import DONE, NO

if TYPE_CHECKING:
    from ortune.study.verify import Comparison, Saturation

_SHOWN = 10


@shared.verb(shared.Verb)
@click.argument("reference", type=shared.FILE)
@click.argument("other", type=shared.FILE)
@shared.data
@shared.labels
@shared.budget
@shared.evaluate
@shared.on("cpu")
@shared.custom_ops
@shared.shapes
@shared.ranges
@click.option(
    "--simulate",
    type=click.Choice(["avx2"]),
    help="Answer as a CPU without VNNI would, where sums of 8-bit products saturate.",
)
@click.option("--strict", is_flag=True, help="A verdict that is only likely is a no, too.")
def command(
    reference: Path,
    other: Path,
    data: str | None,
    labels: str | None,
    budget: str | None,
    evaluate: str | None,
    on: str,
    custom_ops: tuple[str, ...],
    shapes: tuple[str, ...],
    ranges: tuple[str, ...],
    simulate: str | None,
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
      ortune verify model.onnx int8.onnx --data samples/ --simulate avx2
    """
    from ortune.core.trial import Verdict
    from ortune.study.verify import verify

    found = verify(
        reference,
        other,
        data=data,
        labels=labels,
        budget=budget,
        on=shared.equipped(on, custom_ops),
        evaluate=evaluate,
        shapes=shared.shape_map(shapes),
        ranges=shared.range_map(ranges),
        simulate=simulate,
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
        "simulated": found.simulated,
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
    if found.simulated is not None:
        _show_saturation(found.simulated)


def _show_saturation(found: Saturation) -> None:
    hit = sorted((x for x in found.layers if x.saturated), key=lambda x: -x.largest)
    rows = [
        (x.name, x.op, f"{100 * x.saturated / x.outputs:.3g} %", f"{100 * x.largest:.3g} %")
        for x in hit[:_SHOWN]
    ]
    if rows:
        shared.table(("saturated layer", "operator", "of its sums>", "largest error>"), rows)
    more = f", the {_SHOWN} worst are shown" if len(hit) > _SHOWN else ""
    shared.say(f"{len(hit)} of {len(found.layers)} integer layers saturate on {found.isa}{more}")
    if hit:
        shared.say("quantized with reduce_range (7-bit weights) they do not")
    if found.left:
        shared.say(f"{found.left} LSTM or Attention layers in integers are not simulated")
