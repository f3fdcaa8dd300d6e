"""Let the model do what a caller would do to an output."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core import wording
from ortune.core.errors import BadModel, BadSettings
from ortune.core.plugins.bounds import ANY
from ortune.core.session import Tensors
from ortune.core.step import Bridge, Stage, Transform
from ortune.graph.ir import edit
from ortune.transforms.common.formulas.formula import Chain
from ortune.transforms.common.raise_version import raise_to

_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
_NEEDED = 13

_Arrays: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class FoldPostprocess(Transform):
    """An output gives what is done with it: a picture, a label, the best few, probabilities.

    It keeps its name and its place. ``uint8``: clip(round(x * scale + offset), 0, 255), and of
    rank 3 or 4 with channels last. ``argmax``: the index of the largest along the axis, int64,
    without that axis. ``top-k``: the k largest, and as one more output ``NAME_indices``, int64.
    ``softmax``: exp(x) over its sum. It saves the caller an array as large as the output: 1,000
    scores become 8 bytes, a picture of floats becomes a quarter.

    Attributes:
        output: The output; empty for the only one.
        give: What it gives.
        k: For top-k: how many.
        axis: Of the classes; None is 1 at rank 4 (channels) and the last else.
        scale: For uint8: factor; 255 for values from 0 to 1.
        offset: For uint8: added after the factor; 127.5 beside scale 127.5 for -1 to 1.
        layout: For uint8: of the output as it is.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False
    keeps_io: ClassVar[bool] = False

    output: str = ""
    give: Literal["uint8", "argmax", "top-k", "softmax"] = "argmax"
    k: int = 5
    axis: Annotated[int | None, ANY] = None
    scale: Annotated[float, ANY] = 255.0
    offset: Annotated[float, ANY] = 0.0
    layout: Literal["NCHW", "NHWC"] = "NCHW"

    def bridge(self, model: ir.Model) -> Bridge:
        value = self._select_output(model)
        name, axis = str(value.name), self._resolve_axis(value)

        def convert_output(array: NDArray[Any]) -> _Arrays:
            match self.give:
                case "softmax":
                    powers = np.exp(array.astype(np.float64) - array.max(axis, keepdims=True))
                    probabilities: NDArray[Any] = (
                        powers / powers.sum(axis, keepdims=True)
                    ).astype(array.dtype)
                    return {name: probabilities}
                case "argmax":
                    return {name: array.argmax(axis)}
                case "top-k":
                    values, places = _select_top_k(array, self.k, axis)
                    return {name: values, f"{name}_indices": places}
                case _:
                    order = self._channels_last_order(array.ndim)
                    return {name: _convert_to_pixels(array, self.scale, self.offset, order)}

        return _FoldedAnswers(name, convert_output)

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many nodes were added.

        Raises:
            OrtuneError: There is no such output, or it does not fit.
        """
        self._select_output(model)
        if 0 < model.opset_imports.get("", 0) < _NEEDED:
            raise_to(model, _NEEDED)
            edit.add_note(model, f"raised to opset {_NEEDED}")
        value = self._select_output(model)
        graph, name = model.graph, str(value.name)
        chain = Chain(edit.Editor(graph), f"{name}_folded")
        places = None
        match self.give:
            case "softmax":
                axis = self._resolve_axis(value)
                output = chain.add("Softmax", value, attributes={"axis": axis})
                output.type, output.shape = value.type, value.shape
            case "argmax":
                output = self._add_argmax(chain, value)
            case "top-k":
                output, places = self._add_top_k(chain, value)
            case _:
                output = self._add_picture_nodes(chain, value)
        graph.extend(chain.nodes)
        value.name = edit.Editor(graph).reserve_name(f"{name}_before")
        at = graph.outputs.index(value)
        output.name, graph.outputs[at] = name, output
        if places is not None:
            places.name = f"{name}_indices"
            graph.outputs.insert(at + 1, places)
        return len(chain.nodes)

    def _add_argmax(self, chain: Chain, value: ir.Value) -> ir.Value:
        axis = self._resolve_axis(value)
        indices = chain.add("ArgMax", value, attributes={"axis": axis, "keepdims": 0})
        indices.type = ir.TensorType(ir.DataType.INT64)
        shape = list(edit.shape_of(value) or ())
        del shape[axis]
        indices.shape = ir.Shape(shape)
        return indices

    def _add_top_k(self, chain: Chain, value: ir.Value) -> tuple[ir.Value, ir.Value]:
        axis = self._resolve_axis(value)
        largest, places = chain.add_multi_output(
            "TopK", value, chain.add_constant("k", [self.k]), attributes={"axis": axis}, outputs=2
        )
        shape = list(edit.shape_of(value) or ())
        shape[axis] = self.k
        largest.type, largest.shape = value.type, ir.Shape(shape)
        places.type, places.shape = ir.TensorType(ir.DataType.INT64), ir.Shape(shape)
        return largest, places

    def _add_picture_nodes(self, chain: Chain, value: ir.Value) -> ir.Value:
        pixels = value
        shape = list(edit.shape_of(value) or ())
        if value.dtype != ir.DataType.FLOAT:
            pixels = chain.add_cast(pixels, ir.DataType.FLOAT)
        if self.scale != 1:
            pixels = chain.add("Mul", pixels, chain.add_constant("scale", self.scale, np.float32))
        if self.offset:
            offset = chain.add_constant("offset", self.offset, np.float32)
            pixels = chain.add("Add", pixels, offset)
        pixels = chain.add("Round", pixels)
        low, high = (chain.add_constant(f"limit{x}", x, np.float32) for x in (0, 255))
        pixels = chain.add_cast(chain.add("Clip", pixels, low, high), ir.DataType.UINT8)
        order = self._channels_last_order(len(shape))
        if order is not None:
            pixels = chain.add("Transpose", pixels, attributes={"perm": order})
            shape = [shape[at] for at in order]
        pixels.type, pixels.shape = ir.TensorType(ir.DataType.UINT8), ir.Shape(shape)
        return pixels

    def _select_output(self, model: ir.Model) -> ir.Value:
        outputs = list(model.graph.outputs)
        matches = [value for value in outputs if value.name == self.output]
        if not self.output and len(outputs) == 1:
            matches = outputs
        names = [str(value.name) for value in outputs]
        if not matches:
            several = wording.format_count(len(outputs), "output")
            problem = f"no output '{self.output}'" if self.output else several
            raise BadModel(
                f"postprocessing of a model with {problem}",
                fix=f"set output to one of: {', '.join(names)}",
            )
        value = matches[0]
        shape = edit.shape_of(value)
        if value.dtype not in _FLOATS or shape is None or not shape:
            kind = edit.describe_value(value)
            other_outputs = [name for name in names if name != value.name]
            raise BadModel(
                f"output '{value.name}' is {kind.dtype or 'untyped'} {kind.shape}, not floats of "
                "a known rank",
                fix=f"set output to another of: {', '.join(other_outputs)}"
                if other_outputs
                else "give a model whose output holds floats",
            )
        if value.is_graph_input() or value.is_initializer() or names.count(str(value.name)) > 1:
            raise BadModel(f"output '{value.name}' is not computed", fix="choose another output")
        if self.give == "top-k":
            classes = (edit.shape_of(value) or ())[self._resolve_axis(value)]
            if self.k < 1 or (isinstance(classes, int) and self.k > classes):
                raise BadSettings(
                    f"the {self.k} largest of {classes} along axis {self._resolve_axis(value)} of "
                    f"'{value.name}'",
                    fix="set k to 1 or more"
                    if self.k < 1
                    else "set k to less, or axis to that of the classes",
                )
            if f"{value.name}_indices" in names:
                raise BadModel(f"there is an output '{value.name}_indices'", fix="rename it first")
        return value

    def _resolve_axis(self, value: ir.Value) -> int:
        rank = len(edit.shape_of(value) or ())
        axis = self.axis if self.axis is not None else (1 if rank == 4 else rank - 1)
        if not -rank <= axis < rank:
            raise BadSettings(
                f"output '{value.name}' has no axis {axis}: its rank is {rank}",
                fix=f"set axis to {-rank} to {rank - 1}",
            )
        return axis % rank

    def _channels_last_order(self, rank: int) -> list[int] | None:
        """Return the permutation to channels last; None leaves what has none."""
        if self.layout == "NHWC" or rank not in (3, 4):
            return None
        return [0, 2, 3, 1] if rank == 4 else [1, 2, 0]


class _FoldedAnswers(Bridge):
    """Samples stay; one output of the old model becomes what the new one gives instead."""

    def __init__(self, name: str, convert: Callable[[NDArray[Any]], _Arrays]) -> None:
        self._name, self._convert = name, convert

    def joined(self, answers: Sequence[Tensors]) -> Tensors:
        converted: _Arrays = {}
        for name, array in answers[0].items():
            converted |= self._convert(array) if name == self._name else {name: np.asarray(array)}
        return converted


def _select_top_k(
    array: NDArray[Any], k: int, axis: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the k largest, largest first and of equal ones the first first, and their places."""
    order = np.argsort(-array.astype(np.float64), axis=axis, kind="stable")
    places = np.take(order, np.arange(k), axis=axis).astype(np.int64)
    return np.take_along_axis(array, places, axis), places


def _convert_to_pixels(
    array: NDArray[Any], scale: float, offset: float, order: Sequence[int] | None
) -> NDArray[np.uint8]:
    """Return bytes of value * scale + offset, rounded to even and clipped, transposed last."""
    values = array.astype(np.float32) * np.float32(scale) + np.float32(offset)
    bytes_ = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return bytes_ if order is None else np.ascontiguousarray(bytes_.transpose(order))
