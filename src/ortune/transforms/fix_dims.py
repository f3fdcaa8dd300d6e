"""Give dynamic dimensions of inputs their size for good."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.errors import BadSettings, Refused
from ortune.core.step import Bridge, Stage, Transform
from ortune.graph.ir import edit
from ortune.graph.ir.edit import shape_of
from ortune.graph.shapes.infer import infer_shapes
from ortune.transforms.common.dims import (
    CutSamples,
    find_dims,
    list_required_inputs,
    split_pairs,
)


@dataclass(frozen=True)
class FixDims(Transform):
    """Dynamic dimensions become numbers: ``fix-dims(dims=[batch:1, height:224])``.

    What is computed from shapes is then the same in every run, and `simplify` behind it folds it:
    of silero-vad's 350 nodes it leaves 43, and 82 where batch and length stay dynamic. Runtimes
    that want fixed shapes (NPUs, TensorRT without profiles) take the model. Inputs, outputs and
    what is inferred are declared anew. Samples of other sizes are cut to these, or repeated.

    Attributes:
        dims: ``NAME:SIZE`` of a named dimension, everywhere, or ``INPUT.AXIS:SIZE``; names with
            other signs than letters, digits, ``_.-/`` in quotes.
    """

    stage: ClassVar[Stage] = Stage.PREPARE
    automatic: ClassVar[bool] = False

    dims: tuple[str, ...] = ()

    @property
    def keeps_io(self) -> bool:
        """Inputs take one size."""
        return not self.dims

    def bridge(self, model: ir.Model) -> Bridge:
        return CutSamples(self._resolve_sizes(model))

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many dimensions of inputs were fixed.

        Raises:
            BadSettings: There is no such dimension, or it has another size.
            Refused: No dimension is given.
        """
        if not self.dims:
            dims = [dim for value in list_required_inputs(model) for dim in shape_of(value) or ()]
            named = (dim for dim in dims if isinstance(dim, str) and dim.isidentifier())
            shown = next(named, "INPUT.AXIS")
            raise Refused(
                "fix-dims needs the dimensions", fix=f'write them: "fix-dims(dims=[{shown}:1])"'
            )
        sizes = self._resolve_sizes(model)
        names: dict[str, int] = {}
        count = 0
        for value in list_required_inputs(model):
            shape = list(shape_of(value) or ())
            for axis, size in sizes.get(str(value.name), {}).items():
                old = shape[axis]
                if isinstance(old, str):
                    names[old] = size
                count += old != size
                shape[axis] = size
            if str(value.name) in sizes:
                value.shape = ir.Shape(shape)
        if count:
            # Put numbers in the place of names, in all shapes; what is made of names is inferred.
            for graph in edit.walk_graphs(model):
                outputs = [value for node in graph for value in node.outputs]
                for value in (*graph.inputs, *outputs):
                    old_shape = shape_of(value)
                    if old_shape is not None:
                        value.shape = ir.Shape([_resolve_dim(dim, names) for dim in old_shape])
            infer_shapes(model)
        return count

    def _resolve_sizes(self, model: ir.Model) -> dict[str, dict[int, int]]:
        sizes: dict[str, dict[int, int]] = {}
        shapes = {str(value.name): shape_of(value) or () for value in list_required_inputs(model)}
        for text, size in split_pairs(self.dims, "SIZE"):
            if not size.isdecimal() or int(size) < 1:
                raise BadSettings(
                    f"dims: '{size}' is not a size of '{text}'", fix="give 1 or more"
                )
            for name, axis in find_dims(model, text):
                old = sizes.get(name, {}).get(axis, shapes[name][axis])
                if isinstance(old, int) and old != int(size):
                    raise BadSettings(
                        f"dims: axis {axis} of '{name}' is {old}, not {size}",
                        fix="free-dims makes it dynamic first; or give it once",
                    )
                sizes.setdefault(name, {})[axis] = int(size)
        return sizes


def _resolve_dim(dim: int | str | None, sizes: dict[str, int]) -> int | str | None:
    if isinstance(dim, str):
        return sizes.get(dim, dim if dim.isidentifier() else None)
    return dim
