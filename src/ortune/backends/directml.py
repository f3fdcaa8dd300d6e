"""DirectML: GPUs of every vendor on Windows. Rules and configuration; nobody ran it here."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

from ortune.core.backend import Backend, GraphLevel, Kind, graph_level
from ortune.core.capabilities import Capabilities, State
from ortune.core.facts import Facts
from ortune.core.plugins.bounds import Bounds
from ortune.core.session import Session
from ortune.runtimes.onnxruntime import checks, session
from ortune.runtimes.onnxruntime.providers import directml


@dataclass(frozen=True)
class Directml(Backend):
    """Execution by onnxruntime's DirectML provider, on Windows.

    A session computes for one caller at a time; others wait. What DirectML has no kernel for runs
    on the CPU, but a session of which it takes nothing is refused.

    Attributes:
        threads: Threads of what stays on the CPU; 0 takes the CPUs this process may really use.
        device: The adapter, by its place in Windows' list; 0 is the one of the first display.
        level: How far onnxruntime may rewrite the graph when it loads it.
        metacommands: Use the driver's own kernels for whole operators.
        graph_fusion: Compile parts of the graph as one.
    """

    provider: ClassVar[str] = directml.PROVIDER
    automatic: ClassVar[bool] = False
    domains: ClassVar[frozenset[str]] = frozenset({"com.microsoft"})

    device: Annotated[int, Bounds(high=64)] = 0
    level: GraphLevel = "all"
    metacommands: bool = True
    graph_fusion: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", graph_level(self.level))
        checks.at_least(0, threads=self.threads, device=self.device)

    @property
    def portable(self) -> bool:
        """It needs a GPU and Windows."""
        return False

    @property
    def runs_on(self) -> Kind:
        return "gpu"

    @property
    def arithmetic(self) -> frozenset[str]:
        """Files of 16-bit floats; of integers only what its rules list."""
        return frozenset({"fp16", "int8"})

    def missing(self) -> str | None:
        """Return that it is for Windows, or what to install there."""
        return directml.missing(platform.system())

    def state(self, missing: str | None) -> State:
        """That this is no Windows is a device that is not there, whatever is installed."""
        return "no device" if missing == directml.ELSEWHERE else super().state(missing)

    def coordinates(
        self, facts: Facts, capabilities: Capabilities
    ) -> Mapping[str, Sequence[Self]]:
        """Return neighbours by setting: fusion and metacommands each lose on some drivers."""
        return {
            "graph_fusion": [replace(self, graph_fusion=not self.graph_fusion)],
            "metacommands": [replace(self, metacommands=not self.metacommands)],
        }

    def configuration(self) -> directml.Configuration:
        """Return what onnxruntime is told: session keys and the provider's options."""
        return directml.configuration(
            self.device, metacommands=self.metacommands, graph_fusion=self.graph_fusion
        )

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Open a session of which DirectML takes a part.

        Raises:
            BackendMissing: This is no Windows, or DirectML took no node.
        """
        made = session.options(self.threads, self.level, verbose=verbose)
        return directml.session(path, made, self.configuration())
