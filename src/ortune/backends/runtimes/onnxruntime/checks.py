"""Checks of settings' values: onnxruntime takes most wrong ones without a word."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from ortune.core import wording
from ortune.core.errors import BadSettings
from ortune.core.hardware.cpus import usable_cpus
from ortune.core.plugins.bounds import THREADS

_CPU = r"\d{1,4}(-\d{1,4})?"
_TEXT = re.compile(rf"{_CPU}(,{_CPU})*(;{_CPU}(,{_CPU})*)*")


def parse_affinity(text: str) -> list[set[int]]:
    """Return the CPUs of each thread but the first, counted from 0.

    Raises:
        BadSettings: The text is not of that form.
    """
    if not text:
        return []
    if not _TEXT.fullmatch(text):
        raise BadSettings(f'affinity="{text}" cannot be read', fix='write CPUs from 1, as "2;3-4"')
    cpu_sets = []
    for part in text.split(";"):
        ends = [[int(end) for end in span.split("-")] for span in part.split(",")]
        cpu_sets.append(
            {cpu - 1 for low, *upper in ends for cpu in range(low, (upper or [low])[0] + 1)}
        )
    if any(not cpus or -1 in cpus for cpus in cpu_sets):
        raise BadSettings(f'affinity="{text}" is not allowed', fix="count CPUs from 1, upwards")
    return cpu_sets


def check_affinity(text: str, threads: int) -> None:
    """Refuse an affinity that does not fit the threads or the CPUs of this process.

    The runtime logs a CPU that it may not use and goes on without it.

    Raises:
        BadSettings: A thread has no entry or too many, or a CPU may not be used.
    """
    cpu_sets = parse_affinity(text)
    if not cpu_sets:
        return
    if len(cpu_sets) != threads - 1:
        raise BadSettings(
            f'affinity="{text}" binds {wording.format_count(len(cpu_sets), "thread")}, not the '
            f"{threads - 1} beside the caller's",
            fix="give one entry for each thread but the first, separated by ;",
        )
    usable = usable_cpus()
    if usable and (foreign := sorted(set().union(*cpu_sets) - set(usable))):
        raise BadSettings(
            f'affinity="{text}" names CPU {foreign[0] + 1}, which this process may not use',
            fix=f"use {', '.join(str(cpu + 1) for cpu in usable)}",
        )


def affinity_of_workers(threads: int, usable: Sequence[int]) -> str:
    """Return an affinity that gives each thread but the caller's a CPU of its own.

    Empty where that cannot be done: too few usable CPUs, or a system that does not tell them.
    """
    if threads < 2 or len(usable) < threads:
        return ""
    return ";".join(str(cpu + 1) for cpu in usable[1:threads])


_OF_THREADS = "NUM_THREADS"
"""In the name of a key that counts threads, such as OpenVINO's COMPILATION_NUM_THREADS."""


def check_minimum(least: int, **fields: int) -> None:
    """Refuse values below a limit.

    Raises:
        BadSettings: One is below it.
    """
    for name, value in fields.items():
        if value < least:
            raise BadSettings(f"{name}={value} is not allowed", fix=f"give {least} or more")


def check_choices(allowed: Sequence[int], **fields: int) -> None:
    """Refuse values that are not in a list.

    Raises:
        BadSettings: One is not in it.
    """
    for name, value in fields.items():
        if value not in allowed:
            choices = ", ".join(map(str, allowed))
            raise BadSettings(f"{name}={value} is not allowed", fix=f"give one of {choices}")


def check_dependencies(*rules: tuple[bool, str, str]) -> None:
    """Refuse a field that says nothing without another one: (holds, field, what it needs).

    Raises:
        BadSettings: A rule does not hold.
    """
    for holds, name, needed in rules:
        if not holds:
            raise BadSettings(f"{name} has no effect", fix=f"set {needed}, or leave {name} out")


def parse_config(config: Sequence[str], fields: Mapping[str, str]) -> dict[str, str]:
    """Read ``key=value`` texts.

    Raises:
        BadSettings: One is not of that form, is given twice, has a field of its own, or asks for
            more threads than twice the CPUs.
    """
    entries: dict[str, str] = {}
    for text in config:
        key, sign, value = (part.strip() for part in text.partition("="))
        if not key or not sign or not value:
            raise BadSettings(f"cannot read the setting '{text}'", fix="write key=value")
        if key in fields:
            raise BadSettings(f"'{key}' has a field of its own", fix=f"set {fields[key]}")
        if key in entries:
            raise BadSettings(f"'{key}' is given twice", fix="keep one")
        if _OF_THREADS in key.upper() and value.lstrip("+-").isdecimal():
            THREADS.check(int(value[:12]), here=True)
        entries[key] = value
    return entries


def thread_counts(cpus: int, present: int) -> list[int]:
    """Return the thread counts to try beside the present one: 1, powers of two, 0 for all CPUs."""
    counts = [2**k for k in range(cpus.bit_length()) if 2**k < cpus]
    return [n for n in (*counts, 0) if (n or cpus) != (present or cpus)]


def demand_flushed() -> None:
    """Refuse a process in which this thread still computes with denormals.

    onnxruntime switches the calling thread's mode once in the life of a process, at its first
    session, whatever that one asked for.

    Raises:
        BadSettings: An earlier session has fixed the mode.
    """
    if float(np.float32(1e-40) * np.float32(1)) != 0:
        raise BadSettings(
            "flush_denormals=true has no effect: an earlier session of this process has fixed it",
            fix="open this model first, or in a process of its own",
        )
