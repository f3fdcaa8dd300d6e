"""Watch searches in a browser, and pack their plans."""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from ortune.cli.main import DONE
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_result, print_text
from ortune.core.errors import OrtuneError
from ortune.core.fields import Option
from ortune.core.request import Request, request

_PORTS = 65535


@request
class _Options(Request):
    """Show the report of each RUN in a browser of this machine, live while its search goes on.

    Without RUN it shows every run in the current folder, those that begin later too. Several runs
    get a start page, where each can be compared with the first. A button packs a plan into a
    bundle. Only the printed address, which holds a secret token, is answered; Ctrl-C ends it. A
    browser takes CPU time from a search on the same machine: from another one, forward the port
    (`ssh -L`).

    Example:
        ortune ui run
        ortune ui monday/run friday/run --port 8080

    Attributes:
        runs: Folders of `ortune optimize`, finished or not.
        port: Port on 127.0.0.1; 0 takes any free one.
    """

    runs: Annotated[Sequence[str | Path], Option()] = ()
    _: KW_ONLY
    port: Annotated[int, Option("PORT", high=_PORTS)] = 0


@make_command(_Options)
def command(options: _Options) -> int:
    """Say where the page is, and serve it until told to end."""
    from ortune.reporting.live import LiveServer, Watched, list_runs

    runs = [Path(run) for run in options.runs]
    for run in runs:
        if not run.is_dir():
            fix = f"start the search first: ortune optimize MODEL --data SAMPLES -o {run}"
            raise OrtuneError(f"there is no folder {run}", fix=fix)
    folder = None if runs else Path()
    with LiveServer(Watched(runs or list_runs(Path()), folder), options.port) as server:
        result = {"address": server.address, "runs": runs}
        print_result(result, lambda: print_text(f"open {server.address}\nCtrl-C ends it"))
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return DONE
    return DONE
