"""What `export` is asked, and what a model of PyTorch needs beside its name."""

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
        specs = tuple(
            item if isinstance(item, TensorSpec) else self._read_input(str(item))
            for item in _list_texts(value)
        )
        if len({spec.name for spec in specs}) < len(specs):
            raise BadSettings("two inputs have one name", fix="give each once")
        return specs

    def _read_input(self, text: str) -> TensorSpec:
        match = _INPUT.fullmatch(text.strip())
        dtype = match[3] or "f32" if match else ""
        if match is None or (dtype not in _DTYPES and dtype not in _DTYPES.values()):
            raise BadSettings(
                f"cannot read the input '{text[:60]}'",
                fix=f"write image=1x3x224x224:f32, with one of {', '.join(_DTYPES)}",
            )
        dims = tuple(int(dim) for dim in match[2].split("x")) if match[2] else ()
        return TensorSpec(match[1], _DTYPES.get(dtype, dtype), dims)

    def spell(self, value: tuple[TensorSpec, ...]) -> list[str]:
        """Write one text an input."""
        return [f"{s.name}={'x'.join(map(str, s.shape or ()))}:{s.dtype}" for s in value]


class DynamicAxes(Field[Axes, Sequence[str] | None]):
    """Dynamic dimensions, or texts such as ``image:0=batch``; several by comma."""

    metavar = "INPUT:AXIS=NAME"
    several = True

    def read(self, value: Any) -> Axes:
        """Convert to a tuple."""
        items = [item for text in _list_texts(value) for item in self._split_axes(text)]
        axes = tuple(item if isinstance(item, tuple) else self._read_axis(item) for item in items)
        if len({item[:2] for item in axes}) < len(axes):
            raise BadSettings("one axis is named twice", fix="give each once")
        return axes

    def _split_axes(self, text: Any) -> list[Any]:
        return text.split(",") if isinstance(text, str) else [text]

    def _read_axis(self, text: str) -> tuple[str, int, str]:
        match = _AXIS.fullmatch(text.strip())
        if match is None:
            raise BadSettings(
                f"cannot read the dimension '{text[:60]}'", fix="write image:0=batch"
            )
        return match[1], int(match[2]), match[3]

    def spell(self, value: Axes) -> list[str]:
        """Write one text an axis."""
        return [f"{name}:{axis}={dim}" for name, axis, dim in value]


def _list_texts(value: Any) -> Sequence[Any]:
    return () if value is None else (value,) if isinstance(value, (str, TensorSpec)) else value


@request
class ModuleRequest(Request):
    """A module of PyTorch: its weights, and what it takes.

    Attributes:
        weights: Checkpoint of the module: .safetensors, or what torch.save wrote.
        state_dict_key: Where the state dict is in the checkpoint, such as ema.model.
        strip_prefix: Taken from the front of every name in the state dict, such as module.
        unsafe_pickle: Allow a checkpoint that holds more than tensors: reading it may run code.
        inputs: An input, such as image=1x3x224x224:f32, in the module's order.
        dynamic: A dimension that varies, such as image:0=batch.
    """

    _: KW_ONLY
    weights: File | None = None
    state_dict_key: Annotated[str, Option("KEY")] = ""
    strip_prefix: Annotated[str, Option("PREFIX", hidden=True)] = ""
    unsafe_pickle: bool = False
    inputs: InputSpecs = InputSpecs(None, Option("NAME=DIMS[:TYPE]", "--input"))
    dynamic: DynamicAxes = DynamicAxes(None)


@request
class Export(ModuleRequest, WorkerRequest):
    """Write a PyTorch module as ONNX, with the exporter whose file answers like it.

    SOURCE is FILE.py:NAME, a program of torch.export (.pt2), TorchScript (.pt) or the
    folder of a transformers model. Each exporter works in a process of its own; what it wrote is
    compared with PyTorch on several inputs and at several sizes of each --dynamic dimension. The
    first that agrees is kept; for those tried before it the reason is shown.

    Example:
        ortune export nets:Net --weights w.pth --input x=1x3x224x224 --dynamic x:0=n -o m.onnx
        ortune export ./my-bert-folder -o model.onnx

    Attributes:
        source: The module.
        ranges: Values of an input, such as ids:0..30521.
        part: Part of an encoder-decoder to export: the encoder, or the decoder with its cache.
        exporter: Try this one alone.
        opset: Opset of the result; the exporter's own choice if not given.
        samples: How many inputs are compared at each size.
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
    part: Literal["all", "encoder", "decoder"] = "all"
    exporter: Literal["all", "dynamo", "torchscript", "transformers"] = "all"
    opset: Annotated[int | None, Option("N", low=7, high=26)] = None
    samples: Annotated[int, Option("N", low=1, high=1000)] = 2
    tolerance: Annotated[float | None, Option("X", shown="0.0001", high=1)] = None
    timeout: Duration = Duration("10m")
    out: Annotated[str | Path, Option("PATH", "-o --out")]
    force: bool = False
