"""What an environment offers a backend: answered by a worker that runs there."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from typing import Any, Literal, TypeAlias

from ortune.core.event import Note, Sink, ignore_event

HERE = "here"
"""The environment of this process's own interpreter."""

State: TypeAlias = Literal["works", "no device", "not loadable", "not installed"]
"""Whether a backend runs there: its runtime may be absent, not load, or find no device."""

RUNTIMES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-training",
    "onnxruntime-qnn",
    "onnxruntime-rocm",
    "onnxruntime-migraphx",
    "onnxruntime-cann",
    "onnxruntime-silicon",
    "onnxruntime-webgpu",
)
"""Distributions that install the same module; two of them overwrite each other's files."""


def list_runtimes(places: Sequence[str] | None = None) -> dict[str, str]:
    """Return the distributions of onnxruntime that are installed, each to its version.

    Args:
        places: Folders of packages; this process's own without.
    """
    where = sys.path if places is None else places
    versions: dict[str, str] = {}
    for name in RUNTIMES:
        for package in distributions(name=name, path=list(where)):
            versions.setdefault(name, package.version)
    return versions


def find_runtime_conflict(versions: Mapping[str, str]) -> tuple[str, str] | None:
    """Return what is wrong with several distributions of onnxruntime, and the fix; None of one.

    Which of them answers is the chance of who was installed last (onnxruntime issue 9966).
    """
    if len(versions) < 2:
        return None
    fix = f"pip uninstall -y {' '.join(versions)} && pip install onnxruntime"
    return (
        f"{', '.join(versions)} are installed together: each overwrites the other",
        f"{fix}; `ortune doctor env add cuda` and the like keep others apart",
    )


def warn_of_runtime_conflict(sink: Sink = ignore_event) -> None:
    """Say that this process's environment holds several distributions of onnxruntime, if it does.

    A note, or a warning of Python's where nobody listens for notes.
    """
    problem = find_runtime_conflict(list_runtimes())
    if problem is None:
        return
    text = "; fix: ".join(problem)
    if sink is ignore_event:
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    else:
        sink(Note(text, warning=True))


def describe_placement(row: Mapping[str, Any]) -> str:
    """Return what a row of `bench` ran on: its backend, and the environment if it is another."""
    where = row.get("environment", HERE)
    return str(row["backend"]) if where == HERE else f"{row['backend']} in {where}"


@dataclass(frozen=True)
class Capabilities:
    """The installation and the CPUs that a backend's sessions will have.

    Attributes:
        missing: Why the backend cannot run there and how to fix that; None when it can.
        state: The same in one word; a runtime that loads may still offer no device.
        effective_cpus: CPUs that threads should be sized by.
        usable_cpus: CPUs that threads may be bound to, counted from 0; empty where unknown.
        instruction_sets: The CPU's flags in Linux' spelling; empty where unknown.
        providers: Execution providers of the installed onnxruntime.
        devices: Provider -> devices that it offers, such as ``CPU``.
        versions: Distribution -> version of what results depend on.
        machine: CPU model, instruction sets, effective CPUs, system.
        driver: Versions beside the packages: driver, cuda, cudnn, tensorrt; empty without a GPU.
    """

    missing: str | None = None
    state: State = "works"
    effective_cpus: int = 1
    usable_cpus: tuple[int, ...] = ()
    instruction_sets: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    driver: Mapping[str, str] = field(default_factory=dict)
