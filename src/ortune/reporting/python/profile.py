"""A profile with what can be done about it, as files and a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ortune.analysis.profiling import files
from ortune.analysis.profiling import profile as profiling
from ortune.analysis.profiling.advice import evaluate_suggestions, suggest
from ortune.core.atomic_write import replacing
from ortune.core.errors import OrtuneError
from ortune.core.event import Note
from ortune.core.profile import Profile
from ortune.core.request import verb
from ortune.reporting.html import page
from ortune.reporting.profile import parts
from ortune.reporting.python.requests import ProfilePage

_FOOT = (
    "Kernel times are the runtime's own, less what its profiler costs; what a kernel would gain "
    "is the most that the machine allows, not a promise."
)


def html(profile: Profile) -> str:
    """Return the report as one offline page."""
    return page(f"{Path(profile.model).name} on {profile.backend}", parts(profile), _FOOT)


def write(profile: Profile, path: Path, *, force: bool = False) -> Path:
    """Write the page.

    Raises:
        OrtuneError: The path is taken or cannot be written.
    """
    with replacing(path, force=force, sources=[Path(profile.model)]) as draft:
        draft.write_text(html(profile), encoding="utf-8")
    return path


def run(asked: ProfilePage) -> Profile:
    """Profile, find what can be done, and write both."""
    out = None if asked.out is None else _made(Path(asked.out))
    found = profiling.run(asked)
    found = replace(found, actions=suggest(found))
    if asked.trying:
        tried = evaluate_suggestions(
            found,
            found.actions,
            data=asked.data,
            shapes=asked.shapes,
            ranges=asked.ranges,
            sink=asked.sink,
        )
        found = replace(found, actions=tried)
    if out is not None:
        written = files.write(found, out)
        page = write(found, out / "profile.html", force=True)
        for path in (*written, page):
            asked.sink(Note(f"wrote {path}"))
    return found


profile = verb(ProfilePage, run, "profile")


def _made(out: Path) -> Path:
    """Make the folder before the time is spent."""
    if out.exists() and not out.is_dir():
        raise OrtuneError(f"{out} is a file", fix="give a folder with -o")
    out.mkdir(parents=True, exist_ok=True)
    return out
