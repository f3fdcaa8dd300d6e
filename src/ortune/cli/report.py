"""Write a run's report, or two runs compared, as one offline page."""

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_result, print_text
from ortune.core.errors import BadSettings
from ortune.core.fields import Option, Out
from ortune.core.request import Request, request


@request
class _Options(Request):
    """Write the report of RUN, a folder made by `ortune optimize`, finished or not.

    Profiles that `ortune profile -o` put into RUN, or into a folder in it, are a part of it. With
    OTHER, another run, the page compares the two.

    Example:
        ortune report run -o report.html
        ortune report monday/run friday/run -o compared.html

    Attributes:
        run: The run's folder.
        other: The folder of a run to compare it with.
        out: The HTML file; RUN/report.html if not given.
        static: A page without script, for mail: charts are pictures (extra `charts`).
        no_samples: Leave out the samples whose answers changed most.
        force: Overwrite an existing output.
    """

    run: str | Path
    other: Annotated[str | Path | None, Option()] = None
    _: KW_ONLY
    out: Out = None
    static: bool = False
    no_samples: bool = False
    force: bool = False


@make_command(_Options)
def command(options: _Options) -> None:
    """Say where the report is."""
    from ortune.reporting.html import report
    from ortune.search.experiment.ledger import watch_study

    run, study = Path(options.run), watch_study(Path(options.run))
    other = None if options.other is None else watch_study(Path(options.other))
    if other is not None and options.out is None:
        raise BadSettings("a page of two runs needs -o", fix="give -o PAGE.html")
    path = report(
        study,
        options.out or run / "report.html",
        options.force or options.out is None,
        static=options.static,
        no_samples=options.no_samples,
        other=other,
    )
    result = {"run": run, "report": path, "trials": len(study.trials), "finished": study.finished}
    print_result(result, lambda: print_text(f"report: {path}"))
