"""The original beside the winner, figure by figure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ortune.core import wording as say
from ortune.core.section import Block, Heading, Section, Table
from ortune.core.study import Study
from ortune.core.trial import Trial


@dataclass(frozen=True)
class ComparisonSection(Section):
    """Latency by the blocks behind the speed-up, score, size, recipe, backend and memory."""

    order: ClassVar[int] = 14
    terminal: ClassVar[bool] = True

    def blocks(self, study: Study) -> Iterable[Block]:
        first, best = study.baseline, study.best
        trials = [first] if best.key == first.key else [first, best]
        names = ("original", "winner")[: len(trials)]
        times = [say.format_milliseconds(say.latency_ns(study, trial)) for trial in trials]
        rows = [
            (f"{study.job.workload.measure}, ms", *times),
            ("score", *_format_scores(trials)),
            ("size, MB", *(say.format_megabytes(trial.size) for trial in trials)),
            ("recipe", *(trial.plan.recipe.name for trial in trials)),
            ("backend", *(str(trial.plan.backend) for trial in trials)),
            ("ran on", *map(_describe_placement, trials)),
            ("peak memory, MB", *(say.format_measurement(t, "peak_rss") for t in trials)),
            ("load, ms", *(say.format_measurement(trial, "load_ns") for trial in trials)),
            ("first run, ms", *(say.format_measurement(trial, "first_ns") for trial in trials)),
        ]
        yield Heading(" and ".join(names).capitalize())
        yield Table(("", *names), tuple(rows))


def _format_scores(trials: list[Trial]) -> list[str]:
    """Write both scores on the samples that the last of the trials was scored on."""
    score = trials[-1].score
    if score is None:
        return [say.NONE for _ in trials]
    values = [score.base, score.value][-len(trials) :]
    return [
        f"{say.shorten_metric(score.metric)} {say.format_score_value(value)}" for value in values
    ]


def _describe_placement(trial: Trial) -> str:
    placement = trial.measurement.placement if trial.measurement else {}
    shares = [f"{name}: {say.format_count(nodes, 'node')}" for name, nodes in placement.items()]
    return ", ".join(shares) or "not recorded"
