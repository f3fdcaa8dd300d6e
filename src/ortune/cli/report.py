"""Write the report of a run as one offline HTML file."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path

from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_result, print_text
from ortune.core.fields import Out
from ortune.core.request import Request, request


@request
class _Options(Request):
    """Write the report of RUN, a folder made by `ortune optimize`, finished or not.

    Profiles that `ortune profile -o` put into RUN, or into a folder in it, are a part of it.

    Example:
        ortune report run -o report.html

    Attributes:
        run: The run's folder.
        out: The HTML file; RUN/report.html if not given.
        static: A page without script, for mail: charts are pictures (extra `charts`).
        no_samples: Leave out the samples whose answers changed most.
        force: Overwrite an existing output.
    """

    run: str | Path
    _: KW_ONLY
    out: Out = None
    static: bool = False
    no_samples: bool = False
    force: bool = False


@make_command(_Options)
def command(options: _Options) -> None:
    """Say where the report is."""
    from ortune.reporting.html import report
    from ortune.search.experiment.ledger import read_study

    run, study = Path(options.run), read_study(Path(options.run))
    path = report(
        study,
        options.out or run / "report.html",
        options.force or options.out is None,
        static=options.static,
        no_samples=options.no_samples,
    )
    result = {"run": run, "report": path, "trials": len(study.trials), "finished": study.finished}
    print_result(result, lambda: print_text(f"report: {path}"))
