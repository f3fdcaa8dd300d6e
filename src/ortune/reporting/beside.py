"""Profiles that were written into a run's folder, as parts of its report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ortune.analysis.profiling import files
from ortune.core.errors import OrtuneError
from ortune.core.section import Heading, Text
from ortune.core.study import Study
from ortune.reporting.blocks import Part
from ortune.reporting.profile import parts


def profiles(study: Study) -> Iterator[Part]:
    """Yield the report of every profile in the run's folder or in a folder right under it."""
    root = Path(study.root)
    if not study.root or not root.is_dir():
        return
    places = (root, *sorted(path for path in root.iterdir() if path.is_dir()))
    found = [place for place in places if (place / files.WHOLE).is_file()]
    for count, place in enumerate(found, 1):
        name = f"profile-{count}"
        try:
            profile, actions = files.read(place)
        except OrtuneError as error:
            yield Part(name, (Text(f"A profile is left out: {error.what}.", "warn"),))
            continue
        title = Heading(f"Profile of {Path(profile.model).name} on {profile.backend}")
        source = Text(f"From {place.name}/{files.WHOLE}, measured apart from the search.")
        yield Part(name, (title, source))
        for part in parts(profile, actions):
            yield replace(part, name=f"{name}-{part.name}")
