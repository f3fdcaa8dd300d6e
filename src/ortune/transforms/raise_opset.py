"""Raise the version of the ONNX operators a model is written in."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.ir import edit
from ortune.transforms.common.raise_version import raise_to


@dataclass(frozen=True)
class RaiseOpset(Transform):
    """The same computation in newer operators, for later steps that need them.

    Nodes whose operator changed between the versions are rewritten by onnx's own adapters; a
    model of that version or a newer one is left as it is.

    Attributes:
        to: Version of the default domain.
    """

    stage: ClassVar[Stage] = Stage.PREPARE
    automatic: ClassVar[bool] = False

    to: int = 17

    def applies(self, facts: Facts) -> bool:
        return facts.opset < self.to

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many nodes changed, the import counted as one.

        Raises:
            BadModel: An operator has no way to the new version.
            Refused: There is no such version.
        """
        opset = model.opset_imports.get("")
        if opset is None or opset >= self.to:
            note = f"the opset is {opset}" if opset else "it has no operator of the default domain"
            edit.add_note(model, note)
            return 0
        return raise_to(model, self.to) + 1
