"""CPUs that an operator's threads are bound to, in onnxruntime's spelling.

``2;3-4`` binds the second thread to the second CPU and the third to the third and fourth: CPUs
are counted from 1, threads are separated by semicolons, and the calling thread has no entry
(OrtApi::SetGlobalIntraOpThreadAffinity).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ortune.core import wording
from ortune.core.errors import BadSettings
from ortune.core.hardware.cpus import usable_cpus

_CPU = r"\d{1,4}(-\d{1,4})?"
_TEXT = re.compile(rf"{_CPU}(,{_CPU})*(;{_CPU}(,{_CPU})*)*")


def parse(text: str) -> list[set[int]]:
    """Return the CPUs of each thread but the first, counted from 0.

    Raises:
        BadSettings: The text is not of that form.
    """
    if not text:
        return []
    if not _TEXT.fullmatch(text):
        raise BadSettings(f'affinity="{text}" cannot be read', fix='write CPUs from 1, as "2;3-4"')
    found = []
    for part in text.split(";"):
        ends = [[int(end) for end in one.split("-")] for one in part.split(",")]
        found.append(
            {cpu - 1 for low, *rest in ends for cpu in range(low, (rest or [low])[0] + 1)}
        )
    if any(not cpus or -1 in cpus for cpus in found):
        raise BadSettings(f'affinity="{text}" is not allowed', fix="count CPUs from 1, upwards")
    return found


def check(text: str, threads: int) -> None:
    """Refuse an affinity that does not fit the threads or the CPUs of this process.

    The runtime logs a CPU that it may not use and goes on without it.

    Raises:
        BadSettings: A thread has no entry or too many, or a CPU may not be used.
    """
    wanted = parse(text)
    if not wanted:
        return
    if len(wanted) != threads - 1:
        raise BadSettings(
            f'affinity="{text}" binds {wording.count(len(wanted), "thread")}, not the '
            f"{threads - 1} beside the caller's",
            fix="give one entry for each thread but the first, separated by ;",
        )
    usable = usable_cpus()
    if usable and (foreign := sorted(set().union(*wanted) - set(usable))):
        raise BadSettings(
            f'affinity="{text}" names CPU {foreign[0] + 1}, which this process may not use',
            fix=f"use {', '.join(str(cpu + 1) for cpu in usable)}",
        )


def workers(threads: int, usable: Sequence[int]) -> str:
    """Return an affinity that gives each thread but the caller's a CPU of its own.

    Empty where that cannot be done: too few usable CPUs, or a system that does not tell them.
    """
    if threads < 2 or len(usable) < threads:
        return ""
    return ";".join(str(cpu + 1) for cpu in usable[1:threads])
