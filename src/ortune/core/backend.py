"""Backends: where a model runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeAlias

from ortune.core.capabilities import Capabilities, State
from ortune.core.errors import BackendMissing
from ortune.core.facts import Facts
from ortune.core.plugins.bounds import THREADS
from ortune.core.plugins.plugin import Plugin
from ortune.core.workload import Workload

if TYPE_CHECKING:
    from ortune.core.session import Recording, Session, Tensors


Kind: TypeAlias = Literal["cpu", "gpu", "npu"]
"""A kind of device that computes."""

VERIFIED: Mapping[tuple[str, Kind], str] = MappingProxyType(
    {("CUDAExecutionProvider", "gpu"): "benchmarks/results/nvidia-h100-80gb-hbm3/gpu.json"}
)
"""Provider and kind of device -> the committed results of `tests/gpu` there.

What runs on a CPU is not listed: every change runs it.
"""


def explain_unverified(provider: str, kind: Kind) -> str:
    """Return why a provider is unverified on a kind of device, empty where it was run."""
    if kind == "cpu" or (provider, kind) in VERIFIED:
        return ""
    return f"never run on {'a GPU' if kind == 'gpu' else 'an NPU'} here"


GraphLevel: TypeAlias = Literal["disabled", "disable", "basic", "extended", "all"]
"""How far a runtime may rewrite a graph; ``disable`` is ``disabled``, see `graph_level`."""


def graph_level(level: GraphLevel) -> GraphLevel:
    """Return a graph level by its one name, which is what is written."""
    return "disabled" if level == "disable" else level


@dataclass(frozen=True)
class Backend(Plugin):
    """How to load a model; the fields are the session options that may be searched.

    Attributes:
        threads: Threads inside one operator; 0 takes the CPUs this process may really use.
        provider: The execution provider that must hold the model, in the runtime's spelling.
    """

    folder: ClassVar[str] = "backends"
    title: ClassVar[str] = ""
    """How people write it, such as ``OpenVINO``; its name where this is empty."""
    provider: ClassVar[str] = ""
    automatic: ClassVar[bool] = True
    """Part of ``--on auto``."""
    domains: ClassVar[frozenset[str]] = frozenset()
    """Operator domains beyond the standard's that it has kernels for, such as com.microsoft."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Fields that name a function or a file: what they hold then is part of a job."""

    threads: Annotated[int, THREADS] = 0

    @property
    def custom_ops(self) -> tuple[str, ...]:
        """Libraries of custom operators that its sessions know; a field where they can be given.

        Each is the path of a shared library, of a Python file, or the name of a Python module;
        the latter two define ``get_library_path()``.
        """
        return ()

    @property
    def runs_on(self) -> Kind:
        """The kind of device that computes, as far as these options say: cpu, gpu or npu."""
        return "cpu"

    @property
    def planned_by_shape(self) -> frozenset[str]:
        """Operators that cost many runs whenever their shape is not that of the run before."""
        return frozenset()

    @property
    def unverified(self) -> str:
        """Why it is offered as "unverified": never run on its device; empty where it was."""
        return explain_unverified(self.provider, self.runs_on)

    def builds_with(self, capabilities: Capabilities) -> Backend:
        """Return what a model is optimized with for it; itself where it can save what it runs.

        Args:
            capabilities: What the environment that optimizes offers.
        """
        return self

    def leave_out(self, optimizers: Sequence[str], level: GraphLevel | None) -> Self:
        """Return it without some graph optimizers of onnxruntime; itself where it has no choice.

        Args:
            level: At which it stays where leaving some out is not enough; None keeps its own.
        """
        return self

    @property
    def lossy(self) -> bool:
        """Whether these options change numbers beyond the order of float32 sums."""
        return False

    @property
    def portable(self) -> bool:
        """Whether these options mean the same on every CPU: neither numbers nor CPUs of this one.

        A count of threads is no part of it: who searches leaves counts of this machine out.
        """
        return True

    @property
    def arithmetic(self) -> frozenset[str]:
        """What may run faster here than float32.

        ``int8``: static Q/DQ graphs; ``int8-dynamic``: integer products with ranges taken at run
        time; ``int8-weights``: weights kept as integers until they are used; ``fp16``, ``bf16``:
        files of these types; ``fp8``: float8 products behind Q/DQ pairs.
        """
        return frozenset()

    @property
    def compared_on(self) -> str:
        """Say which part of the outputs `compared` keeps, in a few words; empty for all."""
        return ""

    @property
    def shown(self) -> str:
        """Its spelling in tables: whole, unless parts of it are long and say nothing there."""
        return str(self)

    def compared(self, feeds: Tensors, outputs: Tensors) -> Tensors:
        """Return what of a run's outputs it answers for: both sides are compared on that.

        Args:
            feeds: What the run was given.
            outputs: Of this backend, or of the baseline on the same sample.
        """
        return outputs

    @classmethod
    def tried(cls) -> tuple[Self, ...]:
        """Return what `ortune doctor` tries: the plain options, and one for each other device."""
        return (cls(),)

    def missing(self) -> str | None:
        """Return why it cannot run in this process and how to fix that; None when it can.

        Asked where sessions are opened: in a worker, or by the engine.
        """
        return None

    def state(self, missing: str | None) -> State:
        """Return which of the states that is.

        Args:
            missing: What `missing` answered there.
        """
        if missing is None:
            return "works"
        return "not installed" if "pip install" in missing else "not loadable"

    def variants(
        self, facts: Facts, workload: Workload, capabilities: Capabilities
    ) -> Iterable[Self]:
        """Yield the option sets to try with every recipe, the best bet first."""
        yield self

    def coordinates(
        self, facts: Facts, capabilities: Capabilities
    ) -> Mapping[str, Sequence[Self]]:
        """Return settings to try one by one: name -> these options with another value of it.

        The setting that is worth most comes first, and within it the best bet. None asks for
        more threads than there are effective CPUs. Values that change numbers are `lossy`.
        """
        return {}

    @abstractmethod
    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Load the model. Heavy imports belong in here, not at the top of the file.

        Args:
            path: The model file; external data is looked for beside it.
            verbose: Let the runtime log to stderr.
        """

    def record(
        self, path: Path, folder: Path, *, verbose: bool = False
    ) -> AbstractContextManager[Recording]:
        """Load the model as `open` does, with the runtime's own profiler on.

        Args:
            folder: Receives the runtime's files: its trace and the graph that it executes.
            verbose: Let the runtime log to stderr.

        Raises:
            BackendMissing: This runtime records no profile.
        """
        raise BackendMissing(
            f"backend '{self.name()}' does not record a profile", fix="use --on cpu or openvino"
        )

    def takes(self, path: Path) -> Mapping[str, Sequence[str]]:
        """Return execution provider -> names of the nodes it would take, asked of the runtime.

        The runtime's own rewriting is off, so that the names are the file's.

        Raises:
            BackendMissing: This runtime does not tell.
            BadModel: It does not load the model.
        """
        raise BackendMissing(
            f"backend '{self.name()}' does not report which nodes it assigns",
            fix="use --on cpu or openvino",
        )
