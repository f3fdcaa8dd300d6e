"""Run the main job on a real model with real data, end to end."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ortune.cli.optimize import exit_code, show, summary
from ortune.cli.terminal.command import repeat, verb
from ortune.cli.terminal.output import answer, remark, say
from ortune.core.atomic_write import write_text
from ortune.core.errors import OrtuneError
from ortune.core.fields import Duration, Option
from ortune.core.request import Request, request
from ortune.search.request import Optimize

if TYPE_CHECKING:
    from ortune.core.sample import Sample

_MARK = "demo.txt"
"""Says which sample a demo's folder holds."""


@request
class _Asked(Request):
    """Run the main job on a real model with real data: model, data, run, report and bundle.

    Run twice it resumes: what was measured is not measured again.

    Example:
        ortune demo
        ortune demo --model minilm --time 3m -o minilm-demo

    Attributes:
        model: digit-cnn, minilm or efficientnet-lite0; `ortune doctor` says what each needs.
        out: The folder to write into.
        time: When to stop.
        on: Where to run: backends by comma, such as "cpu(threads=2),openvino".
        quiet: Plain lines instead of the live display.
    """

    _: KW_ONLY
    model: str = "digit-cnn"
    out: Annotated[str | Path, Option("PATH", "-o --out")] = "ortune-demo"
    time: Duration = Duration("60s")
    on: Annotated[str, Option("BACKENDS")] = "auto"
    quiet: bool = False


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Show what `optimize` shows, and the bundle."""
    from ortune.bundle.pack import pack
    from ortune.reporting.write import report
    from ortune.search.optimize import run

    sample, folder = _sample(asked.model), Path(asked.out)
    _write(sample, folder)
    calibration = folder / "calibration"
    job = Optimize(
        folder / "model.onnx",
        data=str(folder / "data"),
        calibration=str(calibration) if calibration.is_dir() else None,
        budget=sample.budget,
        on=asked.on,
        time=asked.time,
        out=folder / "run",
        command=repeat(),
        warm_start=False,
    )
    study = run(replace(job, sink=asked.sink))
    page = report(study, folder / "report.html", force=True)
    bundle: Path | None = None
    if study.finished != "interrupted":
        bundle = pack(study, folder / f"{sample.name()}.ortune", force=True)

    def ending() -> None:
        show(study, page)
        say(f"bundle: {bundle or 'none, as the search was interrupted'}")

    answer(summary(study, page) | {"bundle": bundle}, ending)
    return exit_code(study, None, strict=False)


def _sample(name: str) -> Sample:
    from ortune.core.plugins import catalog
    from ortune.core.sample import Sample

    sample = catalog.load(Sample, name)()
    if reason := sample.missing():
        raise OrtuneError(f"demo model '{name}' is not installed", fix=reason)
    return sample


def _write(sample: Sample, folder: Path) -> None:
    """Write model and data once; an export takes a while and need not be the same twice."""
    mark = folder / _MARK
    if mark.is_file():
        held, _, complete = mark.read_text(encoding="utf-8").strip().partition(" ")
        if held != sample.name():
            raise OrtuneError(f"{folder} holds the demo of {held}", fix="give another -o folder")
        if complete:
            return
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OrtuneError(f"{folder} exists and holds no demo", fix="give another -o folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(mark, f"{sample.name()}\n")
    remark(f"writing model and data of {sample.name()} to {folder}")
    with contextlib.redirect_stdout(sys.stderr):
        sample.write(folder)
    write_text(mark, f"{sample.name()} complete\n")
