"""Find the fastest version that keeps a model's answers."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.cli.main import DONE, INTERRUPTED, NO
from ortune.cli.terminal import output
from ortune.cli.terminal.command import repeat, verb
from ortune.core import wording
from ortune.core.request import request
from ortune.search.request import Optimize

if TYPE_CHECKING:
    from ortune.core.study import Study
    from ortune.core.trial import Trial
    from ortune.search.batch_rows import BatchRow


@request
class _Asked(Optimize):
    """Options of the command line.

    Attributes:
        quiet: Plain lines instead of the live display.
    """

    _: KW_ONLY
    quiet: bool = False


@verb(_Asked)
def command(asked: _Asked) -> int:
    """Show every plan, the verdict and where things are."""
    from ortune.reporting.html import report
    from ortune.search.optimize import run

    study = run(replace(asked, command=repeat()))
    root = Path(study.root)
    page = report(study, root / "report.html", force=True)
    output.answer(summary(study, page), lambda: show(study, page))
    code = exit_code(study, asked.target_speedup, asked.strict)
    if code == NO:
        output.remark(f"not reached: {missed(study, asked.target_speedup)}")
    return code


def missed(study: Study, target_speedup: float | None) -> str:
    """Say what was asked for and is not there."""
    if over := study.job.wanted.over(study.best):
        return f"the original stays, and {over}"
    asked = f"{target_speedup:g} times as fast" if target_speedup else "proved accuracy"
    return f"{asked}; the best is {study.speedup(study.best).value:.2f}x"


def summary(study: Study, page: Path) -> dict[str, object]:
    """Return what scripts ask for first, then the whole study."""
    from ortune.search.batch_rows import rows

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
            "meaning": wording.means(best.score) if best is not study.baseline else "",
            "size": best.size,
            "peak_rss": best.measurement.peak_rss if best.measurement else None,
            "over": study.job.wanted.over(best),
        },
        "wanted": study.job.wanted,
        "outlook": study.header.outlook,
        "budget": str(study.budget),
        "budget_rule": study.job.budget_rule,
        "workload": str(study.job.workload),
        "measure": study.job.workload.measure,
        "counts": study.counts,
        "unconfirmed": [row(trial, study) for trial in study.unconfirmed],
        "untried": study.ending.left_out,
        "batches": [_of_batch(one, study) for one in rows(study) if study.batches],
        "max_latency": study.ending.max_latency,
        "trials": [row(trial, study) for trial in study.trials],
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


def _of_batch(one: BatchRow, study: Study) -> dict[str, object]:
    """Return the best plan at a batch."""
    limit = study.ending.max_latency
    return {
        "batch": one.batch,
        "key": one.trial.key,
        "plan": str(one.trial.plan),
        "state": one.state,
        "ratio": one.trial.ratio,
        "beside": one.beside,
        "p50_ns": one.p50_ns,
        one.tail + "_ns": one.tail_ns,
        "per_second": one.per_second,
        "within": None if limit is None else one.within(limit),
    }


def row(trial: Trial, study: Study) -> dict[str, object]:
    """Return a trial without its raw samples: those are in the ledger."""
    from ortune.core.acceptance import outcome

    taken = trial.measurement
    return {
        "key": trial.key,
        "plan": str(trial.plan),
        "part": trial.part,
        "stage": trial.stage,
        "proposed": trial.proposed,
        "status": trial.status,
        "outcome": outcome(trial),
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
        "effort": trial.effort,
        "stopped": trial.stopped,
        "seconds": trial.seconds,
        "why": trial.why,
        "over": study.job.wanted.over(trial) if taken or trial.size else "",
        "error": trial.error,
        "reproduce": trial.reproduce,
    }


def show(study: Study, page: Path) -> None:
    """Print the table of every plan, the verdict and where things are."""
    from ortune.reporting.terminal import terminal

    output.show(*terminal(study))
    output.say(f"run:    {study.root}\nreport: {page}")


def exit_code(study: Study, target_speedup: float | None, strict: bool) -> int:
    """Return 3 when interrupted, 1 when a target, bound or proof was asked and missed, else 0."""
    from ortune.core.trial import Status, Verdict
    from ortune.search.compare import reaches

    if study.finished == "interrupted":
        return INTERRUPTED
    best, wanted = study.best, study.job.wanted
    if wanted.over(best):
        return NO
    if target_speedup is not None:
        fit = [trial for trial in study.final if wanted.fits(trial)]
        return DONE if any(reaches(trial, target_speedup) for trial in fit) else NO
    if not strict or best is not study.baseline:
        return DONE
    unproved = any(
        trial.status is Status.OK
        and trial.ratio is not None
        and trial.ratio.high < 1
        and trial.score is not None
        and trial.score.verdict is Verdict.LIKELY
        for trial in {trial.key: trial for trial in study.trials}.values()
    )
    return NO if unproved else DONE
