"""Explain why a search chose its winner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ortune.cli.terminal.command import is_verbose, make_command
from ortune.cli.terminal.output import print_parts, print_result
from ortune.reporting.explanation.requests import Explain

if TYPE_CHECKING:
    from ortune.reporting.explanation.explain import Explanation


@make_command(Explain)
def command(request: Explain) -> None:
    """Show what was asked."""
    from ortune.reporting.explanation.explain import run
    from ortune.reporting.precision.explained import build_explanation_parts

    explanation = run(request)
    print_result(
        _serialize_explanation(explanation),
        lambda: print_parts(build_explanation_parts(explanation, show_all=is_verbose())),
    )


def _serialize_explanation(explanation: Explanation) -> Mapping[str, Any] | Explanation:
    """Return what was asked for: one node, some plans, or everything."""
    if explanation.node is not None:
        return {"run": explanation.run, "node": explanation.node, "notes": explanation.notes}
    if explanation.asked:
        return {"run": explanation.run, "plans": explanation.asked, "notes": explanation.notes}
    return explanation
