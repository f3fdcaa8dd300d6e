"""Locks, processes and limits of the operating system, and what is done where it lacks one."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def lock_file(descriptor: int) -> bool:
    """Take the lock of an open file without waiting; return whether nobody else holds it.

    The system frees it when the file is closed or the process dies. On Windows it is that of the
    file's first byte, which need not exist.
    """
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, 0, os.SEEK_SET)
        with suppress(OSError):
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            return True
        return False
    import fcntl

    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def lock_folder(folder: Path) -> int | None:
    """Return a descriptor that holds a folder, as `lock_file` holds a file; None if it cannot.

    Windows opens no folders, so nothing is held there.
    """
    if sys.platform == "win32":
        return None
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        is_held = False
        try:
            is_held = lock_file(descriptor)
        finally:
            if not is_held:
                os.close(descriptor)
        return descriptor if is_held else None
    return None


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group, and those that it left; on Windows that process alone."""
    if sys.platform != "win32":
        with suppress(OSError):  # the group is empty
            os.killpg(process.pid, signal.SIGKILL)
            return
    process.kill()


def raise_file_limit(count: int) -> None:
    """Let this process open as many files, or as many as its hard limit allows.

    Windows has no such limit.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = count if hard == resource.RLIM_INFINITY else min(hard, count)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
