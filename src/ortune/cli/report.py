"""Write the report of a run as one offline HTML file."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path

from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, say
from ortune.core.fields import Out
from ortune.core.request import Request, request


@request
class _Asked(Request):
    """Write the report of RUN, a folder made by `ortune optimize`, finished or not.

    Profiles that `ortune profile -o` put into RUN, or into a folder in it, are a part of it.

    Example:
        ortune report run -o report.html

    Attributes:
        run: The run's folder.
        out: The HTML file; RUN/report.html if not given.
        force: Overwrite an existing output.
    """

    run: str | Path
    _: KW_ONLY
    out: Out = None
    force: bool = False


@verb(_Asked)
def command(asked: _Asked) -> None:
    """Say where the report is."""
    from ortune.reporting.html import report
    from ortune.search.experiment.ledger import read_study

    run, study = Path(asked.run), read_study(Path(asked.run))
    path = report(study, asked.out or run / "report.html", asked.force or asked.out is None)
    result = {"run": run, "report": path, "trials": len(study.trials), "finished": study.finished}
    answer(result, lambda: say(f"report: {path}"))
