"""What a search ends with on a terminal: the answer in some seventeen lines that never wrap."""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text as Line

from ortune.core import wording as say
from ortune.core.acceptance import FASTEST, LOST, Outcome, classify_outcome
from ortune.core.metric import Kind
from ortune.core.progress.wrapping import crop_text, wrap_text
from ortune.core.section import Table
from ortune.core.study import Study
from ortune.core.trial import Trial, Verdict
from ortune.reporting.blocks import gather_parts
from ortune.reporting.sections.common.plans import (
    BUSY,
    compute_waiting_share,
    describe_emulation,
)
from ortune.reporting.sections.next_steps import list_commands
from ortune.reporting.sections.ranking import rank_trials
from ortune.reporting.sections.verdict import explain_no_plan

_SHOWN = 3
"""Plans that are named."""
_WARNING = 2
"""Lines that a warning may take."""
_VERDICTS = {
    Verdict.PROVED: "proved",
    Verdict.LIKELY: "kept, not proved",
    Verdict.UNDECIDED: "too few samples to tell",
    Verdict.FAILS: "outside the budget",
}
_STATES = {
    Outcome.FASTER: "measured once",
    Outcome.LEVEL: "no faster",
    Outcome.DISTURBED: "disturbed",
    Outcome.EMULATED: "emulated",
    Outcome.FAILS: "inaccurate",
    Outcome.CUT_SHORT: "cut short",
}
"""A plan's outcome in at most thirteen letters, where its own words are longer."""


@dataclass(frozen=True)
class StudyEnding:
    """The answer of a search, fitted to the console's width."""

    study: Study
    page: Path

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay it out: facts, at most one warning, the best plans, what to do next."""
        for text, style in _list_lines(self.study, self.page, options.max_width):
            yield Line(text, style=style, no_wrap=True, overflow="ignore")

    def list_rows(self) -> Iterator[tuple[str, ...]]:
        """Yield facts, warnings and every plan as cells, for what reads a pipe."""
        study = self.study
        yield from _list_facts(study)
        yield "", _describe_needs(study)
        yield "", _describe_choice(study)
        yield from (("warning", text) for text in list_warnings(study))
        for part in gather_parts(study, terminal=True):
            if part.name == "ranking":
                tables = [block for block in part.blocks if isinstance(block, Table)]
                yield from (row for table in tables for row in (table.columns, *table.rows))
        yield "report", str(self.page)


def _list_facts(study: Study) -> list[tuple[str, str, str]]:
    return [_describe_speed(study), *_describe_score(study)]


def _list_lines(study: Study, page: Path, width: int) -> Iterator[tuple[str, str]]:
    facts = _list_facts(study)
    name_width = max(cell_len(cells[0]) for cells in facts)
    value_width = max(cell_len(cells[1]) for cells in facts)
    for place, (name, values, note) in enumerate(facts):
        line = f"  {name:<{name_width}}   {values:<{value_width}}   {note}".rstrip()
        yield crop_text(line, width), "bold" if place == 0 else ""
    yield crop_text(f"  {_describe_needs(study)}", width), ""
    yield crop_text(f"  {_describe_choice(study)}", width), ""
    if warnings := list_warnings(study):
        more = f" (and {len(warnings) - 1} more: -v)" if len(warnings) > 1 else ""
        yield "", ""
        lines = wrap_text(warnings[0] + more, max(20, width - 5))
        if len(lines) > _WARNING:
            lines = [*lines[: _WARNING - 1], " ".join(lines[_WARNING - 1 :])]
        for place, text in enumerate(lines):
            yield crop_text(f"  {'!' if place == 0 else ' '}  {text}", width), "yellow"
    yield "", ""
    yield from _list_plans(study, width)
    yield "", ""
    steps = [
        (command.partition(" && ")[0], f"({why.rstrip(':')[:1].lower()}{why.rstrip(':')[1:]})")
        for why, command in list_commands(study)[:2]
    ]
    steps.append((f"ortune ui {shlex.quote(study.root)}", "(look at it in a browser)"))
    for place, (command, why) in enumerate(steps):
        line = f"  {'' if place else 'Next':<6}  {command}"
        room = width - cell_len(line) - 3
        yield f"{line}   {why}" if why and cell_len(why) <= room else line, ""
    yield f"  Report  {page}", ""


def _describe_choice(study: Study) -> str:
    """Return the winner and how many plans were timed again; of the original why it stays."""
    best = study.best
    finals = len({trial.key for trial in study.final})
    counted = f"{say.format_count(finals, 'plan')} re-measured"
    if best.key == study.baseline.key:
        why = explain_no_plan(study)
        return f"{why[:1].upper()}{why[1:]}."
    if study.job.wanted != FASTEST:
        return f"{study.label(best.plan)}   ({study.job.wanted}; {counted})"
    return f"{study.label(best.plan)}   ({counted})"


def _describe_speed(study: Study) -> tuple[str, str, str]:
    """Return how much faster, the latencies of both, and how sure that is."""
    best, speed = study.best, study.speedup(study.best)
    times = [say.latency_ns(study, trial) for trial in (study.baseline, best)]
    before, after = map(say.format_milliseconds, times)
    measure = study.job.workload.measure
    if best.key == study.baseline.key:
        return "original stays", f"{before} ms", "" if measure == "latency" else f"({measure})"
    faster = "faster" if speed.is_bounded and speed.low > 1 else "as fast"
    note = f"(99 %: {say.format_span(speed)}x" if speed.is_bounded else "(no interval"
    note += "" if measure == "latency" else f" of the {measure}"
    repeat = study.predict_speedup(best)
    if repeat is not None and math.isfinite(repeat.value):
        note += f"; repeats: {repeat.low:.1f}-{repeat.high:.1f}x"
    return f"{say.format_speedup(speed)} {faster}", f"{before} -> {after} ms", f"{note})"


def _describe_score(study: Study) -> Iterator[tuple[str, str, str]]:
    """Yield the metric, both scores, and the change beside the budget with its verdict."""
    score, metric = study.best.score, study.budget.metric
    name = say.shorten_metric(str(metric))
    if score is None or not math.isfinite(score.value):
        yield name, "not scored", f"budget {say.shorten_groups(str(study.budget))}"
        return
    scale, unit = say.scale_score(metric)
    percent = " %" if unit else ""
    budget = f"budget {say.shorten_groups(str(study.budget))}"
    if study.budget.relative and unit:
        budget = f"budget {scale * study.budget.limit:+.1f}"
    if study.best.key == study.baseline.key:
        yield name, f"{scale * score.value:.4g}{percent}", budget
        return
    verdict = _VERDICTS[score.verdict] if score.verdict else "not judged"
    values = f"{scale * score.value:.5g}{percent}"
    if metric.needs_labels and math.isfinite(score.base):
        values = f"{scale * score.base:.4g} -> {scale * score.value:.4g}{percent}"
        change = scale * (score.value - score.base)
        points = f"{change:+.1f} points" if metric.kind() is Kind.RIGHT else f"{change:+.3g}"
        budget = f"{points}, {budget}"
    yield name, values, f"{budget}: {verdict}"


def _describe_needs(study: Study) -> str:
    """Return file, memory and time to load, before and after."""
    trials = [study.baseline, study.best][: 1 + (study.best.key != study.baseline.key)]
    sizes = " -> ".join(say.format_megabytes(trial.size) for trial in trials)
    peaks = " -> ".join(say.format_measurement(trial, "peak_rss") for trial in trials)
    loads = " -> ".join(
        f"{trial.measurement.load_ns / 1e9:.2g}" if trial.measurement else say.NONE
        for trial in trials
    )
    return f"file {sizes} MB    memory {peaks} MB    load {loads} s"


def list_warnings(study: Study) -> list[str]:
    """Return what a reader must know of the answer, the gravest first, a sentence or two each."""
    warnings = list(describe_emulation(study))
    if over := study.job.wanted.describe_excess(study.best):
        warnings.append(f"It misses a limit: {over}.")
    if study.header.doubt:
        warnings.append(f"{study.header.doubt}.")
    if study.best.key != study.baseline.key:  # else noise is why it stays, and is said there
        warnings += _doubt_speed(study)
    if study.cut_short:
        causes = ", ".join(dict.fromkeys(str(trial.interruption) for trial in study.cut_short))
        count = say.format_count(len({trial.key for trial in study.cut_short}), "plan")
        warnings.append(f"{count} could not be tried to the end: {causes}.")
    for trials, state in ((study.undecided, "handed out"), (study.unconfirmed, "re-measured")):
        for trial in trials[:1]:
            speed = say.format_speedup(study.speedup(trial))
            why = f": {say.describe_needed(trial.score)}" if trial.score else ""
            warnings.append(
                f"Faster, but not {state}: {study.label(trial.plan)}, {speed}"
                f"{why if state == 'handed out' else ''}."
            )
    if study.samples.get("calibration") == 0 and study.header.facts.has_float_layers:
        warnings.append("No data was given, so nothing was quantized: give --data SAMPLES.")
    if study.finished == "interrupted":
        warnings.append("The search was interrupted: the same command continues it.")
    return warnings


def _doubt_speed(study: Study) -> Iterator[str]:
    best = study.best
    if study.too_noisy:
        yield "The machine was too noisy for a verdict. See: ortune doctor."
    elif (share := compute_waiting_share(best)) > BUSY:
        waited = f"{100 * share:.0f} % of runs waited"
        yield f"CPU was busy: {waited}. Repeat on a quiet machine."
    elif study.ending.too_noisy:
        yield "Measured on a noisy machine. See: ortune doctor."
    if study.job.wanted.prefer == "speed" and best.predicted and best.predicted.high >= 1:
        yield "Repeat measurements may show no speed-up."


def _list_plans(study: Study, width: int) -> Iterator[tuple[str, str]]:
    """Yield the best plans, a row each, and how many more there are."""
    ranked = [trial for trial in rank_trials(study) if trial.key != study.baseline.key]
    shown = ranked[:_SHOWN]
    metric = say.shorten_metric(str(study.budget.metric))
    cells = [
        (
            say.format_estimate(study.speedup(trial)),
            _format_change(study, trial),
            say.format_megabytes(trial.size),
            _name_state(study, trial),
        )
        for trial in shown
    ]
    heads = ("speed-up", metric, "MB", "")
    widths = [max(cell_len(row[k]) for row in (heads, *cells)) for k in range(len(heads))]
    longest = max((cell_len(study.label(trial.plan)) for trial in shown), default=0)
    room = min(longest, max(16, width - sum(widths) - 2 * len(widths) - 5))
    if shown:
        yield _join_row("#", "plan", heads, widths, room), "dim"
    for place, (trial, row) in enumerate(zip(shown, cells, strict=True), 1):
        label = crop_text(study.label(trial.plan), room)
        style = "bold green" if trial.key == study.best.key else ""
        yield _join_row(str(place), label, row, widths, room), style
    more, untried = len(ranked) - len(shown), study.counts[Outcome.UNTRIED]
    parts = [f"{more} more"] * (more > 0) + [f"{untried} not tried"] * (untried > 0)
    if parts:
        why = f"{', '.join(parts)}: ortune explain {shlex.quote(study.root)}"
        yield f"  -  {why}", "dim"


def _join_row(
    number: str, label: str, cells: Sequence[str], widths: Sequence[int], room: int
) -> str:
    *figures, state = cells
    right = "  ".join(f"{cell:>{size}}" for cell, size in zip(figures, widths, strict=False))
    space = " " * (room - cell_len(label))
    return f"  {number}  {label}{space}  {right}  {state}".rstrip()


def _format_change(study: Study, trial: Trial) -> str:
    """Write the change of a score by labels, or the score against the original's answers."""
    score, (scale, unit) = trial.score, say.scale_score(study.budget.metric)
    if score is None or not math.isfinite(score.value):
        return say.NONE
    if not study.budget.metric.needs_labels or not math.isfinite(score.base):
        return f"{scale * score.value:.4g}"
    change = scale * (score.value - score.base)
    return f"{change:+.1f}" if unit else f"{change:+.3g}"


def _name_state(study: Study, trial: Trial) -> str:
    """Return what a plan is in a word or two."""
    outcome = classify_outcome(trial)
    if trial.key == study.best.key:
        return "winner"
    if trial.part == "final" and outcome not in LOST:
        return "re-measured"
    return _STATES.get(outcome, str(outcome))
