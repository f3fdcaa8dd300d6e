"""Judge another model against a reference by the accuracy budget, sample by sample."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortune.cli import shared
from ortune.cli.main import DONE, NO
from ortune.core.errors import BadSettings

if TYPE_CHECKING:
    from ortune.analysis.verification.bisect import Bisection
    from ortune.analysis.verification.verify import Comparison, Saturation

_SHOWN = 10
_FOLDER = Path("ortune-bisect")


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
@click.option(
    "--bisect",
    is_flag=True,
    help="Where OTHER fails, name the first step and node that do it, and write a small model.",
)
@shared.output("Folder of the small model that --bisect writes; ortune-bisect by default.")
@shared.force
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
    bisect: bool,
    out: Path | None,
    force: bool,
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
      ortune verify model.onnx int8.onnx --data samples/ --bisect -o why/
    """
    from ortune.analysis.verification.verify import verify
    from ortune.core.trial import Verdict

    folder = _free(out, force, bisect)
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
        bisect=folder,
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
        "bisection": found.bisection,
    }
    shared.answer(json_to, result, lambda: _show(found, bisect))
    good = {Verdict.PROVED} if strict else {Verdict.PROVED, Verdict.LIKELY}
    return DONE if found.verdict in good else NO


def _free(out: Path | None, force: bool, bisect: bool) -> Path | None:
    """Return the folder for the small model, None when none is looked for.

    Raises:
        OrtuneError: It exists, or is given in vain.
    """
    if not bisect:
        if out is not None:
            raise BadSettings(f"-o {out}: verify writes nothing by itself", fix="add --bisect")
        return None
    folder = out or _FOLDER
    if folder.exists() and not (force and folder.is_dir()):
        wanted = "give another name" if folder.is_file() else "give another name, or --force"
        raise BadSettings(f"{folder} exists", fix=wanted)
    return folder


def _show(found: Comparison, bisect: bool) -> None:
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
    if found.bisection is not None:
        _show_bisection(found.bisection)
    elif bisect:
        shared.say("nothing to look for: no metric leaves its budget")


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


def _show_bisection(found: Bisection) -> None:
    if found.step:
        before = "" if found.before is None else f" (before it {found.before:.6g})"
        shared.say(f"first step that leaves the budget: {found.step}{before}")
    if found.tensor:
        shared.say(f"first tensor that leaves the budget: {found.tensor}")
        rows = [
            ("up to the tensor before", _figure(found.without)),
            ("up to this tensor", _figure(found.score)),
            ("these nodes alone", _figure(found.alone)),
            ("the tensor's own SNR, dB", _figure(found.snr_db)),
        ]
        shared.table(("taken from OTHER", "score>"), rows)
        for title, nodes in (("made by", found.nodes), ("in place of", found.replaced)):
            more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
            shared.say(f"{title}: {', '.join(nodes[:_SHOWN])}{more}")
        if found.fails_alone is False:
            shared.say("alone these nodes stay within the budget: errors of several add up")
    if found.folder is not None:
        own = "" if found.piece_db is None else f", {found.piece_db:.1f} dB between them"
        shared.say(
            f"{found.folder}: reference.onnx, other.onnx and samples of what they take{own}"
        )
    if found.note:
        shared.say(f"note: {found.note}")
    shared.say(f"{found.judged} models were judged")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
