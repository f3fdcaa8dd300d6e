"""The public verb: write a study's report to a file."""

from __future__ import annotations

from pathlib import Path

from ortune.core.atomic_write import replacing
from ortune.core.errors import OrtuneError
from ortune.core.study import Study
from ortune.reporting.html import render
from ortune.reporting.markdown import markdown

_FORMATS = (".html", ".htm", ".md")


def report(study: Study, path: str | Path, force: bool = False) -> Path:
    """Write the report as one offline file: HTML, or Markdown if the name ends in .md.

    Args:
        force: Replace an existing file. An original model is never replaced.

    Raises:
        OrtuneError: The path is taken, has another ending, or cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise OrtuneError(
            f"cannot write a report as '{path.name}'", fix=f"end it in {' or '.join(_FORMATS)}"
        )
    text = markdown(study) if path.suffix.lower() == ".md" else render(study)
    originals = [Path(source) for source in study.models.values()]
    with replacing(path, force=force, sources=originals) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path
