"""The steps of the GPU's benchmark, in the order of their worth, and what they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from ortune.backends.cpu import Cpu
from ortune.backends.cuda import Cuda
from ortune.core.backend import Backend

T = TypeVar("T")

RTX = "onnxruntime-ep-nv-tensorrt-rtx-cu13"


@dataclass(frozen=True)
class Target:
    """What is measured: the GPU or, to try the scripts, the CPU in its place.

    Attributes:
        dry: The CPU in place of the GPU, and the first of each list alone.
        work: Folder for files.
        rtx: The step of TensorRT-RTX has seen it run here.
    """

    dry: bool
    work: Path
    rtx: bool = False

    @property
    def device(self) -> str:
        """The device as torch spells it."""
        return "cpu" if self.dry else "cuda"

    @property
    def convert_for(self) -> Literal["cpu", "cuda"]:
        """The target of `ortune convert`."""
        return "cpu" if self.dry else "cuda"

    def backend(self, **fields: Any) -> Backend:
        """Return the CUDA backend, or the CPU's."""
        return Cpu(**fields) if self.dry else Cuda(**fields)

    def ways(self) -> Sequence[tuple[str, Backend]]:
        """Return the ways to call CUDA beside the levels, by name."""
        if self.dry:
            return [("threads=1", Cpu(threads=1))]
        return [
            ("no io-binding", Cuda(io_binding=False)),
            ("CUDA graph", Cuda(cuda_graph=True)),
            ("TF32", Cuda(tf32=True)),
        ]

    def some(self, items: Sequence[T]) -> Sequence[T]:
        """Return all of them, or the last in a dry run: the lists end with what is quickest."""
        return items[-1:] if self.dry else items


@dataclass(frozen=True)
class Step:
    """One process with a limit of its own and a result file of its own.

    Attributes:
        limit_s: When it is ended; what it has written by then counts.
    """

    name: str
    limit_s: float


STEPS = (
    Step("doctor", 60),
    Step("tests", 150),
    Step("levels", 180),
    Step("rtx", 110),
    Step("resnet50", 210),
    Step("bert", 210),
    Step("gptkv", 210),
    Step("batches", 40),
    Step("serving", 150),
    Step("tensorrt", 150),
    Step("lstm", 200),
    Step("unet", 200),
    Step("gpt2", 210),
    Step("dunet", 200),
)


def find_steps(names: Sequence[str]) -> Iterator[Step]:
    """Yield the steps of these names in that order; all without a name."""
    by_name: Mapping[str, Step] = {step.name: step for step in STEPS}
    for name in names or by_name:
        yield by_name[name]
