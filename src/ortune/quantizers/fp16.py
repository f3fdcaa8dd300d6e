"""Half precision: float16 weights and activations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.facts import Facts
from ortune.core.observer import Probe, Ranges
from ortune.core.step import Quantizer
from ortune.quantizers._format import FLOAT16
from ortune.quantizers._measured import Rules
from ortune.quantizers._narrowing import Narrowing


@dataclass(frozen=True)
class Fp16(Quantizer):
    """float16 everywhere an operator has it, Casts where one wants float32; half the file.

    Types are written into Cast, Constant and ConstantOfShape and into the bodies of If, Loop and
    Scan. What a schema fixes to float32 (the scales of Resize) stays, input by input. A node whose
    constants overflow float16 (beyond 65504) or vanish in it (all below 6e-5) stays in float32;
    mask constants beyond 1e30 are clipped. Operators outside the ONNX domains stay in float32.
    With data every tensor's range is measured, and a node that would overflow, or lose more than
    `loss`, stays in float32 too; the notes name it. onnxruntime's CPU provider computes in float32
    between Casts of its own: no faster there.

    Attributes:
        keep_io: Inputs and outputs keep their float32, through a Cast at the border.
        block: Operators that stay in float32, such as LSTM.
        include: Node names to convert, all others stay; * and ? match, re: begins a regular
            expression. Empty for all.
        exclude: Node names that stay in float32.
        margin: What was measured may be this many times larger on other data.
        loss: Largest relative error that one operator may make of the rounding of its inputs.
        sums: What the runtime adds up products in; where that is float16 long or large sums of
            products stay in float32 too.
    """

    needs_data: ClassVar[bool] = False

    keep_io: bool = True
    block: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    margin: float = 2.0
    loss: float = 0.03
    sums: Literal["float32", "float16"] = "float32"

    @classmethod
    def offers(cls, facts: Facts, backend: Backend) -> Iterable[Self]:
        """Yield the one setting, where float16 arithmetic is faster."""
        if "fp16" in backend.arithmetic and not facts.quantized:
            yield cls()

    @property
    def keeps_io(self) -> bool:
        """As the field says."""
        return self.keep_io

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        """Return every tensor that may become float16, after inlining local functions."""
        return self._narrowing.probes(model)

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        """Convert the model and return how many nodes became float16.

        Raises:
            BadSettings: A pattern matches no node.
            Refused: No node can, or a sequence would have to change its type on the way.
        """
        return self._narrowing.apply(model, ranges)

    @property
    def _narrowing(self) -> Narrowing:
        rules = Rules(FLOAT16, self.margin, self.loss, wide_sums=self.sums == "float32")
        return Narrowing(rules, self.keep_io, self.block, self.include, self.exclude)
