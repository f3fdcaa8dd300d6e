"""What `optimize` is asked."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from ortune.core.fields import ByteSize, Option
from ortune.core.request import request
from ortune.experiment.request import ExperimentRequest

if TYPE_CHECKING:
    from ortune.core.acceptance import Goal


@request
class Optimize(ExperimentRequest):
    """Find the fastest version of MODEL that keeps the answers, and prove it.

    Several models (an encoder and its decoder) are tuned together with --evaluate. The original
    is a valid answer: nothing slower and nothing outside the budget is ever handed back. A
    RUN/ortune.toml in place of MODEL repeats that run.

    Example:
        ortune optimize model.onnx --data samples/ --budget "top1>=base-0.01" -o run
        ortune optimize model.onnx --data samples/ --on cpu,openvino --time 3m --json

    Attributes:
        on: Where to run: backends by comma, such as "cpu(threads=2),openvino"; fields that are
            written out stay as they are. auto takes every backend that runs here.
        rules: A rule of your own to try too, FILE.py:NAME, or another exact step.
        target_speedup: Stop at the first proved plan that is X times as fast.
        strict: Take only proved accuracy, not likely.
        prefer: What to have most of: speed, or the least size or memory that is not slower than
            the original beyond the noise.
        max_size: Of the result's model file with its external data, such as 100MB; see
            --memory-limit for ortune's own processes.
        max_memory: Of a process that runs the result, at its peak, such as 500MB; --memory-limit
            bounds ortune's own.
        portable: Try nothing that is bound to this machine's CPU.
        memory_limit: Of one of ortune's own processes, such as 4G; --max-memory bounds the
            result.
        policy: In which order plans are tried, such as "staged(plans=0.5)".
        out: The run's folder; the same command resumes it.
        command: The command line to repeat in reports.

    Returns:
        The `Study`: every trial, and what follows from them.

    Raises:
        OrtuneError: Model, data, budget or folder cannot be used.
    """

    formerly: ClassVar[dict[str, str]] = {"models": "model"}

    _: KW_ONLY
    on: Annotated[str, Option("BACKENDS")] = "auto"
    rules: Annotated[tuple[str, ...], Option("STEP", "--rule")] = ()
    target_speedup: Annotated[float | None, Option("X", low=1)] = None
    strict: bool = False
    prefer: Literal["speed", "size", "memory"] = "speed"
    max_size: ByteSize = ByteSize(None, Option("SIZE", low=1))
    max_memory: ByteSize = ByteSize(None, Option("SIZE", low=1))
    portable: bool = False
    policy: Annotated[str, Option("POLICY")] = "staged"
    out: Annotated[str | Path, Option("PATH", "-o --out")] = "ortune-run"
    command: Annotated[str, Option(python=True)] = ""

    @property
    def wanted(self) -> Goal:
        """By what the winner is chosen."""
        from ortune.core.acceptance import Goal  # a request is read without NumPy

        return Goal(self.prefer, self.max_size, self.max_memory, self.portable)
