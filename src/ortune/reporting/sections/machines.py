"""Which plan is best on which machine: the finalists on each, scored once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.capabilities import HERE
from ortune.core.section import Block, Heading, Section, Table, Text
from ortune.core.study import Study
from ortune.core.trial import Trial


@dataclass(frozen=True)
class MachinesSection(Section):
    """A row a plan, a column a machine, and in words the best on each."""

    order: ClassVar[int] = 26
    terminal: ClassVar[bool] = True

    def blocks(self, study: Study) -> Iterable[Block]:
        if not study.machines:
            return
        here = study.job.environment
        machines = {"here" if here == HERE else here: study, **study.machines}
        plans = [t for t in study.final if any(s.find(t.key) for s in study.machines.values())]
        yield Heading("Machines")
        yield from (_describe_best(name, there) for name, there in machines.items())
        first = next(iter(machines))
        yield Text(
            f"Plans were built once and scored once, on '{first}'; on the others two samples are "
            "answered as there, and where not, plans are scored there too. 99 % intervals."
        )
        rows = [("the original", "", *map(_describe_original, machines.values()))]
        for trial in plans:
            cells = (_describe_plan(study, trial, there) for there in machines.values())
            rows.append((study.label(trial.plan), say.describe_verdict(trial), *cells))
        yield Table(("plan", "accuracy", *machines), tuple(rows))


def _describe_best(name: str, there: Study) -> Text:
    cpu = there.job.machine.get("cpu", "")
    if there.job.emulated:
        verdict = f"nothing is best: times are emulated ({there.job.emulated})"
        return Text(f"On {name} ({cpu}) {verdict}.", "warn")
    best = there.best
    if best.key == there.baseline.key:
        return Text(f"On {name} ({cpu}) no plan is told to be faster than the original.")
    speed = say.describe_speedup(best.shown_ratio)
    return Text(f"On {name} ({cpu}) {there.label(best.plan)} is best: {speed}.")


def _describe_original(there: Study) -> str:
    latency = f"{say.format_milliseconds(say.latency_ns(there, there.baseline))} ms"
    return f"{latency}, emulated" if there.job.emulated else latency


def _describe_plan(study: Study, trial: Trial, there: Study) -> str:
    """Say how fast a plan is on a machine, that it is best there, and what it scores if scored."""
    trial_there = there.find(trial.key)
    if trial_there is None or trial_there.part != "final":
        return "not timed"
    if trial_there.measurement is None:
        return trial_there.why or "failed"
    cell = say.describe_speedup(trial_there.shown_ratio)
    if there.job.emulated:
        cell = f"{say.format_milliseconds(say.latency_ns(there, trial_there))} ms, emulated"
    if trial_there.key == there.best.key:
        cell += ", best"
    scores = [t.score.value for t in (trial_there, trial) if t.score]
    if there is not study and len(set(scores)) > 1:
        cell += f", scored there: {scores[0]:.5g}, {say.describe_verdict(trial_there)}"
    return cell
