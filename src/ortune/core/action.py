"""What can be done about a bottleneck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ortune.core.trial import Interval

Kind: TypeAlias = Literal["fuse", "quantize", "added", "denormals", "threads"]

NO_STEP = "no transform yet"


@dataclass(frozen=True)
class Action:
    """One thing to do about a bottleneck.

    Attributes:
        kind: What it is about.
        title: The bottleneck.
        advice: What to do, or why nothing can be done yet.
        kernels: Names of the kernels at stake, the longest first.
        stake_ns: Time that these kernels take of a run, or what of it can be gained at most; 0
            where the profile cannot tell.
        estimate_ns: Time that it would gain by the ceilings; None where nothing is estimated.
        steps: Spelling of the steps, in order; none where no step is known or none is needed.
        backend: Spelling of the backend with the setting; empty where it stays.
        measured: Latency with it over latency without, once it was tried.
        note: What became of trying it.
    """

    kind: Kind
    title: str
    advice: str
    kernels: tuple[str, ...] = ()
    stake_ns: float = 0.0
    estimate_ns: float | None = None
    steps: tuple[str, ...] = ()
    backend: str = ""
    measured: Interval | None = None
    note: str = ""

    @property
    def does(self) -> str:
        """Return what to hand to `apply` or `--on`, or that there is nothing yet."""
        return " ".join(self.steps) or self.backend or NO_STEP
