"""Why a search came to its answer, in blocks: the whole run, a plan of it, or a node."""

import math
from collections.abc import Iterable, Iterator

from ortune.core import wording
from ortune.core.section import Block, Heading, Table, Text
from ortune.reporting.blocks import Part
from ortune.reporting.explanation.explain import Explanation, NodeExplanation, PlanExplanation
from ortune.reporting.precision import regions
from ortune.reporting.sections.untried import EXPECTED, format_expectation

_ENDINGS = {
    "done": "The search is done.",
    "time": "The search used all of its time.",
    "target": "The search stopped when the target was reached.",
    "interrupted": "The search was interrupted.",
}
_MEASUREMENTS = {"search": "in the search", "final": "final"}
_SHOWN = 20
"""Rows of plans that are shown unless all are asked for."""


def build_explanation_parts(
    explanation: Explanation, *, show_all: bool = False
) -> tuple[Part, ...]:
    """Return what was asked: of a node, of plans, or the whole, with all rows or the first."""
    named_blocks: list[tuple[str, Iterable[Block]]]
    if explanation.node is not None:
        named_blocks = [("node", build_node_blocks(explanation.node, explanation))]
    elif explanation.asked:
        named_blocks = [("plan", block) for block in map(build_plan_blocks, explanation.asked)]
    else:
        named_blocks = [
            ("answer", _build_answer(explanation)),
            ("way", _build_path(explanation)),
            ("steps", _build_steps(explanation.winner)),
            *(
                ("regions", regions.build_survey_blocks(region_survey, show_all=show_all))
                for region_survey in explanation.surveys
            ),
            ("mixtures", _build_mixtures(explanation)),
            ("plans", _build_plans(explanation, show_all)),
            ("untried", _build_untried(explanation, show_all)),
        ]
    notes = tuple(Text(f"note: {text}") for text in explanation.notes)
    whole = [Part(name, tuple(blocks)) for name, blocks in named_blocks] + [Part("notes", notes)]
    return tuple(part for part in whole if part.blocks)


def _build_answer(explanation: Explanation) -> Iterator[Block]:
    yield Text(explanation.answer)
    best = explanation.winner
    if best.number:
        yield Text(f"In full (plan {best.number}): {best.plan}")
        if best.steps:
            yield Text(f"Steps: {', '.join(best.steps)}")
        if best.proposed:
            yield Text(f"Why it was tried: {best.proposed}.")
        if best.integers:
            yield Text(f"In the runtime: {best.integers}.")
    if explanation.accuracy:
        yield Text(f"Accuracy {explanation.accuracy}.")
    ending = _ENDINGS.get(explanation.finished, explanation.finished)
    yield Text(f"Accuracy budget: {explanation.budget}. {ending}")


def _build_path(explanation: Explanation) -> Iterator[Block]:
    if len(explanation.way) < 2:
        return
    yield Heading("From the original to the winner")
    rows = tuple(
        (step.label, str(step.number), speed, step.why)
        for step in explanation.way
        for speed in [wording.describe_speedup(step.ratio) if step.number else "-"]
    )
    yield Table(("after", "plan", "speed-up, 99 %", "why it was tried"), rows)


def _build_steps(best: PlanExplanation) -> Iterator[Block]:
    if best.edits:
        yield Heading("What was done to the model")
        rows = (
            (e.step, f"{e.count:,}", e.note if e.kept else f"undone: {e.note}") for e in best.edits
        )
        yield Table(("step", "edits", "note"), tuple(rows))


def _build_mixtures(explanation: Explanation) -> Iterator[Block]:
    mixed = [
        (record, record.mixture) for record in explanation.plans if record.mixture is not None
    ]
    if not mixed:
        return
    yield Heading("Plans that leave regions in float")
    yield Text(
        "Loss: share of the accuracy budget that a plan uses up; 1 is the limit. Expected: the "
        "sum over its regions, corrected by the plans measured before."
    )
    rows = tuple(
        (
            str(record.number),
            f"{len(mixture.given_back)} of {mixture.regions}: {', '.join(mixture.given_back)}",
            _format_figure(mixture.expected_lost),
            _format_figure(mixture.lost),
            _format_speedup(mixture.expected_ratio),
            wording.describe_speedup(record.ratio),
            "; ".join(
                filter(None, ("the winner" if record.winner else record.outcome, mixture.why))
            ),
        )
        for record, mixture in mixed
    )
    head = ("plan", "in float", "loss: expected", "measured", "speed-up: expected")
    marks = tuple("win" if record.winner else "" for record, _ in mixed)
    yield Table((*head, "measured, 99 %", "result"), rows, marks)


def _build_plans(explanation: Explanation, show_all: bool) -> Iterator[Block]:
    yield Heading(f"{wording.format_count(len(explanation.plans) - 1, 'plan')} tried")
    numbered = [record for record in explanation.plans if record.number]
    numbered.sort(key=lambda record: record.ratio.value if record.ratio else math.inf)
    shown = numbered if show_all else numbered[:_SHOWN]
    rows = tuple(
        (
            str(record.number),
            record.label,
            wording.describe_speedup(record.ratio),
            "-" if record.score is None else wording.format_score_value(record.score.value),
            record.outcome,
            record.why,
        )
        for record in shown
    )
    head = ("number", "plan", "speed-up, 99 %", "score", "result", "why")
    yield Table(head, rows, tuple("win" if record.winner else "" for record in shown))
    if len(shown) < len(numbered):
        slower = wording.format_count(len(numbered) - len(shown), "slower plan")
        yield Text(f"{slower} more; -v shows all.")
    yield Text("`--plan NUMBER` shows a plan in full.")


def _build_untried(explanation: Explanation, show_all: bool) -> Iterator[Block]:
    if not explanation.untried:
        return
    yield Heading(f"{wording.format_count(explanation.untried, 'plan')} not tried")
    shown = explanation.left_out if show_all else explanation.left_out[:_SHOWN]
    rows = tuple(
        (record.label or record.plan, *format_expectation(record), record.why) for record in shown
    )
    yield Table(("plan", *EXPECTED, "why not"), rows)
    if more := explanation.untried - len(shown):
        ending = "" if show_all else "; -v shows more"
        yield Text(f"And {wording.format_count(more, 'other plan')}{ending}.")


def build_plan_blocks(record: PlanExplanation) -> list[Block]:
    """Return a plan's whole record."""
    facts = (
        ("in full", record.plan),
        ("key", record.key),
        ("steps", ", ".join(record.steps) or "none"),
        ("backend", record.backend),
        ("why it was tried", record.proposed),
        ("integers", record.integers),
        ("result", "the winner" if record.winner else record.outcome),
        ("why", record.why),
        ("MB", wording.format_megabytes(record.size)),
        ("error", " ".join((record.error or "").split())),
    )
    blocks: list[Block] = [
        Heading(f"Plan {record.number}: {record.label}"),
        Table(("", ""), tuple(row for row in facts if row[1])),
        *_build_steps(record),
    ]
    if (mixture := record.mixture) is not None:
        region_count = wording.format_count(mixture.regions, "region")
        text = (
            f"It leaves {len(mixture.given_back)} of {region_count} in float: "
            f"{', '.join(mixture.given_back)}."
        )
        if mixture.expected_lost is not None:
            text += (
                f" Expected loss {_format_figure(mixture.expected_lost)} of the accuracy budget, "
                f"measured {_format_figure(mixture.lost)}; expected speed-up "
                f"{_format_speedup(mixture.expected_ratio)}."
            )
        text += f" {mixture.why[:1].upper()}{mixture.why[1:]}." if mixture.why else ""
        blocks.append(Text(text))
    rows = tuple(
        (
            _MEASUREMENTS.get(trial.part, trial.part),
            wording.describe_speedup(trial.ratio),
            wording.describe_speedup(trial.predicted),
            ", ".join(
                f"{wording.shorten_metric(s.metric)} {wording.format_score_value(s.value)}"
                for s in trial.scores
            ),
            trial.outcome,
            "; ".join(filter(None, (trial.why, trial.stopped))),
            f"{trial.seconds:.1f}",
        )
        for trial in record.trials
    )
    head = ("", "speed-up, 99 %", "repeat measurements, 95 %", "scores", "result", "why")
    blocks += [Heading("Measurements"), Table((*head, "s"), rows)]
    if record.score is not None and (meaning := wording.explain_verdict(record.score)):
        blocks.append(Text(f"Accuracy {meaning}."))
    if record.error and record.reproduce:
        blocks += [Text("To repeat what failed:"), Text(record.reproduce, "code")]
    return blocks


def build_node_blocks(record: NodeExplanation, explanation: Explanation) -> list[Block]:
    """Return all that is known of a node."""
    plans = {plan.number: plan for plan in explanation.plans}
    blocks: list[Block] = [Heading(f"{record.node}{f', {record.op}' if record.op else ''}")]
    where = f"plan {explanation.winner.number}, {explanation.winner.label}"
    if record.winner:
        blocks.append(Text(f"In the winner ({where}) it computes in {record.winner}."))
    else:
        gone = "no node of this name: it was folded, fused or written in another way"
        blocks.append(Text(f"The winner ({where}) has {gone}; `ortune diff` shows which."))
    if record.rounded:
        blocks.append(Text("Its backend computes in fewer bits than the file says."))
    surveys = {survey.key: survey for survey in explanation.surveys}
    for key, region_entry in record.regions.items():
        survey, region = surveys[key], region_entry.cost
        text = (
            f"Tried alone in {survey.label}: region {region.region}, "
            f"{wording.format_count(len(region.nodes), 'node')} "
            f"({regions.format_operators(region)}), "
        )
        if region.error:
            text += f"could not be measured: {region.error}."
        else:
            unit = f" ({survey.unit})" if survey.unit else ""
            text += (
                f"accuracy cost {regions.format_cost([region])}{unit}, time saved "
                f"{regions.format_gain([region])} %. "
                f"{region_entry.why[:1].upper()}{region_entry.why[1:]}."
            )
        blocks.append(Text(text))
    blocks += [Text(f"The winner's steps say: {text}.") for text in record.notes]
    rows = tuple(
        (str(number), plans[number].label, step, plans[number].outcome)
        for number, step in record.left_out.items()
    )
    if rows:
        blocks.append(Heading("Plans that leave it out by name"))
        blocks.append(Table(("number", "plan", "step", "result"), rows))
    if record.taken:
        summary = "more change precisions and do not"
        summary = summary if rows else "change precisions, none leaves it out"
        blocks.append(
            Text(f"{wording.format_count(len(record.taken), 'plan')} {summary} by name.")
        )
    return blocks


def _format_speedup(ratio: float | None) -> str:
    return f"{1 / ratio:.2f}x" if ratio else "-"


def _format_figure(value: float | None) -> str:
    return "-" if value is None else regions.format_number(value)
