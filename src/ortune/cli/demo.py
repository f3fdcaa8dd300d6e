"""Optimize a sample model, from data to bundle."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from ortune.cli.optimize import exit_code, print_study, serialize_study
from ortune.cli.terminal.command import format_command_line, make_command
from ortune.cli.terminal.output import print_result, print_text, write_remark
from ortune.core.atomic_write import write_text
from ortune.core.errors import OrtuneError
from ortune.core.fields import Duration, Option
from ortune.core.request import WorkerRequest, request
from ortune.search.request import Optimize

if TYPE_CHECKING:
    from ortune.core.sample import Sample

_MARK = "demo.txt"
"""Says which sample a demo's folder holds."""

NEXT: Final = (
    "ortune optimize model.onnx --data samples/ --time 2m -o run",
    "ortune pack run -o model.ortune",
    "python -c \"import ortune; print(ortune.load('model.ortune').signature)\"",
)
"""What to do with a model of one's own; the first tutorial has the same lines."""


@request
class _Options(WorkerRequest):
    """Optimize a sample model, from data to bundle: model, data, run, report and bundle.

    Run twice it resumes: what was measured is not measured again.

    Example:
        ortune demo
        ortune demo --model minilm --time 3m -o minilm-demo

    Attributes:
        model: digit-cnn, minilm or efficientnet-lite0; `ortune doctor` says what each needs.
        out: The folder to write into.
        time: When to stop.
        on: Where to run: backends by comma, such as "cpu(threads=2),openvino". auto takes every
            backend that runs here, with the threads that suit the model.
        quiet: Plain lines instead of the live display.
    """

    _: KW_ONLY
    model: str = "digit-cnn"
    out: Annotated[str | Path, Option("PATH", "-o --out")] = "ortune-demo"
    time: Duration = Duration("60s")
    on: Annotated[str, Option("BACKENDS")] = "auto"
    quiet: Annotated[bool, Option(hidden=True)] = False

    def keeps(self, path: Path) -> bool:
        """A demo whose run has a trial stays."""
        from ortune.search.experiment.ledger import has_trials

        return has_trials(path / "run")


@make_command(_Options)
def command(options: _Options) -> int:
    """Show what `optimize` shows, and the bundle."""
    from ortune.bundle.pack import pack
    from ortune.core.plugins import catalog
    from ortune.core.sample import Sample
    from ortune.reporting.html import report
    from ortune.search.optimize import run

    sample = catalog.load_plugin(Sample, options.model)()
    if reason := sample.missing():
        raise OrtuneError(f"demo model '{options.model}' is not installed", fix=reason)
    folder = Path(options.out)
    write_remark(
        f"searching for {options.time:g} s for a faster form of a network that {sample.purpose}; "
        f"its answers must keep {sample.budget}; everything goes into {folder}"
    )
    _write_sample(sample, folder)
    calibration = folder / "calibration"
    job = Optimize(
        folder / "model.onnx",
        data=str(folder / "data"),
        calibration=str(calibration) if calibration.is_dir() else None,
        budget=sample.budget,
        on=_choose_backends(sample, options.on),
        batch=sample.batch,
        time=options.time,
        out=folder / "run",
        memory_limit=options.memory_limit,
        command=format_command_line(),
    )
    study = run(replace(job, sink=options.sink))
    page = report(study, folder / "report.html", force=True)
    bundle: Path | None = None
    if study.finished != "interrupted":
        bundle = pack(study, folder / f"{sample.name()}.ortune", force=True)

    def ending() -> None:
        print_study(study, page)
        print_text(f"bundle: {bundle or 'none, as the search was interrupted'}")
        # Say what to do next, first with the machine where it showed nothing.
        lines = [
            "",
            "next, a model of your own; samples/ holds .npz files of its inputs, by their names:",
            *(f"  {line}" for line in NEXT),
        ]
        if study.best is study.baseline:
            lines.insert(
                1,
                "no speed-up on this machine; `ortune doctor` checks whether it is fit to measure",
            )
        print_text("\n".join(lines))

    print_result(serialize_study(study, page) | {"bundle": bundle}, ending)
    return exit_code(study, None, strict=False)


def _choose_backends(sample: Sample, on: str) -> str:
    """Return the backends to search on, all with the sample's threads where none are given."""
    from ortune.core.plugins.spelling import with_field
    from ortune.search.targets import read_targets

    if on.strip() != "auto" or not sample.threads:
        return on
    targets = read_targets(on)
    names = ",".join(f"{target.backend.name()} in {target.environment}" for target in targets)
    return with_field(names, "threads", sample.threads)


def _write_sample(sample: Sample, folder: Path) -> None:
    """Write model and data once; an export takes a while and need not be the same twice."""
    mark = folder / _MARK
    if mark.is_file():
        sample_name, _, complete = mark.read_text(encoding="utf-8").strip().partition(" ")
        if sample_name != sample.name():
            raise OrtuneError(
                f"{folder} holds the demo of {sample_name}", fix="give another -o folder"
            )
        if complete:
            return
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OrtuneError(f"{folder} exists and holds no demo", fix="give another -o folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(mark, f"{sample.name()}\n")
    write_remark(f"writing model and data of {sample.name()} to {folder}")
    with contextlib.redirect_stdout(sys.stderr):
        sample.write(folder)
    write_text(mark, f"{sample.name()} complete\n")
