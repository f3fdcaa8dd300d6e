"""A profile with what can be done about it, as files and a page."""

from dataclasses import replace
from pathlib import Path

from ortune.analysis.profiling import files
from ortune.analysis.profiling import profile as profiling
from ortune.analysis.profiling.advice import evaluate_suggestions, suggest
from ortune.core.atomic_write import open_output_draft
from ortune.core.errors import OrtuneError
from ortune.core.event import Note
from ortune.core.profile import Profile
from ortune.core.request import make_verb
from ortune.reporting.html import render_page
from ortune.reporting.profile import build_profile_parts, summarize_profile
from ortune.reporting.python.requests import ProfilePage

_FOOT = (
    "Kernel times are the runtime's own, minus the profiler's overhead; gains are upper bounds "
    "by the roofline model, not predictions."
)


def render_profile(profile: Profile) -> str:
    """Return the report as one offline page."""
    parts = (summarize_profile(profile), *build_profile_parts(profile))
    return render_page(f"{Path(profile.model).name} on {profile.backend}", parts, _FOOT)


def write_page(profile: Profile, path: Path, *, force: bool = False) -> Path:
    """Write the page.

    Raises:
        OrtuneError: The path is taken or cannot be written.
    """
    with open_output_draft(path, force=force, sources=[Path(profile.model)]) as draft:
        draft.write_text(render_profile(profile), encoding="utf-8")
    return path


def run(request: ProfilePage) -> Profile:
    """Profile, find what can be done, and write both."""
    out = None if request.out is None else Path(request.out)
    if out is not None:  # made before the time is spent
        if out.exists() and not out.is_dir():
            raise OrtuneError(f"{out} is a file", fix="give a folder with -o")
        out.mkdir(parents=True, exist_ok=True)
    result = profiling.run(request)
    result = replace(result, actions=suggest(result))
    if request.trying:
        tried = evaluate_suggestions(
            result,
            result.actions,
            data=request.data,
            shapes=request.shapes,
            ranges=request.ranges,
            sink=request.sink,
        )
        result = replace(result, actions=tried)
    if out is not None:
        written = files.write_profile(result, out)
        page = write_page(result, out / "profile.html", force=True)
        for path in (*written, page):
            request.sink(Note(f"wrote {path}"))
    return result


profile = make_verb(ProfilePage, run, "profile")
