"""What the 16-bit formats have in common: fields, rules and the conversion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.observer import Probe, Ranges
from ortune.core.step import Quantizer
from ortune.quantization.float16.format import Format
from ortune.quantization.float16.narrow import Narrowing
from ortune.quantization.float16.overflow import Rules


@dataclass(frozen=True)
class Sixteen(Quantizer):
    """Weights and activations in a 16-bit floating-point format.

    Attributes:
        keep_io: Inputs and outputs keep their float32, through a Cast at the border.
        block: Operators that stay in float32, such as LSTM.
        include: Node names to convert, all others stay; empty for all.
        exclude: Node names that stay in float32.
        margin: What was measured may be this many times larger on other data.
        loss: Largest relative error that one operator may make of the rounding of its inputs.
        sums: What the runtime adds up products in: float32 or the format.
    """

    needs_data: ClassVar[bool] = False
    format: ClassVar[Format]

    keep_io: bool = True
    block: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    margin: float = 2.0
    loss: float = 0.03
    sums: str = "float32"

    @property
    def keeps_io(self) -> bool:
        """As the field says."""
        return self.keep_io

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return every tensor that may be converted, after inlining local functions."""
        return self._narrowing.probes(model)

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Convert the model and return how many nodes became 16-bit.

        Raises:
            BadSettings: A pattern matches no node.
            Refused: No node can, or a sequence would have to change its type on the way.
        """
        return self._narrowing.apply(model, ranges)

    @property
    def _narrowing(self) -> Narrowing:
        rules = Rules(self.format, self.margin, self.loss, wide_sums=self.sums == "float32")
        return Narrowing(rules, self.keep_io, self.block, self.include, self.exclude)
