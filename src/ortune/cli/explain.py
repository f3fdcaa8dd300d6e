"""Say why a search came to its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ortune.cli.terminal.command import verb, verbose
from ortune.cli.terminal.output import answer, show
from ortune.reporting.explanation.requests import Explain

if TYPE_CHECKING:
    from ortune.reporting.explanation.explain import Explanation


@verb(Explain)
def command(asked: Explain) -> None:
    """Show what was asked."""
    from ortune.reporting.explanation.explain import run
    from ortune.reporting.precision.explained import parts
    from ortune.reporting.terminal import printed

    found = run(asked)
    answer(_json(found), lambda: show(*printed(parts(found, every=verbose()))))


def _json(found: Explanation) -> Mapping[str, Any] | Explanation:
    """Return what was asked for: one node, some plans, or everything."""
    if found.node is not None:
        return {"run": found.run, "node": found.node, "notes": found.notes}
    if found.asked:
        return {"run": found.run, "plans": found.asked, "notes": found.notes}
    return found
