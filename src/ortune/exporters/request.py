"""What `export` is asked, and what a model of PyTorch needs beside its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from ortune.core.errors import BadSettings
from ortune.core.facts import TensorSpec
from ortune.core.fields import Duration, Field, File, InputRanges, Option
from ortune.core.request import Request, WorkerRequest, request

Axes: TypeAlias = tuple[tuple[str, int, str], ...]
"""Input, axis and the name of its dimension."""

_DTYPES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "bool": "bool",
}
_INPUT = re.compile(r"([^=:]+)=((?:\d{1,12}x)*\d{1,12})?(?::(\w+))?")
_AXIS = re.compile(r"([^=:]+):(\d{1,2})=([A-Za-z_]\w*)")


class InputSpecs(Field[tuple[TensorSpec, ...], Sequence[str] | None]):
    """Inputs by name, shape and type, or texts such as ``ids=1x16:i64``; float32 without."""

    metavar = "NAME=DIMS[:TYPE]"
    several = True

    def read(self, value: Any) -> tuple[TensorSpec, ...]:
        """Convert to a tuple."""
        found = tuple(
            one if isinstance(one, TensorSpec) else self._one(str(one)) for one in _texts(value)
        )
        if len({spec.name for spec in found}) < len(found):
            raise BadSettings("two inputs have one name", fix="give each once")
        return found

    def _one(self, text: str) -> TensorSpec:
        found = _INPUT.fullmatch(text.strip())
        dtype = found[3] or "f32" if found else ""
        if found is None or (dtype not in _DTYPES and dtype not in _DTYPES.values()):
            raise BadSettings(
                f"cannot read the input '{text[:60]}'",
                fix=f"write image=1x3x224x224:f32, with one of {', '.join(_DTYPES)}",
            )
        dims = tuple(int(dim) for dim in found[2].split("x")) if found[2] else ()
        return TensorSpec(found[1], _DTYPES.get(dtype, dtype), dims)

    def spell(self, value: tuple[TensorSpec, ...]) -> list[str]:
        """Write one text an input."""
        return [f"{one.name}={'x'.join(map(str, one.shape or ()))}:{one.dtype}" for one in value]


class DynamicAxes(Field[Axes, Sequence[str] | None]):
    """Dynamic dimensions, or texts such as ``image:0=batch``; several by comma."""

    metavar = "INPUT:AXIS=NAME"
    several = True

    def read(self, value: Any) -> Axes:
        """Convert to a tuple."""
        given = [one for text in _texts(value) for one in self._split(text)]
        found = tuple(one if isinstance(one, tuple) else self._one(one) for one in given)
        if len({one[:2] for one in found}) < len(found):
            raise BadSettings("one axis is named twice", fix="give each once")
        return found

    def _split(self, text: Any) -> list[Any]:
        return text.split(",") if isinstance(text, str) else [text]

    def _one(self, text: str) -> tuple[str, int, str]:
        found = _AXIS.fullmatch(text.strip())
        if found is None:
            raise BadSettings(
                f"cannot read the dimension '{text[:60]}'", fix="write image:0=batch"
            )
        return found[1], int(found[2]), found[3]

    def spell(self, value: Axes) -> list[str]:
        """Write one text an axis."""
        return [f"{name}:{axis}={dim}" for name, axis, dim in value]


def _texts(value: Any) -> Sequence[Any]:
    return () if value is None else (value,) if isinstance(value, (str, TensorSpec)) else value


@request
class ModuleRequest(Request):
    """A module of PyTorch: its weights, and what it takes.

    Attributes:
        weights: Its checkpoint: .safetensors, or what torch.save wrote.
        state_dict_key: Where the state dict is in the checkpoint, such as ema.model.
        strip_prefix: Taken from the front of every name in the state dict, such as module.
        unsafe_pickle: Read a checkpoint that is more than tensors: it may run code.
        inputs: An input, such as image=1x3x224x224:f32, in the module's order.
        dynamic: A dimension that varies, such as image:0=batch.
    """

    _: KW_ONLY
    weights: File | None = None
    state_dict_key: Annotated[str, Option("KEY")] = ""
    strip_prefix: Annotated[str, Option("PREFIX")] = ""
    unsafe_pickle: bool = False
    inputs: InputSpecs = InputSpecs(None, Option("NAME=DIMS[:TYPE]", "--input"))
    dynamic: DynamicAxes = DynamicAxes(None)


@request
class Export(ModuleRequest, WorkerRequest):
    """Write a PyTorch module as ONNX, with the exporter whose file answers like it.

    SOURCE is pkg.module:factory, a program of torch.export (.pt2), TorchScript (.pt) or the
    folder of a transformers model. Each exporter works in a process of its own; what it wrote is
    compared with PyTorch on several inputs and at several sizes of each --dynamic dimension. The
    first that agrees is kept, and of those tried before it the reason is told.

    Example:
        ortune export nets:Classifier --weights best.pth --input image=1x3x224x224 \
            --dynamic image:0=batch -o model.onnx
        ortune export ./my-bert-folder -o model.onnx

    Attributes:
        source: The module.
        ranges: Values of an input, such as ids:0..30521.
        exporter: Try this one alone.
        opset: Of the result; the exporter's own choice if not given.
        samples: Inputs compared at each size.
        tolerance: Largest error, as a share of an output's largest value; 0.0001, or 0.01 for
            16-bit outputs.
        timeout: Bound on each exporter.
        out: The model file.
        force: Overwrite an existing output.

    Raises:
        OrtuneError: The module does not load or run, or no exporter's file answers like it.
    """

    source: str
    _: KW_ONLY
    ranges: InputRanges = InputRanges(None, Option("INPUT:LO..HI", "--range", low=float("-inf")))
    exporter: Literal["all", "dynamo", "torchscript", "transformers"] = "all"
    opset: Annotated[int | None, Option("N", low=7, high=26)] = None
    samples: Annotated[int, Option("N", low=1, high=1000)] = 2
    tolerance: Annotated[float | None, Option("X", shown="0.0001", high=1)] = None
    timeout: Duration = Duration("10m")
    out: Annotated[str | Path, Option("PATH", "-o --out")]
    force: bool = False
