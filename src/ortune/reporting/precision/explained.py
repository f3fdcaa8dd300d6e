"""Why a search came to its answer, in blocks: the whole run, a plan of it, or a node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ortune.core import wording
from ortune.core.section import Block, Heading, Table, Text
from ortune.core.trial import Interval
from ortune.reporting.blocks import Part
from ortune.reporting.explanation.explain import Explanation, NodeTold, PlanTold
from ortune.reporting.precision import regions

_CHANGES = {"baseline": "as it came", "runtime": "runtime settings"}
_SHOWN = 20
"""Rows of plans that are shown unless all are asked for."""


def parts(found: Explanation, *, every: bool = False) -> tuple[Part, ...]:
    """Return what was asked: of a node, of plans, or the whole.

    Args:
        every: All rows of all tables.
    """
    made: list[tuple[str, Iterable[Block]]]
    if found.node is not None:
        made = [("node", node(found.node, found))]
    elif found.asked:
        made = [("plan", block) for block in map(plan, found.asked)]
    else:
        made = [
            ("answer", _answer(found)),
            ("way", _way(found)),
            ("steps", _steps(found.winner)),
            *(("regions", regions.survey(one, every=every)) for one in found.surveys),
            ("mixtures", _mixtures(found)),
            ("plans", _plans(found, every)),
            ("untried", _untried(found, every)),
        ]
    notes = tuple(Text(f"note: {text}") for text in found.notes)
    whole = [Part(name, tuple(blocks)) for name, blocks in made] + [Part("notes", notes)]
    return tuple(part for part in whole if part.blocks)


def _answer(found: Explanation) -> Iterator[Block]:
    yield Text(found.answer)
    best = found.winner
    if best.number:
        steps = f"steps: {', '.join(best.steps)}" if best.steps else "no step"
        yield Text(f"It is plan {best.number}: {best.plan}, {steps}.")
        if best.proposed:
            yield Text(f"Proposed {_proposed(best)}")
    if found.accuracy:
        yield Text(f"Accuracy {found.accuracy}.")
    yield Text(f"Budget: {found.budget}. The search ended: {found.finished}.")


def _proposed(one: PlanTold) -> str:
    stage = f" ({one.stage})" if one.stage else ""
    return f"by the search{stage}{f': {one.proposed}' if one.proposed else ''}"


def _way(found: Explanation) -> Iterator[Block]:
    if len(found.way) < 2:
        return
    plans = {one.number: one.plan for one in found.plans}
    yield Heading("The way to it")
    rows = tuple(
        (
            _CHANGES.get(one.what, one.what),
            str(one.number),
            "-" if not one.number else _ratio(one.ratio),
            plans[one.number],
            one.why,
        )
        for one in found.way
    )
    yield Table(("after", "plan", "latency ratio [99 %]", "name", "why it was tried"), rows)


def _steps(best: PlanTold) -> Iterator[Block]:
    if best.edits:
        yield Heading("What its steps did")
        rows = (
            (e.step, f"{e.count:,}", e.note if e.kept else f"undone: {e.note}") for e in best.edits
        )
        yield Table(("step", "edits", "note"), tuple(rows))


def _mixtures(found: Explanation) -> Iterator[Block]:
    mixed = [(one, one.mixture) for one in found.plans if one.mixture is not None]
    if not mixed:
        return
    yield Heading("Plans that leave regions out")
    yield Text(
        "The loss is that of the budget's metric over what the budget lets a plan lose. What was "
        "expected is what single regions add up to, by plans measured before."
    )
    rows = tuple(
        (
            str(one.number),
            f"{len(held.given_back)} of {held.regions}: {', '.join(held.given_back)}",
            _figure(held.expected_lost),
            _figure(held.lost),
            _figure(held.expected_ratio),
            _ratio(one.ratio),
            "; ".join(filter(None, ("the winner" if one.winner else one.outcome, held.why))),
        )
        for one, held in mixed
    )
    head = ("plan", "left out", "loss: expected", "measured", "latency ratio: expected")
    marks = tuple("win" if one.winner else "" for one, _ in mixed)
    yield Table((*head, "measured [99 %]", "became"), rows, marks)


def _plans(found: Explanation, every: bool) -> Iterator[Block]:
    yield Heading(f"{wording.count(len(found.plans) - 1, 'plan')} tried")
    known = [one for one in found.plans if one.number]
    known.sort(key=lambda one: one.ratio.value if one.ratio else math.inf)
    shown = known if every else known[:_SHOWN]
    rows = tuple(
        (
            str(one.number),
            one.plan,
            _ratio(one.ratio),
            "-" if one.score is None else wording.number(one.score.value),
            one.outcome,
            one.why,
        )
        for one in shown
    )
    head = ("plan", "name", "latency ratio [99 %]", "score", "became", "why")
    yield Table(head, rows, tuple("win" if one.winner else "" for one in shown))
    if len(shown) < len(known):
        yield Text(f"{wording.count(len(known) - len(shown), 'slower one')} more; -v shows all.")


def _untried(found: Explanation, every: bool) -> Iterator[Block]:
    if not found.untried:
        return
    yield Heading(f"{wording.count(found.untried, 'plan')} not tried")
    shown = found.left_out if every else found.left_out[:_SHOWN]
    yield Table(("plan", "why not"), tuple((one.plan, one.why) for one in shown))
    if more := found.untried - len(shown):
        ending = "" if every else "; -v shows those named"
        yield Text(f"And {wording.count(more, 'other')}{ending}.")


def plan(one: PlanTold) -> list[Block]:
    """Return a plan's whole record."""
    facts = (
        ("key", one.key),
        ("steps", ", ".join(one.steps) or "none"),
        ("backend", one.backend),
        ("proposed", _proposed(one)),
        ("became", "the winner" if one.winner else one.outcome),
        ("why", one.why),
        ("MB", wording.megabytes(one.size)),
        ("error", " ".join((one.error or "").split())),
    )
    blocks: list[Block] = [
        Heading(f"Plan {one.number}: {one.plan}"),
        Table(("", ""), tuple(row for row in facts if row[1])),
        *_steps(one),
    ]
    if (held := one.mixture) is not None:
        every = wording.count(held.regions, "region")
        text = f"It leaves {len(held.given_back)} of {every} out: {', '.join(held.given_back)}."
        if held.expected_lost is not None:
            text += (
                f" Expected loss {_figure(held.expected_lost)} of what the budget allows, "
                f"measured {_figure(held.lost)}; expected latency ratio "
                f"{_figure(held.expected_ratio)}."
            )
        text += f" {held.why[:1].upper()}{held.why[1:]}." if held.why else ""
        blocks.append(Text(text))
    rows = tuple(
        (
            trial.part,
            _ratio(trial.ratio),
            "-" if trial.predicted is None else str(trial.predicted),
            ", ".join(
                f"{wording.metric(s.metric)} {wording.number(s.value)}" for s in trial.scores
            ),
            trial.outcome,
            "; ".join(filter(None, (trial.why, trial.stopped))),
            f"{trial.seconds:.1f}",
        )
        for trial in one.trials
    )
    head = ("part", "latency ratio [99 %]", "a new one falls in [95 %]", "scores", "became", "why")
    blocks += [Heading("Its trials"), Table((*head, "s"), rows)]
    if one.score is not None and (meaning := wording.means(one.score)):
        blocks.append(Text(f"Accuracy {meaning}."))
    if one.error and one.reproduce:
        blocks += [Text("To repeat what failed:"), Text(one.reproduce, "code")]
    return blocks


def node(one: NodeTold, found: Explanation) -> list[Block]:
    """Return all that is known of a node."""
    plans = {plan.number: plan for plan in found.plans}
    made: list[Block] = [Heading(f"{one.node}{f', {one.op}' if one.op else ''}")]
    where = f"plan {found.winner.number}, {found.winner.plan}"
    if one.winner:
        made.append(Text(f"In the winner ({where}) it computes in {one.winner}."))
    else:
        gone = "no node of this name: it was folded, fused or written in another way"
        made.append(Text(f"The winner ({where}) has {gone}; `ortune diff` shows which."))
    if one.rounded:
        made.append(Text("Its backend computes in fewer bits than the file says."))
    surveys = {survey.key: survey for survey in found.surveys}
    for key, told in one.regions.items():
        survey, region = surveys[key], told.cost
        text = (
            f"Surveyed in {survey.plan}: region {region.region}, "
            f"{wording.count(len(region.nodes), 'node')} ({regions.operators(region)}), "
        )
        if region.error:
            text += f"could not be measured: {region.error}."
        else:
            unit = f" ({survey.unit})" if survey.unit else ""
            text += (
                f"accuracy cost {regions.cost([region])}{unit}, time saved "
                f"{regions.gain([region])} %. {told.why[:1].upper()}{told.why[1:]}."
            )
        made.append(Text(text))
    made += [Text(f"The winner's steps say: {text}.") for text in one.notes]
    rows = tuple(
        (str(number), plans[number].plan, step, plans[number].outcome)
        for number, step in one.left_out.items()
    )
    if rows:
        made.append(Heading("Plans that leave it out by name"))
        made.append(Table(("plan", "name", "of the step", "became"), rows))
    if one.taken:
        said = "more change precisions and do not"
        said = said if rows else "change precisions, none leaves it out"
        made.append(Text(f"{wording.count(len(one.taken), 'plan')} {said} by name."))
    return made


def _ratio(found: Interval | None) -> str:
    return str(found) if found is not None and math.isfinite(found.value) else "-"


def _figure(value: float | None) -> str:
    return "-" if value is None else regions.number(value)
