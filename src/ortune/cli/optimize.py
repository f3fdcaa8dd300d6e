"""Find the fastest version of a model that keeps its answers, and prove it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortune.cli import shared
from ortune.cli.main import DONE, INTERRUPTED, NO
from ortune.core.errors import OrtuneError
from ortune.core.plugins import user_file

if TYPE_CHECKING:
    from ortune.core.study import Study
    from ortune.core.trial import Trial

REPEAT = "ortune.toml"
"""Written into the run's folder; `ortune optimize RUN/ortune.toml` repeats the run."""


class FromFile(shared.Verb):
    """A verb that takes its settings from a .toml file given in place of the models."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the file's settings behind those of the command line."""
        shared.remember(ctx, args)
        if args and args[0].endswith(".toml"):
            settings = self._read(Path(args[0]))
            models = settings.pop("models", [])
            ctx.default_map = settings
            return super().parse_args(ctx, [*args[1:], *map(str, models)])
        return super().parse_args(ctx, args)

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise OrtuneError(f"{path} is not TOML: {error}", fix="correct that line") from None
        known = {*(param.name for param in self.params), "models"} - {"json_to"}
        if unknown := sorted(set(settings) - known):
            names = ", ".join(sorted(name for name in known if name))
            raise OrtuneError(f"{path}: unknown setting '{unknown[0]}'", fix=f"use {names}")
        return settings


@shared.verb(FromFile)
@shared.models
@shared.data
@shared.labels
@shared.calibration
@shared.ranges_from
@shared.augment
@shared.evaluate
@shared.budget
@shared.on("auto")
@shared.custom_ops
@click.option(
    "--rule",
    "rules",
    metavar="STEP",
    multiple=True,
    help="A rule of your own to try too, FILE.py:NAME, or another exact step.",
)
@click.option(
    "--baseline", metavar="BACKEND", help="What to beat: where the untouched file runs; cpu."
)
@click.option("--time", default="3m", show_default=True, help="When to stop, such as 60s or 10m.")
@click.option(
    "--target-speedup",
    type=click.FloatRange(min=1),
    metavar="X",
    help="Stop at the first proved plan that is X times as fast.",
)
@click.option("--strict", is_flag=True, help="Take only proved accuracy, not likely.")
@click.option(
    "--workload",
    default="latency",
    show_default=True,
    help='How the model will be used, such as "throughput" or "arrivals(rate=50)".',
)
@shared.batch
@shared.shapes
@shared.ranges
@click.option(
    "--policy",
    metavar="POLICY",
    default="staged",
    show_default=True,
    help='In which order plans are tried, such as "staged(plans=0.5)".',
)
@shared.output("The run's folder; the same command resumes it.  [default: ortune-run]")
@click.option("--memory-limit", metavar="SIZE", help="Of one worker, such as 4G.")
@shared.quiet
@click.option("--runtime-log", is_flag=True, help="Let the runtime log to stderr.")
def command(
    models: tuple[Path, ...],
    data: str | None,
    labels: str | None,
    calibration: str | None,
    ranges_from: Path | None,
    augment: str | None,
    evaluate: str | None,
    budget: str | None,
    on: str,
    custom_ops: tuple[str, ...],
    rules: tuple[str, ...],
    baseline: str | None,
    time: str,
    target_speedup: float | None,
    strict: bool,
    workload: str,
    batch: int,
    shapes: tuple[str, ...],
    ranges: tuple[str, ...],
    policy: str,
    out: Path | None,
    memory_limit: str | None,
    quiet: bool,
    runtime_log: bool,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Find the fastest version of MODELS that keeps the answers, and prove it.

    Several models (an encoder and its decoder) are tuned together with --evaluate. The original
    is a valid answer: nothing slower and nothing outside the budget is ever handed back.
    A RUN/ortune.toml in place of MODELS repeats that run.

    \b
    Example:
      ortune optimize model.onnx --data samples/ --budget "top1>=base-0.01" -o run
      ortune optimize model.onnx --data samples/ --on cpu,openvino --time 3m --json
    """
    from ortune.cli.terminal import progress
    from ortune.reporting.write import report
    from ortune.search.optimize import optimize

    loud = verbose or runtime_log
    with progress.display(seconds=shared.seconds(time), quiet=quiet, verbose=loud) as sink:
        study = optimize(
            models if len(models) > 1 else models[0],
            data=data,
            labels=labels,
            calibration=calibration,
            ranges_from=ranges_from,
            augment=augment or "",
            rules=rules,
            evaluate=evaluate,
            budget=budget,
            on=shared.equipped(on, custom_ops),
            baseline=baseline and shared.equipped(baseline, custom_ops),
            time=shared.seconds(time),
            target_speedup=target_speedup,
            strict=strict,
            workload=workload,
            batch=batch,
            shapes=shared.shape_map(shapes),
            ranges=shared.range_map(ranges),
            policy=policy,
            out=out or "ortune-run",
            sink=sink,
            verbose=runtime_log,
            memory_limit=None if memory_limit is None else shared.bytes_of(memory_limit),
            command=shared.repeat(),
        )
    root = Path(study.root)
    given = click.get_current_context().params | {"out": root}
    (root / REPEAT).write_text(toml(given), encoding="utf-8")
    page = report(study, root / "report.html", force=True)
    shared.answer(json_to, summary(study, page), lambda: show(study, page))
    code = exit_code(study, target_speedup, strict)
    if code == NO:
        asked = f"{target_speedup:g} times as fast" if target_speedup else "proved accuracy"
        shared.remark(f"not reached: {asked}; the best is {study.speedup(study.best).value:.2f}x")
    return code


def toml(given: Mapping[str, Any]) -> str:
    """Write the settings that were given; paths absolute, so that it works from anywhere."""
    skipped = {"json_to", "verbose", "quiet", "runtime_log"}
    lines = []
    for name, value in given.items():
        if name in skipped or value is None or value == () or value is False:
            continue
        lines.append(f"{name} = {json.dumps(_absolute(name, value))}")
    return "\n".join(lines) + "\n"


def _absolute(name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_absolute(name, item) for item in value]
    path = (
        isinstance(value, Path)
        or (name in ("data", "labels", "calibration") and Path(value).exists())
        or (name == "rules" and user_file.names_file(value.partition("(")[0]))
    )
    return str(Path(value).absolute()) if path else value


def summary(study: Study, page: Path) -> dict[str, object]:
    """Return what scripts ask for first, then the whole study."""
    best = study.best
    return {
        "run": study.root,
        "report": page,
        "finished": study.finished,
        "improved": best is not study.baseline,
        "best": {
            "key": best.key,
            "plan": str(best.plan),
            "speedup": study.speedup(best),
            "predicted": best.predicted,
            "score": best.score,
            "size": best.size,
        },
        "budget": str(study.budget),
        "budget_rule": study.job.budget_rule,
        "workload": str(study.job.workload),
        "measure": study.job.workload.measure,
        "trials": [row(trial) for trial in study.trials],
        "history": study.history,
        "noise": study.noise,
        "too_noisy": study.too_noisy,
        "advice": study.advice,
        "samples": study.samples,
        "notes": study.notes,
        "command": study.command,
        "versions": study.job.versions,
        "machine": study.job.machine,
    }


def row(trial: Trial) -> dict[str, object]:
    """Return a trial without its raw samples: those are in the ledger."""
    taken = trial.measurement
    return {
        "key": trial.key,
        "plan": str(trial.plan),
        "part": trial.part,
        "stage": trial.stage,
        "status": trial.status,
        "ratio": trial.ratio,
        "predicted": trial.predicted,
        "scores": trial.scores,
        "size": trial.size,
        "load_ns": taken.load_ns if taken else None,
        "first_ns": taken.first_ns if taken else None,
        "peak_rss": taken.peak_rss if taken else None,
        "placement": taken.placement if taken else {},
        "edits": trial.edits,
        "artefact": trial.artefact,
        "why": trial.why,
        "error": trial.error,
        "reproduce": trial.reproduce,
    }


def show(study: Study, page: Path) -> None:
    """Print the table of every plan, the verdict and where things are."""
    from ortune.reporting.terminal import terminal

    shared.show(*terminal(study))
    shared.say(f"run:    {study.root}\nreport: {page}")


def exit_code(study: Study, target_speedup: float | None, strict: bool) -> int:
    """Return 3 when interrupted, 1 when a target or a proof was asked for and missed, else 0."""
    from ortune.core.trial import Status, Verdict
    from ortune.search.compare import reaches

    if study.finished == "interrupted":
        return INTERRUPTED
    best = study.best
    if target_speedup is not None:
        return DONE if any(reaches(trial, target_speedup) for trial in study.final) else NO
    if not strict or best is not study.baseline:
        return DONE
    unproved = any(
        trial.status is Status.OK
        and trial.ratio is not None
        and trial.ratio.high < 1
        and trial.score is not None
        and trial.score.verdict is Verdict.LIKELY
        for trial in study.trials
    )
    return NO if unproved else DONE
