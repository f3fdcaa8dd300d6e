"""Half precision: float16 weights and activations."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.roles import Role, find_plugin
from ortune.core.step import Quantizer
from ortune.quantizers.common.float16.narrow import PAIR_OPSET, HalfPrecision
from ortune.quantizers.common.float16.overflow import FLOAT16, Format


@dataclass(frozen=True)
class Fp16(HalfPrecision):
    """Use float16 wherever an operator has it, with Casts where one wants float32; half the file.

    Types are written into Cast, Constant and ConstantOfShape and into the bodies of If, Loop and
    Scan. What a schema fixes to float32 (the scales of Resize) stays, input by input. A node whose
    constants overflow float16 (beyond 65504) or vanish in it (all below 6e-5) stays in float32;
    mask constants beyond 1e30 are clipped. Operators outside the ONNX domains stay in float32.
    With data every tensor's range is measured, and a node that would overflow, or lose more than
    `loss`, stays in float32 too; the notes name it. onnxruntime's CPU provider computes in float32
    between Casts of its own: no faster there.
    """

    format: ClassVar[Format] = FLOAT16
    role: ClassVar[Role] = Role.HALVES

    sums: Literal["float32", "float16"] = "float32"

    @classmethod
    def mixes(
        cls, facts: Facts, backend: Backend, capabilities: Capabilities
    ) -> Iterable[tuple[Quantizer, ...]]:
        """Yield static int8 with the rest in float16, for a GPU that is fast at both."""
        both = {"int8", "fp16"} <= backend.arithmetic and backend.runs_on == "gpu"
        usable = both and facts.opset >= PAIR_OPSET
        static = find_plugin(Quantizer, Role.STATIC) if usable else None
        for base in static.offers(facts, backend, capabilities) if static is not None else ():
            yield (base, cls(pairs=True))
            return
