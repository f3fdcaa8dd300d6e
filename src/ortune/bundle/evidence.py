"""What was measured, in the form that a bundle carries it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ortune.core.facts import Facts
from ortune.core.study import Job, Study
from ortune.core.trial import Trial


@dataclass(frozen=True)
class BundleEvidence:
    """Enough to judge the packed plans again, raw samples included.

    Attributes:
        job: What was requested, on which machine, with which versions.
        baseline: The untouched model.
        trials: The packed plans': of the search and, where it was a finalist, the final one.
        noise: How far the machine could be trusted.
        samples: Part of the data -> number of samples.
        finished: How the search ended.
        command: The command line that repeats it.
    """

    job: Job
    facts: Facts
    baseline: Trial
    trials: tuple[Trial, ...]
    noise: Mapping[str, str] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    finished: str = "done"
    command: str = ""


def evidence(study: Study, trials: Sequence[Trial]) -> BundleEvidence:
    """Collect the evidence of some trials' plans."""
    keys = {trial.key for trial in trials}
    return BundleEvidence(
        study.job,
        study.header.facts,
        study.baseline,
        tuple(trial for trial in study.trials if trial.key in keys),
        study.noise,
        study.samples,
        study.finished,
        study.command,
    )
