"""PyTorch itself, in place of the ONNX file: was the conversion worth it?"""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from ortune.backends.runtimes.torch import session as native
from ortune.core.backend import Backend
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import stored
from ortune.core.session import Session


@dataclass(frozen=True)
class Torch(Backend):
    """CPU execution by PyTorch, of the module that the ONNX file was exported from.

    The file only says the names of inputs and outputs: no recipe changes what runs. Feeds go to
    the module's parameters of the same names, or in the file's order where it lacks one of them;
    its outputs are named likewise.

    Attributes:
        threads: Threads inside one operator; 0 takes the CPUs this process may really use.
        source: The module: ``FILE.py:NAME`` (a callable that returns it), a program of
            torch.export (.pt2), TorchScript (.pt) or a folder of transformers.
        weights: Its state dict (.safetensors, or what torch.save wrote) where the factory loads
            none.
        compile: Run it through torch.compile; the first inference compiles.
        mode: Of torch.compile.
        precision: Arithmetic of matrix products; bf16 is autocast.
    """

    title: ClassVar[str] = "PyTorch"
    automatic: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("source", "weights")

    source: Annotated[str, stored.CODE] = ""
    weights: Annotated[str, stored.CODE] = ""
    compile: bool = False
    mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"
    precision: Literal["f32", "bf16"] = "f32"

    @property
    def lossy(self) -> bool:
        """16-bit arithmetic changes numbers."""
        return self.precision != "f32"

    @property
    def shown(self) -> str:
        """Where the module comes from is left out."""
        return str(replace(self, source="", weights=""))

    def missing(self) -> str | None:
        if importlib.util.find_spec("torch") is None:
            return "pip install torch==2.13.0"
        compiler = native.compiler_missing() if self.compile else None
        if compiler is not None:
            return f"install the C++ compiler {compiler}, or leave compile=true out"
        return None

    def open(self, path: Path, *, verbose: bool = False) -> AbstractContextManager[Session]:
        """Load the module; compiling is part of the first run."""
        return native.open_module_session(
            path,
            self.source,
            self.weights,
            self.threads or effective_cpus(),
            mode=self.mode if self.compile else None,
            bf16=self.precision == "bf16",
        )
