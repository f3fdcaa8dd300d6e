"""What `inspect` and `diff` are asked."""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated

from ortune.core.backend import Backend
from ortune.core.custom_ops import CustomOpsRequest, add_custom_ops
from ortune.core.fields import InputShapes, Model, Option
from ortune.core.request import Request, request


@request
class Inspect(CustomOpsRequest):
    """Show what MODEL consists of, what is wrong with it, and which backends run it.

    Nothing is run and, above 500 MB, no weights are read. FLOPs and bytes are of one run;
    dynamic dimensions count as 1 unless --shape says otherwise. --on loads the model in a worker
    for each backend. -v lists everything; --json holds everything always.

    Example:
        ortune inspect model.onnx
        ortune inspect model.onnx --shape x:1x3x640x640 --list regions --on cpu,openvino

    Attributes:
        model: The model file.
        on: Ask these backends, such as "cpu,openvino", which nodes they would take.
        shapes: Shape of an input, such as x:1x3x320x320.
        weights: Read the weights, for the digest and for findings about values. Without it, those
            of models below 500 MB.

    Raises:
        BadModel: The file cannot be read.
        BadSettings: A shape does not fit the model; `on` is no backend.
    """

    model: Model
    _: KW_ONLY
    on: Annotated[str | Sequence[str | Backend], Option("BACKENDS")] = ""
    shapes: InputShapes = InputShapes(None, Option("INPUT:DIMS", "--shape"))
    weights: Annotated[bool | None, Option(word="--read-weights/--no-read-weights")] = None

    @property
    def backends(self) -> str:
        """`on`, spelled, with the custom operators given to every backend."""
        on = self.on if isinstance(self.on, str) else ",".join(map(str, self.on))
        return add_custom_ops(on, self.custom_ops) if on else ""


@request
class DiffRequest(Request):
    """Show which nodes and weights of A are matched, fused, split, changed or gone in B.

    Names may differ: nodes are followed by what they compute, by their weights (also scaled,
    transposed, quantized or rounded ones) and by their place. The exit code is 0 where both
    compute the same behind the same inputs and outputs, and 1 where they differ.

    Example:
        ortune diff model.onnx model-simplified.onnx
        ortune diff before.onnx after.onnx --json diff.json

    Attributes:
        a: A model.
        b: Another one.

    Raises:
        BadModel: A file cannot be read.
    """

    a: Model
    b: Model
