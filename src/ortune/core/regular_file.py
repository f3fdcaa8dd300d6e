"""Files of others: opened where they are regular, read up to a bound."""

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from ortune.core.errors import BadData, OrtuneError

LARGEST = 1 << 28
"""Bytes read at once where a caller has no bound of its own: far more than any text of ours."""
_UNPACK_LIMIT: ContextVar[int | None] = ContextVar("unpack_limit", default=None)
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY"))
_FREE, _RATIO = 1 << 30, 100
_FIX = "give a regular file; write the content of a pipe or a device into one first"
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: str | Path, error: type[OrtuneError] = BadData) -> io.BufferedReader:
    """Open a file for reading, only if it is a regular one; links are followed.

    A pipe nobody writes into would be waited for, a device such as ``/dev/zero`` never ends.

    Args:
        error: What is raised of anything but a regular file.

    Raises:
        OSError: It is not there, a folder, or may not be read.
        OrtuneError: It is a pipe, a socket or a device.
    """
    mode = Path(path).stat().st_mode  # some devices act on being opened
    _require_regular(path, mode, error)
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _FLAGS))  # noqa: SIM115
    try:
        _require_regular(path, os.fstat(file.fileno()).st_mode, error)  # another by now?
    except BaseException:
        file.close()
        raise
    return file


def require_regular(path: str | Path, error: type[OrtuneError] = BadData) -> None:
    """Refuse what `open_regular` refuses, for a library that opens a path by itself.

    Raises:
        OSError: As `open_regular`.
        OrtuneError: As `open_regular`.
    """
    with open_regular(path, error):
        pass


def read_bytes(path: str | Path, most: int = LARGEST, error: type[OrtuneError] = BadData) -> bytes:
    """Return all bytes of a regular file.

    Raises:
        OSError: As `open_regular`.
        OrtuneError: As `open_regular`; or it has more than `most` bytes.
    """
    with open_regular(path, error) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise error(
            f"{path} is larger than {most} bytes, the most that is read of such a file",
            fix="check the path, or give a smaller file",
        )
    return content


def read_text(path: str | Path, most: int = LARGEST, error: type[OrtuneError] = BadData) -> str:
    """Return the text of a regular file in UTF-8, with ends of lines as they are in Python.

    Raises:
        OSError: As `open_regular`.
        UnicodeDecodeError: It is no such text.
        OrtuneError: As `read_bytes`.
    """
    text = read_bytes(path, most, error).decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def limit_unpacking(size: int | None) -> Iterator[None]:
    """Let packed samples take so many bytes unpacked in the block; None leaves what there is."""
    token = _UNPACK_LIMIT.set(_UNPACK_LIMIT.get() if size is None else size)
    try:
        yield
    finally:
        _UNPACK_LIMIT.reset(token)


def require_unpacked(unpacked: int, packed: int, path: Path) -> None:
    """Check what packed samples say of their size, before anything is unpacked.

    Args:
        unpacked: Bytes of all so far, as their files' directories have them.
        packed: Bytes of these files.
        path: The last of them.

    Raises:
        BadData: It is more than was allowed; without that more than 1 GiB, and than a hundred
            times the files: data has a tenth of that, and a few bytes can promise terabytes.
    """
    limit = _UNPACK_LIMIT.get()
    most = max(_FREE, _RATIO * packed) if limit is None else limit
    if unpacked > most:
        raise BadData(
            f"{path} would be unpacked to {unpacked / 2**30:.1f} GiB with the samples before it, "
            f"from {packed / 2**20:.1f} MiB; the limit is {most / 2**30:.1f} GiB",
            fix=f"if you trust the file: --unpack-limit {-(-unpacked // 2**30)}G",
        )


def _require_regular(path: str | Path, mode: int, error: type[OrtuneError]) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = next((name for matches, name in _KINDS if matches(mode)), "something else")
    raise error(f"{path} is {kind}, not a regular file", fix=_FIX)
