"""Write the report of a run as one offline HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from ortune.cli import shared


@shared.verb(shared.Verb)
@click.argument("run", type=shared.FILE)
@shared.output("The HTML file; RUN/report.html if not given.")
@shared.force
def command(run: Path, out: Path | None, force: bool, json_to: str | None, verbose: bool) -> int:
    """Write the report of RUN, a folder made by `ortune optimize`, finished or not.

    Profiles that `ortune profile -o` put into RUN, or into a folder in it, are a part of it.

    \b
    Example:
      ortune report run -o report.html
    """
    from ortune.experiment.ledger import read_study
    from ortune.reporting.write import report

    study = read_study(run)
    path = report(study, out or run / "report.html", force=force or out is None)
    result = {"run": run, "report": path, "trials": len(study.trials), "finished": study.finished}
    shared.answer(json_to, result, lambda: shared.say(f"report: {path}"))
    return 0
