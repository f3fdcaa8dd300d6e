"""Check a model's accuracy against a reference."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.analysis.verification.requests import Verify
from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_result, print_table, print_text
from ortune.cli.terminal.page import PageOptions, require_page, save_result_page
from ortune.core import wording
from ortune.core.request import request

if TYPE_CHECKING:
    from ortune.analysis.verification.bisect import Bisection
    from ortune.analysis.verification.verify import Comparison

_SHOWN = 10


@request
class _Options(PageOptions, Verify):
    """Options of the command line.

    Attributes:
        no_samples: Leave the samples whose answers changed most out of the page.
    """

    _: KW_ONLY
    no_samples: bool = False


@make_command(_Options)
def command(options: _Options) -> int:
    """Show the scores; exit code 1 when the other model fails."""
    from ortune.analysis.verification.verify import run

    require_page(options)
    comparison = run(options)
    other, reference = Path(options.other).name, Path(options.reference).name
    shown = replace(comparison, worst={}) if options.no_samples else comparison
    save_result_page(options, shown, f"{other} against {reference}")
    result = {
        "reference": options.reference,
        "other": options.other,
        "doubt": comparison.doubt,
        "verdict": comparison.verdict,
        "budget": str(comparison.budget),
        "budget_rule": comparison.rule,
        "samples": comparison.samples,
        "synthetic": comparison.synthetic,
        "scores": comparison.scores,
        "simulated": comparison.simulated,
        "bisection": comparison.bisection,
    }
    print_result(result, lambda: print_comparison(comparison, bisect=options.bisect))
    return DONE if comparison.good else NO


def print_comparison(comparison: Comparison, *, bisect: bool = False) -> None:
    """Print the scores, what they mean, and what was found of saturation and by bisection."""
    made_up = "made-up " if comparison.synthetic else ""
    rule = f" ({comparison.rule})" if comparison.rule else ""
    if comparison.doubt:
        print_text(f"{comparison.doubt}.")
    print_table(
        ("metric", "value>", "reference>", "bound>", "verdict", "basis"),
        list(map(wording.tabulate_score, comparison.scores)),
    )
    print_text(
        f"{wording.shorten_groups(str(comparison.budget))}{rule}, over "
        f"{wording.format_count(comparison.samples, made_up + 'sample')}:"
    )
    if comparison.scores:
        print_text(wording.explain_verdict(comparison.scores[0]))
    for text in wording.list_failed_outputs(comparison.scores):
        print_text(f"not decisive: {text}")
    if comparison.simulated is not None:
        hit = sorted(
            (x for x in comparison.simulated.layers if x.saturated), key=lambda x: -x.largest
        )
        rows = [
            (x.name, x.op, f"{100 * x.saturated / x.outputs:.3g} %", f"{100 * x.largest:.3g} %")
            for x in hit[:_SHOWN]
        ]
        if rows:
            print_table(("saturated layer", "operator", "of its sums>", "largest error>"), rows)
        more = f", the {_SHOWN} worst are shown" if len(hit) > _SHOWN else ""
        print_text(
            f"saturating on {comparison.simulated.isa}: {len(hit)} of "
            f"{wording.format_count(len(comparison.simulated.layers), 'integer layer')}{more}"
        )
        if hit:
            print_text("with reduce_range (7-bit weights) none would saturate")
        if comparison.simulated.left:
            print_text(
                f"{comparison.simulated.left} LSTM or Attention layers in integers are not "
                "simulated"
            )
    if comparison.bisection is not None:
        _print_bisection(comparison.bisection)
    elif bisect:
        print_text("nothing to bisect: every metric is within its budget")


def _print_bisection(bisection: Bisection) -> None:
    if bisection.step:
        before = "" if bisection.before is None else f" (before it {bisection.before:.6g})"
        print_text(f"first step that misses the budget: {bisection.step}{before}")
    if bisection.tensor and not bisection.replaced:
        print_text(
            f"first tensor that the runtime computes wrongly: {bisection.tensor}, made by "
            f"{', '.join(bisection.nodes)}, {_format_score(bisection.snr_db)} dB"
        )
    elif bisection.tensor:
        print_text(f"first tensor that misses the budget: {bisection.tensor}")
        rows = [
            ("up to the tensor before", _format_score(bisection.without)),
            ("up to this tensor", _format_score(bisection.score)),
            ("these nodes alone", _format_score(bisection.alone)),
            ("the tensor's own SNR, dB", _format_score(bisection.snr_db)),
        ]
        print_table(("taken from OTHER", "score>"), rows)
        for title, nodes in (("made by", bisection.nodes), ("in place of", bisection.replaced)):
            print_text(f"{title}: {wording.join_names(nodes, _SHOWN)}")
        if bisection.fails_alone is False:
            print_text(
                "these nodes alone stay within the budget: the errors of several nodes add up"
            )
    if bisection.folder is not None:
        agreement = (
            "" if bisection.piece_db is None else f", {bisection.piece_db:.1f} dB between them"
        )
        print_text(
            f"{bisection.folder}: reference.onnx, other.onnx and samples of what they "
            f"take{agreement}"
        )
    if bisection.note:
        print_text(f"note: {bisection.note}")
    print_text(f"models judged: {bisection.judged}")


def _format_score(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
