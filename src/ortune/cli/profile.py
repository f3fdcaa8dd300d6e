"""Say where the time of a run goes, node by node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortune.cli.terminal.command import verb, verbose
from ortune.cli.terminal.output import answer, say, show
from ortune.core import wording
from ortune.reporting.python.requests import ProfilePage

if TYPE_CHECKING:
    from ortune.core.profile import Profile


@verb(ProfilePage)
def command(asked: ProfilePage) -> None:
    """Show the time by operator, node and region, and what can be done."""
    from ortune.analysis.profiling import files
    from ortune.reporting.python.profile import run

    found = run(asked)
    answer(files.whole(found), lambda: _show(found))


def _show(found: Profile) -> None:
    """Print what the report shows; notes were told while it ran."""
    from ortune.reporting.profile import TOP, parts
    from ortune.reporting.terminal import printed

    made = parts(found, None if verbose() else TOP)
    show(*printed([part for part in made if part.name != "notes"]))
    if not verbose() and len(found.kernels) > TOP:
        say(
            f"{wording.count(len(found.kernels), 'kernel')} ran, the longest are shown; "
            "-v lists them all"
        )
