"""Explain why a search chose its winner."""

from ortune.cli.terminal.command import is_verbose, make_command
from ortune.cli.terminal.output import print_parts, print_result
from ortune.reporting.explanation.requests import Explain


@make_command(Explain)
def command(request: Explain) -> None:
    """Show what was asked."""
    from ortune.reporting.explanation.explain import run
    from ortune.reporting.precision.explained import build_explanation_parts

    explanation = run(request)
    result: object = explanation  # what was asked for: one node, some plans, or everything
    if explanation.node is not None:
        result = {"run": explanation.run, "node": explanation.node, "notes": explanation.notes}
    elif explanation.asked:
        result = {"run": explanation.run, "plans": explanation.asked, "notes": explanation.notes}
    print_result(
        result, lambda: print_parts(build_explanation_parts(explanation, show_all=is_verbose()))
    )
