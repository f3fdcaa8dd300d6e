"""Judge a model against a reference by a budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ortune.analysis.verification.requests import Verify
from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, say, table
from ortune.core import wording

if TYPE_CHECKING:
    from ortune.analysis.verification.bisect import Bisection
    from ortune.analysis.verification.verify import Comparison

_SHOWN = 10


@verb(Verify)
def command(asked: Verify) -> int:
    """Show the scores; exit code 1 when the other model fails."""
    from ortune.analysis.verification.verify import run

    found = run(asked)
    result = {
        "reference": asked.reference,
        "other": asked.other,
        "verdict": found.verdict,
        "budget": str(found.budget),
        "budget_rule": found.rule,
        "samples": found.samples,
        "synthetic": found.synthetic,
        "scores": found.scores,
        "simulated": found.simulated,
        "bisection": found.bisection,
    }
    answer(result, lambda: _show(found, asked.bisect))
    return DONE if found.good else NO


def _show(found: Comparison, bisect: bool) -> None:
    made_up = "made-up " if found.synthetic else ""
    rule = f" ({found.rule})" if found.rule else ""
    table(
        ("metric", "value>", "reference>", "bound>", "verdict", "basis"),
        [
            (
                score.metric,
                f"{score.value:.6g}",
                "-" if math.isnan(score.base) else f"{score.base:.6g}",
                wording.bound(score),
                score.verdict or "",
                score.basis,
            )
            for score in found.scores
        ],
    )
    say(f"{found.budget}{rule}, over {wording.count(found.samples, made_up + 'sample')}:")
    if found.scores:
        say(wording.means(found.scores[0]))
    for text in wording.fallen(found.scores):
        say(f"not decisive: {text}")
    if found.simulated is not None:
        hit = sorted((x for x in found.simulated.layers if x.saturated), key=lambda x: -x.largest)
        rows = [
            (x.name, x.op, f"{100 * x.saturated / x.outputs:.3g} %", f"{100 * x.largest:.3g} %")
            for x in hit[:_SHOWN]
        ]
        if rows:
            table(("saturated layer", "operator", "of its sums>", "largest error>"), rows)
        more = f", the {_SHOWN} worst are shown" if len(hit) > _SHOWN else ""
        say(
            f"saturating on {found.simulated.isa}: {len(hit)} of "
            f"{wording.count(len(found.simulated.layers), 'integer layer')}{more}"
        )
        if hit:
            say("quantized with reduce_range (7-bit weights) they do not")
        if found.simulated.left:
            say(f"{found.simulated.left} LSTM or Attention layers in integers are not simulated")
    if found.bisection is not None:
        _show_bisection(found.bisection)
    elif bisect:
        say("nothing to look for: no metric leaves its budget")


def _show_bisection(found: Bisection) -> None:
    if found.step:
        before = "" if found.before is None else f" (before it {found.before:.6g})"
        say(f"first step that leaves the budget: {found.step}{before}")
    if found.tensor:
        say(f"first tensor that leaves the budget: {found.tensor}")
        rows = [
            ("up to the tensor before", _figure(found.without)),
            ("up to this tensor", _figure(found.score)),
            ("these nodes alone", _figure(found.alone)),
            ("the tensor's own SNR, dB", _figure(found.snr_db)),
        ]
        table(("taken from OTHER", "score>"), rows)
        for title, nodes in (("made by", found.nodes), ("in place of", found.replaced)):
            more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
            say(f"{title}: {', '.join(nodes[:_SHOWN])}{more}")
        if found.fails_alone is False:
            say("alone these nodes stay within the budget: errors of several add up")
    if found.folder is not None:
        own = "" if found.piece_db is None else f", {found.piece_db:.1f} dB between them"
        say(f"{found.folder}: reference.onnx, other.onnx and samples of what they take{own}")
    if found.note:
        say(f"note: {found.note}")
    say(f"models judged: {found.judged}")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
