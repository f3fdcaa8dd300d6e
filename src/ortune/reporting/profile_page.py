"""A profile as one offline page."""

from __future__ import annotations

from pathlib import Path

from ortune.core.atomic_write import replacing
from ortune.core.profile import Profile
from ortune.reporting.html import page
from ortune.reporting.profile import parts

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
