"""A quantizer that is too coarse unless it is told to take care: a search must rescue it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import onnx_ir as ir

from ortune.core.backend import Backend
from ortune.core.capabilities import Capabilities
from ortune.core.facts import Facts
from ortune.core.observer import Ranges
from ortune.core.step import Quantizer, Step
from ortune.graph.ir import edit


@dataclass(frozen=True)
class Coarse(Quantizer):
    """Keeps the mean of every weight alone or, with care, 16 of the 32 bits of each number.

    Attributes:
        care: Keep more.
    """

    care: bool = False

    @classmethod
    def offers(cls, facts: Facts, backend: Backend, capabilities: Capabilities) -> Iterable[Self]:
        if backend.name() == "scripted" and getattr(backend, "slow", 1.0) < 1.0:
            yield cls()

    def rescues(self, facts: Facts) -> Iterable[tuple[Step, ...]]:
        yield (replace(self, care=True),)

    def apply(self, model: ir.Model, ranges: Ranges) -> int:
        editor = edit.Editor(model.graph)
        done = 0
        for name, value in list(model.graph.initializers.items()):
            array = edit.const_array(value)
            if array is None or array.dtype != np.float32 or array.size < 64:
                continue
            if self.care:
                held = editor.add_constant(f"{name}_half", array.astype(np.float16))
                made = editor.make_node("Cast", [held], {"to": int(ir.DataType.FLOAT)}, name=name)
            else:
                held = editor.add_constant(f"{name}_mean", array.mean(keepdims=True))
                shape = editor.add_constant(f"{name}_shape", np.asarray(array.shape, np.int64))
                made = editor.make_node("Expand", [held, shape], name=name)
            made.outputs[0].shape, made.outputs[0].type = value.shape, value.type
            edit.insert_first(model.graph, made)
            value.replace_all_uses_with(made.outputs[0])
            edit.discard_constant(value)
            done += 1
        return done
