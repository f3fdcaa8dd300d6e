"""Run the main job on a real model with real data, end to end."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortune.cli import shared
from ortune.cli.optimize import REPEAT, exit_code, show, summary
from ortune.cli.terminal import settings
from ortune.core.errors import OrtuneError
from ortune.search.request import Optimize

if TYPE_CHECKING:
    from ortune.core.sample import Sample

_MARK = "demo.txt"
"""Says which sample a demo's folder holds."""


@shared.verb(shared.Verb)
@click.option(
    "--model",
    "name",
    default="digit-cnn",
    show_default=True,
    help="digit-cnn, minilm or efficientnet-lite0; `ortune doctor` says what each needs.",
)
@shared.output("The folder to write into.  [default: ortune-demo]")
@click.option("--time", default="60s", show_default=True, help="When to stop.")
@shared.on("auto")
@shared.quiet
def command(
    name: str,
    out: Path | None,
    time: str,
    on: str,
    quiet: bool,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Run the main job on a real model with real data: model, data, run, report and bundle.

    Run twice it resumes: what was measured is not measured again.

    \b
    Example:
      ortune demo
      ortune demo --model minilm --time 3m -o minilm-demo
    """
    from ortune.bundle.pack import pack
    from ortune.cli.terminal import progress
    from ortune.reporting.write import report
    from ortune.search.optimize import run

    sample = _sample(name)
    folder = Path("ortune-demo") if out is None else out
    _write(sample, folder)
    calibration = folder / "calibration"
    asked = Optimize(
        folder / "model.onnx",
        data=str(folder / "data"),
        calibration=str(calibration) if calibration.is_dir() else None,
        budget=sample.budget,
        on=on,
        time=time,
        out=folder / "run",
        command=shared.repeat(),
    )
    with progress.display(seconds=asked.time, quiet=quiet, verbose=verbose) as sink:
        study = run(replace(asked, sink=sink))
    (folder / "run" / REPEAT).write_text(settings.write(asked), encoding="utf-8")
    page = report(study, folder / "report.html", force=True)
    bundle: Path | None = None
    if study.finished != "interrupted":
        bundle = pack(study, folder / f"{sample.name()}.ortune", force=True)

    def ending() -> None:
        show(study, page)
        shared.say(f"bundle: {bundle or 'none, as the search was interrupted'}")

    shared.answer(json_to, summary(study, page) | {"bundle": bundle}, ending)
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
    mark.write_text(f"{sample.name()}\n", encoding="utf-8")
    shared.remark(f"writing model and data of {sample.name()} to {folder}")
    with contextlib.redirect_stdout(sys.stderr):
        sample.write(folder)
    mark.write_text(f"{sample.name()} complete\n", encoding="utf-8")
