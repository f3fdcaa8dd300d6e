"""Lower the version of the ONNX operators a model is written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.errors import Refused
from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.model.graph import edit
from ortune.rewrites.opset.lower_version import lower_to


@dataclass(frozen=True)
class LowerOpset(Transform):
    """The same computation in older operators, for runtimes that read no newer ones.

    What only takes more types there stays, and what does not exist below (SwiGLU, RMS and layer
    normalization, Gelu) is written out as the standard defines it. What has no way down is
    refused by name, and nothing is written.

    Attributes:
        to: Version of the default domain, 13 or more; must be given.
    """

    stage: ClassVar[Stage] = Stage.FINISH
    automatic: ClassVar[bool] = False

    to: int = 0

    def applies(self, facts: Facts) -> bool:
        """The model is newer."""
        return facts.opset > self.to > 0

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many nodes changed, the import counted as one.

        Raises:
            BadModel: There is no such version.
            Refused: No version is given, or an operator has no way down.
        """
        if not self.to:
            raise Refused(
                "lower-opset needs a target version",
                fix='write it: "lower-opset(to=17)"',
            )
        if (opset := model.opset_imports.get("", 0)) <= self.to:
            edit.note(model, f"the opset is {opset}")
            return 0
        return lower_to(model, self.to) + 1
