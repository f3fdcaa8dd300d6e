"""Say in the file that it is of another version of ONNX's format."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.errors import Refused
from ortune.core.facts import NEWEST_IR
from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit
from ortune.graph.shapes.infer import infer_shapes

_OLDEST = 4
"""Below, every weight is an input too."""
_TYPES = {
    ir.DataType.FLOAT8E4M3FN: 9,
    ir.DataType.FLOAT8E4M3FNUZ: 9,
    ir.DataType.FLOAT8E5M2: 9,
    ir.DataType.FLOAT8E5M2FNUZ: 9,
    ir.DataType.INT4: 10,
    ir.DataType.UINT4: 10,
    ir.DataType.FLOAT4E2M1: 11,
}
"""Type -> the first version that knows it."""


@dataclass(frozen=True)
class IrVersion(Transform):
    """The IR version is raised or lowered, for runtimes that refuse newer files.

    Operators stay: `lower-opset` is for those. A file of a version that onnxruntime does not read
    is written in the newest that it reads by every step, this one or another. Refused is what the
    older format cannot hold: local functions before 8, 8-bit floats before 9, 4-bit integers
    before 10.

    Attributes:
        to: The version; 0 leaves it as it is.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False

    to: int = 0

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return 1 when the version changed.

        Raises:
            Refused: No version is given, there is no such one, or it cannot hold the model.
        """
        if not self.to:
            raise Refused("ir-version needs a version", fix='write it: "ir-version(to=8)"')
        if model.ir_version == self.to:
            edit.add_note(model, f"the IR version is {model.ir_version}")
            return 0
        if not _OLDEST <= self.to <= NEWEST_IR:
            raise Refused(
                f"IR version {self.to} is not written", fix=f"give {_OLDEST} to {NEWEST_IR}"
            )
        typed = model.clone()
        infer_shapes(typed)
        for version, feature in _list_requirements(typed):
            if version > self.to:
                raise Refused(
                    f"IR version {self.to} has no {feature}", fix=f"give {version} or more"
                )
        model.ir_version = self.to
        return 1


def _list_requirements(model: ir.Model) -> Iterator[tuple[int, str]]:
    """Yield the first version, and what needs it."""
    if model.functions:
        yield 8, "local functions"
    for graph in edit.walk_graphs(model):
        values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
        if isinstance(graph, ir.Graph):
            values += graph.initializers.values()
        for value in values:
            version = _TYPES.get(value.dtype) if value.dtype is not None else None
            if version is not None and value.dtype is not None:
                yield version, value.dtype.name.lower()
