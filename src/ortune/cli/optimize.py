"""Find the fastest version that keeps a model's answers."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ortune.analysis.padding.requests import BucketsRequest
from ortune.cli.main import BAD, DONE, INTERRUPTED, NO
from ortune.cli.terminal import output
from ortune.cli.terminal.command import format_command_line, is_verbose, make_command
from ortune.cli.terminal.ending import hold_interruptions
from ortune.core import wording
from ortune.core.errors import Interruption, OrtuneError, find_interruption
from ortune.core.fields import Option, make_paths
from ortune.core.request import request
from ortune.search.request import Optimize

if TYPE_CHECKING:
    from ortune.core.study import Study
    from ortune.core.trial import Trial
    from ortune.search.each import ModelSearch
    from ortune.search.padding import Buckets


@request
class _Options(Optimize):
    """Options of the command line.

    Attributes:
        quiet: Plain lines instead of the live display.
    """

    _: KW_ONLY
    quiet: Annotated[bool, Option(hidden=True)] = False


@make_command(_Options, {"buckets": BucketsRequest})
def command(options: _Options | BucketsRequest) -> int:
    """Show every plan, the verdict and where things are; or the lengths to cut padding at."""
    from ortune.search.optimize import run

    if (
        isinstance(options, Optimize)
        and not options.evaluate
        and len(make_paths(options.model)) > 1
    ):
        return _optimize_each(options)
    if isinstance(options, BucketsRequest):
        from ortune.analysis.padding import buckets

        proposal = buckets.run(options)
        output.print_result(
            {
                "model": options.model,
                "backend": str(proposal.backend),
                "mask": proposal.padding.mask,
                "cut": (proposal.padding.mask, *proposal.padding.inputs),
                "outputs": proposal.backend.outputs,
                "side": proposal.padding.side,
                "lengths": proposal.backend.lengths,
                "samples": len(proposal.padding.lengths),
                "padding_share": proposal.padding.share,
                "snr_db": proposal.proof.snr_db,
                "proved_on": proposal.proof.samples,
                "positions": proposal.positions,
                "least": proposal.least,
                "latency_ns": {str(n): ns for n, ns in proposal.latency_ns.items()},
                "predicted": proposal.predicted,
                "measured": proposal.measured,
            },
            lambda: print_buckets(proposal),
        )
        return DONE
    study = run(replace(options, command=format_command_line()))
    page = Path(study.root) / "report.html"
    with hold_interruptions():
        # The answer first: there may be no room for the page.
        try:
            output.print_result(serialize_study(study, page), lambda: print_study(study, page))
        finally:
            is_written = _write_report(study, page)
    if not is_written:
        return INTERRUPTED
    code = exit_code(study, options.target_speedup, options.strict)
    if code == NO:
        output.write_remark(f"not reached: {describe_miss(study, options.target_speedup)}")
    return code


def _write_report(study: Study, page: Path) -> bool:
    """Write a run's page; return False, with a remark, where the disk is full."""
    from ortune.reporting.html import report

    try:
        report(study, page, force=True)
    except OrtuneError as error:
        if not find_interruption(error):
            raise
        output.write_remark(str(error))
        return False
    return True


def _optimize_each(options: Optimize) -> int:
    """Search for every model by itself, and show one table; the page is there after each."""
    from ortune.reporting.blocks import Part
    from ortune.reporting.results import build_searches, write_result_page
    from ortune.search import each

    searches: list[ModelSearch] = []
    page, is_whole = Path(options.out) / "summary.html", True
    for item in each.run(options):
        searches.append(item)
        with hold_interruptions():
            if item.study is not None:
                is_whole &= _write_report(item.study, item.root / "report.html")
            page.parent.mkdir(parents=True, exist_ok=True)
            write_result_page(build_searches(searches), page, force=True)
    codes = [
        exit_code(item.study, options.target_speedup, options.strict)
        for item in searches
        if item.study
    ]
    rows = {"run": options.out, "report": page, "models": list(map(_serialize_search, searches))}

    def show() -> None:
        table = build_searches(searches)[1][1].blocks[0]
        output.print_parts([Part("models", (table,))])
        for item in searches:
            if item.problem:
                output.print_text(f"{item.name}: {item.problem}\n  fix: {item.fix}")
        output.print_text(f"runs:   {options.out}\nreport: {page}")

    output.print_result(rows, show)
    if not is_whole or any(item.study is None and not item.problem for item in searches):
        return INTERRUPTED
    return max([*codes, *(BAD for item in searches if item.problem)])


def _serialize_search(item: ModelSearch) -> dict[str, object]:
    """Return what scripts ask for of one model of several; its run has the rest."""
    row: dict[str, object] = {"name": item.name, "model": item.model, "run": item.root}
    row |= {"error": item.problem or None, "fix": item.fix or None}
    if item.study is None:
        return row
    keys = ("report", "finished", "improved", "best", "budget", "counts")
    study = serialize_study(item.study, item.root / "report.html")
    return row | {key: study[key] for key in keys}


def describe_miss(study: Study, target_speedup: float | None) -> str:
    """Say what was asked for and is not there."""
    if over := study.job.wanted.describe_excess(study.best):
        return f"the original stays, and {over}"
    goal = f"{target_speedup:g} times as fast" if target_speedup else "proved accuracy"
    return f"{goal}; the best is {study.speedup(study.best).value:.2f}x"


def serialize_study(study: Study, page: Path) -> dict[str, object]:
    """Return what scripts ask for first, then the whole study."""
    from ortune.core.judgement import judge_steps
    from ortune.search.batch_rows import rows

    best, limit = study.best, study.ending.max_latency
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
            "meaning": wording.explain_verdict(best.score) if best is not study.baseline else "",
            "size": best.size,
            "peak_rss": best.measurement.peak_rss if best.measurement else None,
            "over": study.job.wanted.describe_excess(best),
        },
        "wanted": study.job.wanted,
        "doubt": study.header.doubt,
        "outlook": study.header.outlook,
        "budget": str(study.budget),
        "budget_rule": study.job.budget_rule,
        "steps": [_serialize_step(step) for step in judge_steps(study)],
        "workload": str(study.job.workload),
        "measure": study.job.workload.measure,
        "counts": study.counts,
        "unconfirmed": [serialize_trial(trial, study) for trial in study.unconfirmed],
        "cut_short": [serialize_trial(trial, study) for trial in study.cut_short],
        "untried": study.ending.left_out,
        "batches": [
            {
                "batch": row.batch,
                "key": row.trial.key,
                "plan": str(row.trial.plan),
                "state": row.state,
                "ratio": row.trial.shown_ratio,
                "beside": row.beside,
                "p50_ns": row.p50_ns,
                row.tail + "_ns": row.tail_ns,
                "per_second": row.per_second,
                "within": None if limit is None else row.within(limit),
            }
            for row in rows(study)
            if study.batches
        ],
        "max_latency": limit,
        "machines": [
            {
                "name": name,
                "machine": there.job.machine,
                "versions": there.job.versions,
                "best": there.best.key,
                "improved": there.best is not there.baseline,
                "trials": [serialize_trial(trial, there) for trial in there.trials],
            }
            for name, there in study.machines.items()
        ],
        "trials": [serialize_trial(trial, study) for trial in study.trials],
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


def _serialize_step(study: Study) -> dict[str, object]:
    """Return the answer for a step of the budget."""
    best = study.best
    return {
        "budget": str(study.budget),
        "key": best.key,
        "plan": str(best.plan),
        "speedup": study.speedup(best),
        "score": best.score,
        "size": best.size,
    }


def serialize_trial(trial: Trial, study: Study) -> dict[str, object]:
    """Return a trial without its raw samples: those are in the ledger."""
    from ortune.core.acceptance import classify_outcome

    measurement = trial.measurement
    return {
        "key": trial.key,
        "plan": str(trial.plan),
        "part": trial.part,
        "stage": trial.stage,
        "proposed": trial.proposed,
        "status": trial.status,
        "outcome": classify_outcome(trial),
        "ratio": trial.shown_ratio,
        "predicted": trial.predicted,
        "scores": trial.scores,
        "size": trial.size,
        "load_ns": measurement.load_ns if measurement else None,
        "first_ns": measurement.first_ns if measurement else None,
        "peak_rss": measurement.peak_rss if measurement else None,
        "placement": measurement.placement if measurement else {},
        "edits": trial.edits,
        "artefact": trial.artefact,
        "effort": trial.effort,
        "stopped": trial.stopped,
        "seconds": trial.seconds,
        "why": trial.why,
        "interruption": trial.interruption,
        "over": study.job.wanted.describe_excess(trial) if measurement or trial.size else "",
        "error": trial.error,
        "reproduce": trial.reproduce,
    }


def print_study(study: Study, page: Path) -> None:
    """Print the answer, the best plans, and what to do next; with ``-v`` everything first."""
    from ortune.reporting.blocks import gather_parts
    from ortune.reporting.ending import StudyEnding
    from ortune.reporting.terminal import make_renderables

    parts = gather_parts(study, terminal=True)
    answers = [part for part in parts if part.name in ("batches", "budgets", "machines")]
    more = parts if is_verbose() else answers
    output.print_items(*make_renderables(more), StudyEnding(study, page))


def exit_code(study: Study, target_speedup: float | None, strict: bool) -> int:
    """Return 3 when it is partial, 1 when a target, bound or proof was asked and missed, else 0.

    It is partial where it was interrupted, or where something from outside, such as a full disk,
    ended plans; not where the time that they may take did, nor where the target is reached.
    """
    from ortune.core.trial import Status, Verdict
    from ortune.search.compare import has_proved_speedup

    if study.finished == "interrupted":
        return INTERRUPTED
    best, goal = study.best, study.job.wanted
    if target_speedup is not None and not goal.describe_excess(best):
        fit = [trial for trial in study.final if goal.keeps_bounds(trial)]
        if any(has_proved_speedup(trial, target_speedup) for trial in fit):
            return DONE
    if any(trial.interruption is not Interruption.TIME for trial in study.cut_short):
        return INTERRUPTED
    if goal.describe_excess(best) or target_speedup is not None:
        return NO
    if not strict or best is not study.baseline:
        return DONE
    unproved = any(
        trial.status is Status.OK
        and trial.ratio is not None
        and trial.ratio.high < 1
        and trial.score is not None
        and trial.score.verdict in (Verdict.LIKELY, Verdict.UNDECIDED)
        for trial in {trial.key: trial for trial in study.trials}.values()
    )
    return NO if unproved else DONE


def print_buckets(buckets: Buckets) -> None:
    """Print the padding, the proof, the latencies and the backend to use."""
    padding, backend = buckets.padding, buckets.backend
    names = ", ".join((padding.mask, *padding.inputs))
    output.print_text(
        f"padding: {100 * padding.share:.1f} % of the positions of "
        f"{wording.format_count(len(padding.lengths), 'sample')}, on the {padding.side}; cut "
        f"from {names}"
    )
    outputs = ", ".join(f"{name} {db:.0f} dB" for name, db in buckets.proof.snr_db.items())
    output.print_text(
        f"without effect: {outputs} (real positions, "
        f"{wording.format_count(buckets.proof.samples, 'sample')})"
    )
    if backend.outputs:
        output.print_text(f"zeros beyond the bucket: {', '.join(backend.outputs)}")
    output.print_table(
        ("length", "latency ms>"),
        [(str(n), f"{ns / 1e6:.3g}") for n, ns in sorted(buckets.latency_ns.items())],
    )
    rows = [
        ("positions computed", f"{buckets.positions:.3f}"),
        ("without any padding", f"{buckets.least:.3f}"),
        ("predicted from the latencies", f"{buckets.predicted:.3f}"),
    ]
    if buckets.measured is not None:
        rows.append(("measured", str(buckets.measured)))
    output.print_table(("share of the padded calls'", "ratio>"), rows)
    output.print_text(f'buckets: --on "{backend}"')
