"""A quantizer that makes the file smaller and the answers wrong: every search must reject it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.observer import Ranges
from ortune.core.step import Quantizer


@dataclass(frozen=True)
class Broken(Quantizer):
    """Replaces every large weight by a constant tensor of its mean."""

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        if backend.name() == "scripted":
            yield cls()

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        done = 0
        for name, value in list(model.graph.initializers.items()):
            tensor = value.const_value
            if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size < 64:
                continue
            flat = np.full(tensor.numpy().shape, tensor.numpy().mean(), np.float32)
            value.const_value = ir.tensor(flat, name=name)
            done += 1
        return done
