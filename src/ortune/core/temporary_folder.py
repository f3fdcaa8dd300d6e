"""Temporary folders; those of killed processes are removed by the next that makes one."""

import atexit
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from ortune.core.system import lock_folder

_NAME = re.compile(r"ortune-\w{8}\.tmp")
_DRAFT = ".new"


@contextmanager
def open_temporary_folder() -> Iterator[Path]:
    """Give a folder that is gone when the block ends, or the process, however it ends.

    A lock on the folder says that it is in use: the system frees it when the process dies. Where
    folders cannot be locked nothing is held, and nothing of others is removed.
    """
    _remove_abandoned_folders(Path(gettempdir()))
    draft = Path(mkdtemp(prefix="ortune-", suffix=_DRAFT))
    lock = lock_folder(draft)  # before it has the name by which the abandoned are looked for
    folder = draft.rename(draft.with_suffix(".tmp"))

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)

    atexit.register(remove)
    try:
        yield folder
    finally:
        atexit.unregister(remove)
        remove()


@cache
def _remove_abandoned_folders(home: Path) -> None:
    """Remove what killed processes of this user's left, once in the life of a process."""
    if not hasattr(os, "getuid"):
        return
    with suppress(OSError), os.scandir(home) as entries:
        for entry in entries:
            if not _NAME.fullmatch(entry.name):
                continue
            with suppress(OSError):
                is_own = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_own and (lock := lock_folder(Path(entry.path))) is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(lock)
