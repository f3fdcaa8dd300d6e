"""DirectML: GPUs of every vendor on Windows. Rules and configuration; nobody ran it here."""

import platform
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from numpy.typing import NDArray

from ortune.backends.runtimes.onnxruntime import checks, session
from ortune.core.backend import Backend, GraphLevel, Kind, graph_level
from ortune.core.capabilities import Capabilities, State
from ortune.core.facts import Facts
from ortune.core.plugins.bounds import Bounds
from ortune.core.session import Session, Tensors

ELSEWHERE = "DirectML is a part of Windows; use --on cpu, or cuda, here"


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

    title: ClassVar[str] = "DirectML"
    provider: ClassVar[str] = "DmlExecutionProvider"
    automatic: ClassVar[bool] = False
    domains: ClassVar[frozenset[str]] = frozenset({"com.microsoft"})
    portable: ClassVar[bool] = False
    """It needs a GPU and Windows."""
    runs_on: ClassVar[Kind] = "gpu"

    device: Annotated[int, Bounds(high=64)] = 0
    level: GraphLevel = "all"
    metacommands: bool = True
    graph_fusion: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", graph_level(self.level))
        checks.check_minimum(0, threads=self.threads, device=self.device)

    @property
    def arithmetic(self) -> frozenset[str]:
        """Files of 16-bit floats; of integers only what its rules list."""
        return frozenset({"fp16", "int8"})

    def missing(self) -> str | None:
        """Return that it is for Windows, or what to install there."""
        if platform.system() != "Windows":
            return ELSEWHERE
        if self.provider not in session.list_providers():
            return "pip uninstall -y onnxruntime && pip install onnxruntime-directml"
        return None

    def state(self, missing: str | None) -> State:
        """That this is no Windows is a device that is not there, whatever is installed."""
        return "no device" if missing == ELSEWHERE else super().state(missing)

    def coordinates(
        self, facts: Facts, capabilities: Capabilities
    ) -> Mapping[str, Sequence[Self]]:
        """Return neighbours by setting: fusion and metacommands each lose on some drivers."""
        return {
            "graph_fusion": [replace(self, graph_fusion=not self.graph_fusion)],
            "metacommands": [replace(self, metacommands=not self.metacommands)],
        }

    def provider_options(self) -> dict[str, str]:
        """Return the provider's options; only what is not the default.

        With a device, performance preference and filter are ignored (onnxruntime
        dml_provider_factory.cc, CreateFromProviderOptions), so none is given.
        """
        options = {"device_id": str(self.device)}
        return options if self.metacommands else {**options, "disable_metacommands": "true"}

    def adapt_options(self, options: Any) -> None:
        """Set a session's options as DirectML demands.

        Memory patterns and parallel execution are not supported by the provider (its
        documentation, Configuration options). Graph capture is left out: it needs bound inputs and
        outputs, and without them a second run answers with what the first left.
        """
        import onnxruntime

        options.enable_mem_pattern = False
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        if not self.graph_fusion:
            options.add_session_config_entry("ep.dml.disable_graph_fusion", "1")

    @contextmanager
    def open(self, path: Path, *, verbose: bool = False) -> Iterator[Session]:
        """Open a session of which DirectML takes a part.

        Raises:
            BackendMissing: This is no Windows, or DirectML took no node.
        """
        options = session.make_session_options(self.threads, self.level, verbose=verbose)
        self.adapt_options(options)
        chain = [(self.provider, self.provider_options())]
        with session.open_session(path, options, provider=self.provider, chain=chain) as opened:
            yield _SerialSession(opened.inner)


class _SerialSession(session.OrtSession):
    """A session that may not run in two threads at once (DirectML's documentation)."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._turn = threading.Lock()

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        with self._turn:
            return super().run(feeds)
