"""A PyTorch module behind the Session protocol."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BackendMissing, BadModel, BadSettings, gist, with_article
from ortune.core.plugins import user_function
from ortune.core.session import Session, Tensors
from ortune.model.io import protobuf
from ortune.runtimes.in_process import InProcess

_SCRIPTS = (".pt", ".pth", ".ts", ".jit")


def compiler_missing() -> str | None:
    """Return the name of the C++ compiler that torch.compile would call and that is not there."""
    named = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if sys.platform == "win32":
        named = os.environ.get("CXX") or "cl"
    return None if shutil.which(named.split()[0]) else named


@contextmanager
def session(
    path: Path, source: str, weights: str, threads: int, *, mode: str | None, bf16: bool
) -> Iterator[Session]:
    """Load the module whose ONNX export is `path`.

    Args:
        mode: Of torch.compile; None runs the module eagerly.
        bf16: Autocast.

    Raises:
        BadModel: It does not load, or its outputs are not the file's.
        BackendMissing: torch.compile has no C++ compiler.
    """
    import torch

    if mode is not None and (compiler := compiler_missing()):
        raise BackendMissing(
            f"torch.compile needs a C++ compiler and {compiler} is not here",
            fix=f"install {compiler}, or leave compile=true out",
        )
    torch.set_num_threads(threads)
    module, keywords = load(source, weights)
    call = module if mode is None else torch.compile(module, mode=mode)
    yield _Module(call, keywords, *protobuf.interface(path), bf16=bf16)


def load(source: str, weights: str) -> tuple[Any, set[str]]:
    """Return the module in evaluation mode, and the names that it takes as keywords.

    Raises:
        BadSettings: `source` is none of the three kinds.
        BadModel: It does not load.
    """
    import torch

    if not source:
        raise BadSettings("torch is given no module", fix="write torch(source=pkg.module:factory)")
    if user_function.is_function(source):
        module = user_function.function(source, "a function that makes a module")()
        if not isinstance(module, torch.nn.Module):
            raise BadModel(
                f"{source} returns {with_article(type(module).__name__)}, not a torch.nn.Module",
                fix="return the module itself",
            )
        if weights:
            _fill(module, weights)
        return module.eval(), set(inspect.signature(module.forward).parameters)
    if weights:
        raise BadSettings(
            f"{source} holds its own weights", fix="leave weights= out, or give a factory"
        )
    return _file(Path(source))


def _file(path: Path) -> tuple[Any, set[str]]:
    import torch

    if path.suffix != ".pt2" and path.suffix not in _SCRIPTS:
        raise BadSettings(
            f"cannot read '{path}' as a module",
            fix="give pkg.module:factory, a torch.export program (.pt2) or TorchScript (.pt)",
        )
    if not path.is_file():
        raise BadModel(f"no file {path}", fix="check the path in torch(source=...)")
    try:
        if path.suffix == ".pt2":
            program = torch.export.load(path)
            # An exported program takes as keywords exactly what it was exported with as such.
            return program.module(), set(program.call_spec.in_spec.child(1).context)
        script = torch.jit.load(path, map_location="cpu").eval()
        return script, {argument.name for argument in script.forward.schema.arguments}
    except Exception as error:
        raise BadModel(
            f"torch does not load {path.name}: {gist(user_function.reason(error))}",
            fix="a state dict is given as torch(source=pkg.module:factory, weights=...)",
        ) from error


def _fill(module: Any, weights: str) -> None:
    import torch

    try:
        if weights.endswith(".safetensors"):
            from safetensors.torch import load_file

            state = load_file(weights)
        else:
            state = torch.load(weights, map_location="cpu", weights_only=True)
        module.load_state_dict(state.get("state_dict", state))
    except Exception as error:
        raise BadModel(
            f"{weights} does not fill the module: {gist(user_function.reason(error))}",
            fix="give the state dict of this very module",
        ) from error


class _Module(InProcess):
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
        """Run once; outputs under the names of the ONNX file."""
        given = {name: self._tensor(feeds[name]) for name in self._inputs}
        with ExitStack() as stack:
            stack.enter_context(self._torch.inference_mode())
            if self._bf16:
                stack.enter_context(self._torch.autocast("cpu", dtype=self._torch.bfloat16))
            made = self._call(**given) if self._by_name else self._call(*given.values())
        return {name: self._array(value) for name, value in named(made, self._outputs).items()}

    def _tensor(self, array: NDArray[Any]) -> Any:
        writable = array if array.flags.writeable else array.copy()
        return self._torch.from_numpy(np.ascontiguousarray(writable).reshape(array.shape))

    def _array(self, tensor: Any) -> NDArray[Any]:
        wide = tensor.float() if tensor.dtype == self._torch.bfloat16 else tensor
        array: NDArray[Any] = wide.numpy()
        return array


def named(made: Any, names: Sequence[str]) -> dict[str, Any]:
    """Give the tensors in a module's answer the names of the file's outputs.

    A mapping that has all the names is read by them; else the tensors count in order, nested ones
    in their place, and those beyond the file's outputs are left out.

    Raises:
        BadModel: There are fewer tensors than names.
    """
    if isinstance(made, Mapping) and set(names) <= set(made):
        return {name: made[name] for name in names}
    found = list(_tensors(made))
    if len(found) < len(names):
        raise BadModel(
            f"the module returns {wording.count(len(found), 'tensor')}, the file has "
            f"{wording.count(len(names), 'output')}",
            fix="give the module that the file was exported from",
        )
    return dict(zip(names, found, strict=False))


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
