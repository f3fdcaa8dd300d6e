"""Why a search came to its answer, in blocks: the whole run, a plan of it, or a node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ortune.analysis.explanation.result import Explanation, MixtureTold, NodeTold, PlanTold
from ortune.core import wording
from ortune.core.section import Block, Heading, Table, Text
from ortune.core.trial import Interval
from ortune.reporting.blocks import Part
from ortune.reporting.precision import regions

_CHANGES = {"baseline": "as it came", "runtime": "runtime settings"}
_SHOWN = 20
"""Rows of plans that are shown unless all are asked for."""


def parts(found: Explanation, *, every: bool = False) -> tuple[Part, ...]:
    """Return what was asked: of a node, of plans, or the whole.

    Args:
        found: The explanation.
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
        yield Text(f"It is plan {best.number}: {best.plan}, {_steps_of(best)}.")
        if best.proposed:
            yield Text(f"Proposed {_about(best)}: {best.proposed}")
    if found.accuracy:
        yield Text(f"Accuracy {found.accuracy}.")
    yield Text(f"Budget: {found.budget}. The search ended: {found.finished}.")


def _steps_of(one: PlanTold) -> str:
    return f"steps: {', '.join(one.steps)}" if one.steps else "no step"


def _about(one: PlanTold) -> str:
    return f"by the search ({one.stage})" if one.stage else "by the search"


def _way(found: Explanation) -> Iterator[Block]:
    if len(found.way) < 2:
        return
    plans = {one.number: one for one in found.plans}
    yield Heading("The way to it")
    rows = tuple(
        (
            _CHANGES.get(one.what, one.what),
            str(one.number),
            "-" if not one.number else _ratio(one.ratio),
            plans[one.number].plan,
            one.why,
        )
        for one in found.way
    )
    yield Table(("after", "plan", "latency ratio [99 %]", "name", "why it was tried"), rows)


def _steps(best: PlanTold) -> Iterator[Block]:
    if not best.edits:
        return
    yield Heading("What its steps did")
    rows = (
        (e.step, f"{e.count:,}", e.note if e.kept else f"undone: {e.note}") for e in best.edits
    )
    yield Table(("step", "edits", "note"), tuple(rows))


def _mixtures(found: Explanation) -> Iterator[Block]:
    mixed = [one for one in found.plans if one.mixture is not None]
    if not mixed:
        return
    yield Heading("Plans that leave regions out")
    yield Text(
        "The loss is that of the budget's metric over what the budget lets a plan lose. What was "
        "expected is what single regions add up to, by plans measured before."
    )
    head = ("plan", "left out", "loss: expected", "measured", "latency ratio: expected")
    rows = tuple(_mixed(one, one.mixture) for one in mixed if one.mixture is not None)
    marks = tuple("win" if one.winner else "" for one in mixed)
    yield Table((*head, "measured [99 %]", "became"), rows, marks)


def _mixed(one: PlanTold, held: MixtureTold) -> tuple[str, ...]:
    return (
        str(one.number),
        f"{len(held.given_back)} of {held.regions}: {', '.join(held.given_back)}",
        _figure(held.expected_lost),
        _figure(held.lost),
        _figure(held.expected_ratio),
        _ratio(one.ratio),
        "; ".join(filter(None, ("the winner" if one.winner else one.outcome, held.why))),
    )


def _plans(found: Explanation, every: bool) -> Iterator[Block]:
    yield Heading(f"{wording.count(len(found.plans) - 1, 'plan')} tried")
    known = [one for one in found.plans if one.number]
    known.sort(key=lambda one: one.ratio.value if one.ratio else math.inf)
    shown = known if every else known[:_SHOWN]
    rows = tuple(
        (str(one.number), one.plan, _ratio(one.ratio), _scored(one), one.outcome, one.why)
        for one in shown
    )
    marks = tuple("win" if one.winner else "" for one in shown)
    head = ("plan", "name", "latency ratio [99 %]", "score", "became", "why")
    yield Table(head, rows, marks)
    if len(shown) < len(known):
        yield Text(f"{wording.count(len(known) - len(shown), 'slower one')} more; -v shows all.")


def _untried(found: Explanation, every: bool) -> Iterator[Block]:
    if not found.untried:
        return
    yield Heading(f"{wording.count(found.untried, 'plan')} not tried")
    shown = found.left_out if every else found.left_out[:_SHOWN]
    yield Table(("plan", "why not"), tuple((one.plan, one.why) for one in shown))
    if more := found.untried - len(shown):
        yield Text(
            f"And {wording.count(more, 'other')}{'' if every else '; -v shows those named'}."
        )


def plan(one: PlanTold) -> list[Block]:
    """Return a plan's whole record."""
    blocks: list[Block] = [
        Heading(f"Plan {one.number}: {one.plan}"),
        Table(("", ""), tuple(row for row in _facts(one) if row[1])),
        *_steps(one),
    ]
    if one.mixture is not None:
        blocks.append(Text(_left(one.mixture)))
    blocks.append(Heading("Its trials"))
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
    blocks.append(Table((*head, "s"), rows))
    if one.score is not None and (meaning := wording.means(one.score)):
        blocks.append(Text(f"Accuracy {meaning}."))
    if one.error and one.reproduce:
        blocks += [Text("To repeat what failed:"), Text(one.reproduce, "code")]
    return blocks


def _left(held: MixtureTold) -> str:
    every = wording.count(held.regions, "region")
    text = f"It leaves {len(held.given_back)} of {every} out: {', '.join(held.given_back)}."
    if held.expected_lost is not None:
        text += (
            f" Expected loss {_figure(held.expected_lost)} of what the budget allows, measured "
            f"{_figure(held.lost)}; expected latency ratio {_figure(held.expected_ratio)}."
        )
    return f"{text} {held.why[:1].upper()}{held.why[1:]}." if held.why else text


def _facts(one: PlanTold) -> list[tuple[str, str]]:
    return [
        ("key", one.key),
        ("steps", ", ".join(one.steps) or "none"),
        ("backend", one.backend),
        ("proposed", f"{_about(one)}{f': {one.proposed}' if one.proposed else ''}"),
        ("became", "the winner" if one.winner else one.outcome),
        ("why", one.why),
        ("MB", wording.megabytes(one.size)),
        ("error", " ".join((one.error or "").split())),
    ]


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
        cost, gain = regions.cost([region]), regions.gain([region])
        made.append(
            Text(
                f"Surveyed in {survey.plan}: region {region.region}, "
                f"{wording.count(len(region.nodes), 'node')} ({regions.operators(region)}), "
                + (
                    f"could not be measured: {region.error}."
                    if region.error
                    else f"accuracy cost {cost}{f' ({survey.unit})' if survey.unit else ''}, "
                    f"time saved {gain} %. {told.why[:1].upper()}{told.why[1:]}."
                )
            )
        )
    made += [Text(f"The winner's steps say: {text}.") for text in one.notes]
    rows = tuple(
        (str(number), plans[number].plan, step, plans[number].outcome)
        for number, step in one.left_out.items()
    )
    others = wording.count(len(one.taken), "plan")
    if rows:
        made.append(Heading("Plans that leave it out by name"))
        made.append(Table(("plan", "name", "of the step", "became"), rows))
    if one.taken:
        said = (
            "more change precisions and do not"
            if rows
            else "change precisions, none leaves it out"
        )
        made.append(Text(f"{others} {said} by name."))
    return made


def _ratio(found: Interval | None) -> str:
    return str(found) if found is not None and math.isfinite(found.value) else "-"


def _scored(one: PlanTold) -> str:
    return "-" if one.score is None else wording.number(one.score.value)


def _figure(value: float | None) -> str:
    return "-" if value is None else regions.number(value)
