"""Write a file beside its place and rename it when it is whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ortune.core.errors import OrtuneError


@contextmanager
def replacing(path: Path, *, force: bool = False, sources: Iterable[Path] = ()) -> Iterator[Path]:
    """Give a draft path; rename it to `path` on success, remove it on failure.

    Args:
        path: Where the file belongs.
        force: Whether an existing file may be replaced.
        sources: Files that are never replaced, whatever `force` says.

    Raises:
        OrtuneError: `path` is taken, is a source, lies in no folder, or the disk refuses.
    """
    _check(path, force, sources)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        wanted = f" after {draft.stat().st_size / 1e6:.1f} MB" if draft.exists() else ""
        raise OrtuneError(
            f"cannot write '{path}'{wanted}: {error.strerror or error}",
            fix="free space there, or choose another folder",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _check(path: Path, force: bool, sources: Iterable[Path]) -> None:
    if path.is_dir() or not path.name:
        raise OrtuneError(f"'{path}' is a folder", fix="give the name of a file")
    if not path.parent.is_dir():
        raise OrtuneError(f"there is no folder '{path.parent}'", fix="make it first")
    if any(path.resolve() == source.resolve() for source in sources):
        raise OrtuneError(
            f"'{path}' is an input of this run and is never overwritten", fix="choose another name"
        )
    if path.exists() and not force:
        raise OrtuneError(f"'{path}' exists", fix="give --force (force=True) or another name")
