"""What an environment offers a backend: answered by a worker that runs there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

HERE = "here"
"""The environment of this process's own interpreter."""

State: TypeAlias = Literal["works", "no device", "not loadable", "not installed"]
"""Whether a backend runs there: its runtime may be absent, not load, or find no device."""


def describe_placement(row: Mapping[str, Any]) -> str:
    """Return what a row of `bench` ran on: its backend, and the environment if it is another."""
    where = row.get("environment", HERE)
    return str(row["backend"]) if where == HERE else f"{row['backend']} in {where}"


@dataclass(frozen=True)
class Capabilities:
    """The installation and the CPUs that a backend's sessions will have."""

    # Why the backend cannot run there and how to fix that; None when it can.
    missing: str | None = None
    state: State = "works"  # the same in one word; a runtime that loads may still offer no device
    effective_cpus: int = 1  # CPUs that threads should be sized by
    # CPUs that threads may be bound to, counted from 0; empty where unknown.
    usable_cpus: tuple[int, ...] = ()
    # The CPU's flags in Linux' spelling; empty where unknown.
    instruction_sets: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()  # execution providers of the installed onnxruntime
    # Provider -> devices that it offers, such as ``CPU``.
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Distribution -> version of what results depend on.
    versions: Mapping[str, str] = field(default_factory=dict)
    # CPU model, instruction sets, effective CPUs, system.
    machine: Mapping[str, str] = field(default_factory=dict)
    # Versions beside the packages: driver, cuda, cudnn, tensorrt; empty without a GPU.
    driver: Mapping[str, str] = field(default_factory=dict)
