"""Write a file or a folder beside its place and rename it when it is whole; hold a lock.

What a person was promised outlives a loss of power: the bytes are on disk before the rename, the
name after it. What can be made again (``durable=False``) is only whole for other processes.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from ortune.core.errors import OrtuneError
from ortune.core.outputs import check_output_file
from ortune.core.system import lock_file


@contextmanager
def open_draft(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Give the path of a draft, of a file or a folder, that replaces `path` when the block ends.

    Folders above are made. After an error the draft and the folders made for it are removed. The
    block's own errors pass as they are. A link stays and what it points to is replaced; a device
    or a pipe (``/dev/stdout``) cannot be replaced and is given itself.

    Args:
        durable: Wait until the disk has it; False for what is made again when it is gone.

    Raises:
        OrtuneError: The disk refuses.
    """
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    new_folders = [folder for folder in path.absolute().parents if not folder.exists()]
    try:
        with report_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        with report_write_errors(path):
            if durable:
                _sync_files(draft)
            replace_path(draft, path)
            if durable:
                sync_folder(path.parent)
    except BaseException:
        remove_path(draft)
        for folder in new_folders:
            with suppress(OSError):
                folder.rmdir()
        raise


def write_text(path: Path, text: str, *, durable: bool = True) -> Path:
    """Write a text file whole or not at all, as `open_draft` does, and return its path.

    Raises:
        OrtuneError: The disk refuses.
    """
    with open_draft(path, durable=durable) as draft, report_write_errors(path):
        draft.write_text(text, encoding="utf-8")
    return path


def _sync_files(draft: Path) -> None:
    """Wait until a file, or all files of a folder, are on disk."""
    inside = sorted(draft.rglob("*")) if draft.is_dir() else [draft]
    for path in inside:
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    if draft.is_dir():
        sync_folder(draft)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk, where the system offers that."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def append_line(path: Path, line: str) -> None:
    """Write a line behind a file's others, whole or not at all; it is on disk on return.

    Raises:
        OrtuneError: The file cannot be written.
    """
    first = not path.is_file()
    before = 0 if first else path.stat().st_size
    try:
        with path.open("ab") as file:
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        if first:
            sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            os.truncate(path, before)  # a torn line would spoil the next one
        raise OrtuneError(
            f"cannot write {path}: {error.strerror}", fix="free space, then run again"
        ) from error


def read_whole_lines(path: Path) -> list[bytes]:
    """Return a file's lines; a last one without its newline is being written, and left out."""
    if not path.is_file():
        return []
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1].splitlines()


def cut_torn(path: Path) -> None:
    """Cut off a last line without its newline: its writer died."""
    if not path.is_file():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)


def replace_path(draft: Path, path: Path) -> None:
    """Rename a finished file or folder; what was at `path` is gone."""
    if draft.is_dir():
        remove_path(path)
    draft.replace(path)


def remove_path(path: Path) -> None:
    """Remove a file or a folder with all that it holds, if it is there and can be removed."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


@contextmanager
def clean_up_on_failure(outputs: Iterable[Path], kept: Callable[[Path], bool]) -> Iterator[None]:
    """Remove what the block has made of these files and folders when it fails or is interrupted.

    What was there before stays: of a folder that was empty only what came into it goes. So does
    everything once `keep_files` was called inside.

    Args:
        outputs: Files and folders that the block may make, and the folders above them.
        kept: Says of one that it holds a result already, which stays.
    """
    fresh = [
        path.absolute()
        for path in outputs
        if not path.exists() or (path.is_dir() and not any(path.iterdir()))
    ]
    gone = [path for path in fresh if not path.exists()]
    above = [folder for path in gone for folder in path.parents if not folder.exists()]
    token = _REMOVABLE.set(fresh)
    try:
        yield
    except BaseException:
        for path in fresh:
            if path.exists() and not kept(path):
                for each in [path] if path in gone else list(path.iterdir()):
                    remove_path(each)
        for folder in sorted(set(above), reverse=True):
            with suppress(OSError):
                folder.rmdir()
        raise
    finally:
        _REMOVABLE.reset(token)


_REMOVABLE: ContextVar[list[Path] | None] = ContextVar("removable", default=None)
"""Files and folders that go where the present block of `clean_up_on_failure` fails."""


def keep_files() -> None:
    """Let all stay that the present block of `clean_up_on_failure` has made: the work is done.

    Whatever fails from now on, such as telling of it, undoes nothing.
    """
    if (removable := _REMOVABLE.get()) is not None:
        removable.clear()


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Turn errors of the system into one that names the file.

    Raises:
        OrtuneError: The block failed to write.
    """
    try:
        yield
    except OSError as error:
        raise OrtuneError(
            f"cannot write '{path}': {error.strerror or error}",
            fix="free some space there, or choose another folder",
        ) from error


@contextmanager
def hold_lock(path: Path, conflict: OrtuneError, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a lock file; the system frees it when the process dies.

    Args:
        conflict: Raised where another process holds it.
        wait_s: Seconds to wait for that process.

    Raises:
        OrtuneError: `conflict`, or there is no writing there.
    """
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    until = time.monotonic() + wait_s
    with file:
        while not lock_file(file.fileno()):
            if time.monotonic() >= until:
                raise conflict
            time.sleep(0.05)
        yield


@contextmanager
def open_output_draft(
    path: Path, *, force: bool = False, sources: Iterable[Path] = ()
) -> Iterator[Path]:
    """Give a draft for a file that the user named: `open_draft`, once it is known to be allowed.

    Args:
        path: Where the file belongs; its folder must be there.
        force: Whether an existing file may be replaced.
        sources: Files that are never replaced, whatever `force` says.

    Raises:
        OrtuneError: `path` is taken, is a source, lies in no folder, or the disk refuses.
    """
    check_output_file(path, force, *sources)
    with open_draft(path) as draft, report_write_errors(path):
        yield draft
