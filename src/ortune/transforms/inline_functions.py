"""Put the bodies of local functions where they are called."""

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortune.core.errors import Refused
from ortune.core.facts import Facts
from ortune.core.step import Stage, Transform
from ortune.graph.io import names
from ortune.graph.ir import edit


@dataclass(frozen=True)
class InlineFunctions(Transform):
    """Local functions that are named, or all, give way to their bodies; the others stay.

    ``simplify`` inlines all of them, so that it and every later step see the whole graph; this is
    for ``simplify(functions=keep)``, where some are kept for a runtime that knows them by name.
    onnxruntime inlines what it has no kernel for when it loads the file: kept or not, its speed
    is the same.

    Attributes:
        only: Names of functions, with or without their domain (``domain::name``); none takes all.
    """

    stage: ClassVar[Stage] = Stage.PREPARE
    automatic: ClassVar[bool] = False

    only: tuple[str, ...] = ()

    def applies(self, facts: Facts) -> bool:
        return facts.functions > 0

    def apply(self, model: ir.Model) -> int:
        """Edit the model in place and return how many functions went.

        Raises:
            Refused: A function that is named is not there.
        """
        there = list(model.functions.values())
        for name in self.only:
            if not any(name in edit.list_call_names(function) for function in there):
                function_names = ", ".join(sorted(function.name for function in there)) or "none"
                raise Refused(
                    f"there is no local function '{name}'", fix=f"its own are: {function_names}"
                )
        count = edit.inline_functions(model, self.only)
        for remaining_function in model.functions.values():
            if not self.only or not edit.list_call_names(remaining_function).isdisjoint(self.only):
                why = "it is of another opset, or has graphs as attributes"
                edit.add_note(model, f"{remaining_function.name} stays: {why}")
        if count:
            names.make_names_unique(model)
        return count
