"""What `optimize` is asked."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, ClassVar

from ortune.core.fields import Option
from ortune.core.request import request
from ortune.experiment.request import ExperimentRequest


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
        fixed_shapes: Fix the inputs to the one shape that all samples have: the result takes no
            other. Without it the report says what it would bring.
        policy: In which order plans are tried, such as "staged(plans=0.5)".
        warm_start: Begin with what paid in earlier searches on this kind of machine, and keep
            what paid in this one: in a small file below the user's cache folder.
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
    fixed_shapes: bool = False
    policy: Annotated[str, Option("POLICY")] = "staged"
    warm_start: bool = True
    out: Annotated[str | Path, Option("PATH", "-o --out")] = "ortune-run"
    command: Annotated[str, Option(python=True)] = ""
