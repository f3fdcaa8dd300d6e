"""PyTorch itself, in place of the ONNX file: was the conversion worth it?"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ortune.backends.runtimes.torch.module import ModuleSource, load_module, walk_answer
from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadModel
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import stored
from ortune.core.session import InProcess, Session, Tensors
from ortune.graph.io import protobuf


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
        compiler = compiler_missing() if self.compile else None
        if compiler is not None:
            return f"install the C++ compiler {compiler}, or leave compile=true out"
        return None

    @contextmanager
    def open(self, path: Path, *, verbose: bool = False) -> Iterator[Session]:
        """Load the module; compiling is part of the first run.

        Raises:
            BadModel: It does not load, or its outputs are not the file's.
            BackendMissing: torch.compile has no C++ compiler.
        """
        import torch

        if self.compile and (compiler := compiler_missing()):
            raise BackendMissing(
                f"torch.compile needs a C++ compiler and {compiler} is not here",
                fix=f"install {compiler}, or leave compile=true out",
            )
        torch.set_num_threads(self.threads or effective_cpus())
        module, keywords = load_module(ModuleSource(self.source, self.weights))
        call = torch.compile(module, mode=self.mode) if self.compile else module
        names, bf16 = protobuf.read_interface(path), self.precision == "bf16"
        yield _ModuleSession(call, keywords, *names, bf16=bf16)


def compiler_missing() -> str | None:
    """Return the name of the C++ compiler that torch.compile would call and that is not there."""
    named = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if sys.platform == "win32":
        named = os.environ.get("CXX") or "cl"
    return None if shutil.which(named.split()[0]) else named


class _ModuleSession(InProcess):
    def __init__(
        self,
        call: Any,
        keywords: set[str],
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        bf16: bool,
    ) -> None:
        import torch

        self._torch = torch
        self._inputs, self._outputs, self._bf16 = inputs, outputs, bf16
        self._by_name, self._call = set(inputs) <= keywords, call

    def run(self, feeds: Tensors) -> dict[str, NDArray[Any]]:
        """Run once; outputs under the names of the ONNX file.

        A mapping that has all the names is read by them; else the tensors count in order, nested
        ones in their place, and those beyond the file's outputs are left out.

        Raises:
            BadModel: There are fewer tensors than names.
        """
        inputs = {}
        for name in self._inputs:
            array = feeds[name] if feeds[name].flags.writeable else feeds[name].copy()
            plain = np.ascontiguousarray(array).reshape(array.shape)
            inputs[name] = self._torch.from_numpy(plain)
        with ExitStack() as stack:
            stack.enter_context(self._torch.inference_mode())
            if self._bf16:
                stack.enter_context(self._torch.autocast("cpu", dtype=self._torch.bfloat16))
            answer = self._call(**inputs) if self._by_name else self._call(*inputs.values())
        if isinstance(answer, Mapping) and set(self._outputs) <= set(answer):
            values = [answer[name] for name in self._outputs]
        else:
            values = [value for _, value in walk_answer(answer)]
        if len(values) < len(self._outputs):
            raise BadModel(
                f"the module returns {wording.format_count(len(values), 'tensor')}, the file has "
                f"{wording.format_count(len(self._outputs), 'output')}",
                fix="give the module that the file was exported from",
            )
        wide = [v.float() if v.dtype == self._torch.bfloat16 else v for v in values]
        return {name: v.numpy() for name, v in zip(self._outputs, wide, strict=False)}
