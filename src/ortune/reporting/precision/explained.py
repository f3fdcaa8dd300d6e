"""Why a search came to its answer, in blocks: the whole run, a plan of it, or a node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ortune.core import wording
from ortune.core.section import Block, Heading, Table, Text
from ortune.core.trial import Interval
from ortune.reporting.blocks import Part
from ortune.reporting.explanation.explain import Explanation, NodeExplanation, PlanExplanation
from ortune.reporting.precision import regions

_CHANGES = {"baseline": "as it came", "runtime": "runtime settings"}
_SHOWN = 20
"""Rows of plans that are shown unless all are asked for."""


def build_explanation_parts(
    explanation: Explanation, *, show_all: bool = False
) -> tuple[Part, ...]:
    """Return what was asked: of a node, of plans, or the whole.

    Args:
        show_all: All rows of all tables.
    """
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
        steps = f"steps: {', '.join(best.steps)}" if best.steps else "no step"
        yield Text(f"It is plan {best.number}: {best.plan}, {steps}.")
        if best.proposed:
            yield Text(f"Proposed {_describe_proposal(best)}")
    if explanation.accuracy:
        yield Text(f"Accuracy {explanation.accuracy}.")
    yield Text(f"Budget: {explanation.budget}. The search ended: {explanation.finished}.")


def _describe_proposal(record: PlanExplanation) -> str:
    stage = f" ({record.stage})" if record.stage else ""
    return f"by the search{stage}{f': {record.proposed}' if record.proposed else ''}"


def _build_path(explanation: Explanation) -> Iterator[Block]:
    if len(explanation.way) < 2:
        return
    plans = {step.number: step.plan for step in explanation.plans}
    yield Heading("The way to it")
    rows = tuple(
        (
            _CHANGES.get(step.what, step.what),
            str(step.number),
            "-" if not step.number else _format_ratio(step.ratio),
            plans[step.number],
            step.why,
        )
        for step in explanation.way
    )
    yield Table(("after", "plan", "latency ratio [99 %]", "name", "why it was tried"), rows)


def _build_steps(best: PlanExplanation) -> Iterator[Block]:
    if best.edits:
        yield Heading("What its steps did")
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
    yield Heading("Plans that leave regions out")
    yield Text(
        "The loss is that of the budget's metric over what the budget lets a plan lose. What was "
        "expected is what single regions add up to, by plans measured before."
    )
    rows = tuple(
        (
            str(record.number),
            f"{len(mixture.given_back)} of {mixture.regions}: {', '.join(mixture.given_back)}",
            _format_figure(mixture.expected_lost),
            _format_figure(mixture.lost),
            _format_figure(mixture.expected_ratio),
            _format_ratio(record.ratio),
            "; ".join(
                filter(None, ("the winner" if record.winner else record.outcome, mixture.why))
            ),
        )
        for record, mixture in mixed
    )
    head = ("plan", "left out", "loss: expected", "measured", "latency ratio: expected")
    marks = tuple("win" if record.winner else "" for record, _ in mixed)
    yield Table((*head, "measured [99 %]", "became"), rows, marks)


def _build_plans(explanation: Explanation, show_all: bool) -> Iterator[Block]:
    yield Heading(f"{wording.format_count(len(explanation.plans) - 1, 'plan')} tried")
    numbered = [record for record in explanation.plans if record.number]
    numbered.sort(key=lambda record: record.ratio.value if record.ratio else math.inf)
    shown = numbered if show_all else numbered[:_SHOWN]
    rows = tuple(
        (
            str(record.number),
            record.plan,
            _format_ratio(record.ratio),
            "-" if record.score is None else wording.format_score_value(record.score.value),
            record.outcome,
            record.why,
        )
        for record in shown
    )
    head = ("plan", "name", "latency ratio [99 %]", "score", "became", "why")
    yield Table(head, rows, tuple("win" if record.winner else "" for record in shown))
    if len(shown) < len(numbered):
        yield Text(
            f"{wording.format_count(len(numbered) - len(shown), 'slower one')} more; -v shows all."
        )


def _build_untried(explanation: Explanation, show_all: bool) -> Iterator[Block]:
    if not explanation.untried:
        return
    yield Heading(f"{wording.format_count(explanation.untried, 'plan')} not tried")
    shown = explanation.left_out if show_all else explanation.left_out[:_SHOWN]
    yield Table(("plan", "why not"), tuple((record.plan, record.why) for record in shown))
    if more := explanation.untried - len(shown):
        ending = "" if show_all else "; -v shows those named"
        yield Text(f"And {wording.format_count(more, 'other')}{ending}.")


def build_plan_blocks(record: PlanExplanation) -> list[Block]:
    """Return a plan's whole record."""
    facts = (
        ("key", record.key),
        ("steps", ", ".join(record.steps) or "none"),
        ("backend", record.backend),
        ("proposed", _describe_proposal(record)),
        ("became", "the winner" if record.winner else record.outcome),
        ("why", record.why),
        ("MB", wording.format_megabytes(record.size)),
        ("error", " ".join((record.error or "").split())),
    )
    blocks: list[Block] = [
        Heading(f"Plan {record.number}: {record.plan}"),
        Table(("", ""), tuple(row for row in facts if row[1])),
        *_build_steps(record),
    ]
    if (mixture := record.mixture) is not None:
        region_count = wording.format_count(mixture.regions, "region")
        text = (
            f"It leaves {len(mixture.given_back)} of {region_count} out: "
            f"{', '.join(mixture.given_back)}."
        )
        if mixture.expected_lost is not None:
            text += (
                f" Expected loss {_format_figure(mixture.expected_lost)} of what the budget "
                "allows, "
                f"measured {_format_figure(mixture.lost)}; expected latency ratio "
                f"{_format_figure(mixture.expected_ratio)}."
            )
        text += f" {mixture.why[:1].upper()}{mixture.why[1:]}." if mixture.why else ""
        blocks.append(Text(text))
    rows = tuple(
        (
            trial.part,
            _format_ratio(trial.ratio),
            "-" if trial.predicted is None else str(trial.predicted),
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
    head = ("part", "latency ratio [99 %]", "a new one falls in [95 %]", "scores", "became", "why")
    blocks += [Heading("Its trials"), Table((*head, "s"), rows)]
    if record.score is not None and (meaning := wording.explain_verdict(record.score)):
        blocks.append(Text(f"Accuracy {meaning}."))
    if record.error and record.reproduce:
        blocks += [Text("To repeat what failed:"), Text(record.reproduce, "code")]
    return blocks


def build_node_blocks(record: NodeExplanation, explanation: Explanation) -> list[Block]:
    """Return all that is known of a node."""
    plans = {plan.number: plan for plan in explanation.plans}
    blocks: list[Block] = [Heading(f"{record.node}{f', {record.op}' if record.op else ''}")]
    where = f"plan {explanation.winner.number}, {explanation.winner.plan}"
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
            f"Surveyed in {survey.plan}: region {region.region}, "
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
        (str(number), plans[number].plan, step, plans[number].outcome)
        for number, step in record.left_out.items()
    )
    if rows:
        blocks.append(Heading("Plans that leave it out by name"))
        blocks.append(Table(("plan", "name", "of the step", "became"), rows))
    if record.taken:
        summary = "more change precisions and do not"
        summary = summary if rows else "change precisions, none leaves it out"
        blocks.append(
            Text(f"{wording.format_count(len(record.taken), 'plan')} {summary} by name.")
        )
    return blocks


def _format_ratio(ratio: Interval | None) -> str:
    return str(ratio) if ratio is not None and math.isfinite(ratio.value) else "-"


def _format_figure(value: float | None) -> str:
    return "-" if value is None else regions.format_number(value)
