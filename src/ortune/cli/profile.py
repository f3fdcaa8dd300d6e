"""Say where the time of a run goes, in terms of the model's own nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ortune.analysis.profiling.requests import ProfileRequest
from ortune.cli.main import DONE
from ortune.cli.terminal.command import verb, verbose
from ortune.cli.terminal.output import answer, remark, say, show
from ortune.core.errors import OrtuneError
from ortune.core.fields import Option, Out
from ortune.core.request import request

if TYPE_CHECKING:
    from ortune.core.profile import Action, Profile


@request
class _Asked(ProfileRequest):
    """Options of the command line.

    Attributes:
        trying: Do what can be done about the bottlenecks and time it against the model as it is.
        out: Folder for profile.html, trace.json (Perfetto), kernels.csv and profile.json.
    """

    _: KW_ONLY
    trying: Annotated[bool, Option(word="--try")] = False
    out: Out = None


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Show the time by operator, node and region, and what can be done."""
    from ortune.analysis.profiling import files as profile_files
    from ortune.analysis.profiling.profile import run
    from ortune.analysis.profiling.suggestions import evaluate_suggestions, suggest

    out = None if asked.out is None else _made(Path(asked.out))
    found = run(asked)
    actions = suggest(found)
    if asked.trying:
        actions = evaluate_suggestions(
            found,
            actions,
            data=asked.data,
            shapes=asked.shapes,
            ranges=asked.ranges,
            sink=asked.sink,
        )
    written = [] if out is None else _written(found, actions, out)
    answer(profile_files.whole(found, actions), lambda: _show(found, actions))
    for path in written:
        remark(f"wrote {path}")
    return DONE


def _written(found: Profile, actions: Sequence[Action], out: Path) -> list[Path]:
    from ortune.analysis.profiling import files as profile_files
    from ortune.reporting import profile_page

    files = profile_files.write(found, out, actions)
    return [*files, profile_page.write(found, actions, out / "profile.html", force=True)]


def _made(out: Path) -> Path:
    """Make the folder before the time is spent."""
    if out.exists() and not out.is_dir():
        raise OrtuneError(f"{out} is a file", fix="give a folder with -o")
    out.mkdir(parents=True, exist_ok=True)
    return out


def _show(found: Profile, actions: Sequence[Action]) -> None:
    """Print what the report shows; notes were told while it ran."""
    from ortune.core import wording
    from ortune.reporting.profile import TOP, parts
    from ortune.reporting.terminal import printed

    made = parts(found, actions, None if verbose() else TOP)
    show(*printed([part for part in made if part.name != "notes"]))
    if not verbose() and len(found.kernels) > TOP:
        say(
            f"{wording.count(len(found.kernels), 'kernel')} ran, the longest are shown; "
            "-v lists them all"
        )
