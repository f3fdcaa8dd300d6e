"""A change of precision for some of the models that a job runs together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import onnx_ir as ir

from ortune.core.observer import Probe, Ranges
from ortune.core.roles import make_static_int8
from ortune.core.step import Noise, Quantizer


@dataclass(frozen=True)
class OnlyModels(Quantizer):
    """Another quantizer, applied to the named models of a job; all others stay as they are.

    In speech recognition and in encoder-decoders the decoder often decides the accuracy alone. A
    search tries each model of a job by itself where all of them together leave the budget. Applied
    to a lone model it does what the quantizer does.

    Attributes:
        names: Names of the models, as `--evaluate` gives them.
        step: The quantizer; int8-static as it is by default if none is given.
    """

    names: tuple[str, ...] = ()
    step: Quantizer | None = None

    @property
    def inner(self) -> Quantizer:
        return self.step or make_static_int8()

    @property
    def only(self) -> tuple[str, ...]:
        return self.names

    @property
    def portable(self) -> bool:
        return self.inner.portable

    def made_portable(self) -> Self:
        return replace(self, step=self.inner.made_portable())

    def probes(self, model: ir.Model) -> Sequence[Probe]:
        return self.inner.probes(model)

    def refined(self, model: ir.Model, ranges: Ranges, noise: Noise | None) -> Self:
        return replace(self, step=self.inner.refined(model, ranges, noise))

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        return self.inner.apply(model, ranges)
