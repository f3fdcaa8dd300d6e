"""Make fixed dimensions of inputs dynamic, where exporters have burned them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.errors import BadSettings, Refused
from ortune.core.step import Bridge, Stage, Transform
from ortune.model.graph.spec import shape_of
from ortune.rewrites.dims.free import free
from ortune.rewrites.dims.names import given, pairs, places
from ortune.rewrites.dims.samples import BatchedRows, Larger

_BATCH = "batch"


@dataclass(frozen=True)
class FreeDims(Transform):
    """Fixed dimensions become dynamic: ``free-dims`` alone frees the batch.

    Targets of Reshape that hold the old number copy the dimension (0) or leave it open (-1), those
    of Expand keep it (1), sizes of Resize take it from the input, and what is the same for every
    row (a token beside the patches, the first state of a recurrent layer) is repeated. A batch
    is proved by numbers: rows together, twice and three times as many, must give what they gave
    alone. Of other dimensions the old size is compared, and twice the size must run.

    Attributes:
        dims: ``INPUT.AXIS:NAME``; none frees the first dimension of every input that is fixed
            to the same size, as ``batch``.
    """

    stage: ClassVar[Stage] = Stage.PREPARE
    automatic: ClassVar[bool] = False

    dims: tuple[str, ...] = ()

    @property
    def keeps_io(self) -> bool:
        """Inputs take more sizes than they did."""
        return False

    def bridge(self, model: ir.Model) -> Bridge | None:
        """Take rows apart where a batch is freed."""
        axes = self._axes(model)
        if not axes:
            return None
        shapes = {str(value.name): shape_of(value) or () for value in given(model)}
        sizes = {n: {axis: _size(shapes[n][axis]) for axis in found} for n, found in axes.items()}
        outputs = free(model.clone(), axes)
        names = {name for found in axes.values() for name in found.values()}
        first = any(0 in found for found in axes.values())
        one = {size for found in sizes.values() for size in found.values()}
        if len(names) == 1 and first and len(one) == 1:
            return BatchedRows(
                {n: next(iter(found)) for n, found in axes.items()}, one.pop(), outputs
            )
        return Larger(sizes)

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many dimensions of inputs were freed.

        Raises:
            BadSettings: There is no such dimension.
            Refused: A node hard-codes the old size, in a way that is not undone.
        """
        axes = self._axes(model)
        if axes:
            free(model, axes)
        return sum(map(len, axes.values()))

    def _axes(self, model: ir.Model) -> dict[str, dict[int, str]]:
        """Return input -> axis -> name of what is to be freed; what is free already is left."""
        shapes = {str(value.name): shape_of(value) or () for value in given(model)}
        found: dict[str, dict[int, str]] = {}
        for text, name in pairs(self.dims, "NAME"):
            if not name.isidentifier():
                raise BadSettings(f"dims: '{name}' is not a name of '{text}'", fix="use letters")
            for place, axis in places(model, text):
                if isinstance(shapes[place][axis], int):
                    found.setdefault(place, {})[axis] = name
        if self.dims:
            return found
        firsts = {name: shape[0] for name, shape in shapes.items() if shape}
        fixed = {size for size in firsts.values() if isinstance(size, int)}
        if len(fixed) > 1:
            raise Refused(
                f"which dimension is the batch? First are {_shown(firsts)}",
                fix="say it: free-dims(dims=[INPUT.AXIS:batch, ...])",
            )
        return {name: {0: _BATCH} for name, size in firsts.items() if isinstance(size, int)}


def _size(dim: int | str | None) -> int:
    return dim if isinstance(dim, int) else 0


def _shown(firsts: dict[str, int | str | None]) -> str:
    return ", ".join(f"{size} of '{name}'" for name, size in firsts.items())
