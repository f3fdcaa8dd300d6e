"""What `recheck` is asked."""

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, ClassVar

from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings
from ortune.core.fields import Duration, File, Option
from ortune.core.request import WorkerRequest, request


@request
class Recheck(WorkerRequest):
    """Run a bundle's golden samples and its benchmark again: is it as it was packed?

    Its outputs must agree with the packed ones to 40 dB SNR. Its plan and the original are timed
    in turns, in fresh processes, on the golden samples: the ratio must not exceed the range that
    was predicted for a new measurement when the bundle was packed. Exit code 1 says that one of
    them changed, with the reason and with what differs: machine and versions.

    Example:
        ortune recheck model.ortune
        ortune recheck model.ortune --runtime 1.24..1.31 --markdown comment.md

    Attributes:
        bundle: A file made by pack.
        plan: Plan of the bundle to check, by the first characters of its key; the first plan if
            not given.
        environment: Run it in one of `ortune doctor env list` in place of here.
        runtime: Try releases of onnxruntime, oldest first, each in an environment of its own that
            is added when it is missing: 1.24..1.31, or 1.24.4,1.31.1.
        timed: Time it, beside comparing its answers.
        time: Time for timing, for each runtime.
        allow_custom_ops: Run the custom operators that the bundle brings.
        require_signature: Public key (PEM): refuse a bundle that its owner did not sign.

    Raises:
        OrtuneError: It is no bundle, was changed after packing, holds no such plan, runs code that
            is not allowed, or an environment cannot be had.
    """

    formerly: ClassVar[dict[str, str]] = {"key": "plan"}

    bundle: File
    _: KW_ONLY
    plan: Annotated[str, Option("PLAN")] = ""
    environment: Annotated[str, Option("NAME")] = HERE
    runtime: Annotated[str, Option("A..B")] = ""
    timed: bool = True
    time: Duration = Duration("20s")
    allow_custom_ops: bool = False
    require_signature: Annotated[str | Path | None, Option("PUBLIC.pem")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.runtime and self.environment != HERE:
            raise BadSettings(
                "runtime and environment both say where to run", fix="leave one of them out"
            )
