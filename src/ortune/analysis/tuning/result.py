"""What `tune` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ortune.analysis.tuning.attempt import Attempt
from ortune.core.acceptance import Outcome
from ortune.core.result import TableResult
from ortune.core.trial import Interval

WORDS = tuple(one for one in Outcome if one is not Outcome.UNTRIED)


@dataclass(frozen=True, repr=False)
class TuneResult(TableResult):
    """The settings that a model runs fastest with.

    Attributes:
        start: The backend as given.
        best: The backend to use, spelled.
        settings: All its fields.
        changed: The fields that differ from the start.
        improved: Whether anything was faster beyond the noise.
        lossy: Whether the settings change numbers.
        ratio: Of the latencies, best over start, in fresh pairs.
        cpu_ratio: Of the CPU time per inference, spinning included.
        finished: Whether all was tried: ``done``, or ``time``.
        attempts: Every value that was tried.
        denormals: Share of the weights that are denormal.
        samples: How many outputs were compared.
        synthetic: Whether the inputs were made up.
        beside_load: Cores that were kept busy meanwhile.
        noise: Readings of the machine meanwhile.
        unconfirmed: The settings that the steps led to, where fresh pairs did not confirm them.
        counts: How many values came to what, in words.
        too_noisy: The machine was too noisy for a verdict; never beside a claim.
        advice: What was wrong with the machine meanwhile, and what to change; the worst first.
    """

    headline = ("model", "best", "ratio", "cpu_ratio", "lossy", "finished")
    table = "attempts"

    start: str
    best: str
    settings: Mapping[str, Any]
    changed: str
    improved: bool
    lossy: bool
    ratio: Interval
    cpu_ratio: Interval | None
    finished: str
    attempts: tuple[Attempt, ...]
    model: str
    workload: str
    cpus: int
    denormals: float | None
    budget: str
    budget_rule: str
    samples: int
    synthetic: bool
    beside_load: int
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    noise: Mapping[str, str]
    unconfirmed: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    too_noisy: bool = False
    advice: tuple[str, ...] = ()
