"""Files and folders that may be written."""

import os
import sys
from pathlib import Path

from ortune.core.errors import BadData, OrtuneError


def check_output_file(path: str | Path, force: bool = False, *sources: str | Path) -> Path:
    """Return `path` if it may be written.

    Raises:
        OrtuneError: It exists and `force` is off, is one of the sources, or has no folder.
    """
    path = Path(path)
    for source in map(Path, sources):
        if path.exists() and source.exists() and path.samefile(source):
            raise OrtuneError(
                f"{path} is the source itself, which is never overwritten",
                fix="give another name for the output",
            )
    if path.is_dir():
        raise OrtuneError(f"{path} is a folder", fix="give the name of a file")
    if path.exists() and not force:
        fix = "give another name, or --force (force=True) to overwrite it"
        raise OrtuneError(f"{path} exists", fix=fix)
    if not path.absolute().parent.is_dir():
        raise OrtuneError(
            f"there is no folder {path.absolute().parent}", fix="make it first, or write elsewhere"
        )
    return path


def check_page_file(path: str | Path, force: bool = False, *sources: str | Path) -> Path:
    """Return `path` if a page may be written there, its ending included.

    Raises:
        OrtuneError: As `check_output_file`, or it does not end as a page does.
    """
    path = check_output_file(path, force, *sources)
    if path.suffix.lower() not in (".html", ".htm"):
        raise OrtuneError(f"cannot write a page as '{path.name}'", fix="end it in .html")
    return path


def check_output_folder(folder: Path, force: bool) -> Path:
    """Return a folder if it may be written into.

    Raises:
        BadData: There is something in it, and `force` is off; or it is a file.
    """
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not force)):
        raise BadData(f"{folder} exists", fix="give another -o, or --force to write into it")
    return folder


def find_cache_folder() -> Path | None:
    """Return our folder below the user's cache folder, there or not; None without a home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if sys.platform == "win32":
        named = named or os.environ.get("LOCALAPPDATA", "")
    if Path(named).is_absolute():
        return Path(named) / "ortune"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return (
        home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    ) / "ortune"
