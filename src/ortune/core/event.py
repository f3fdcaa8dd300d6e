"""Progress as values. A stage reports through the sink it was given; it never prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ortune.core.step import Edit
    from ortune.core.trial import Interval, Plan, Trial


@dataclass(frozen=True)
class Note:
    """Something a person should know; `warning` when it may change what they do."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class StepDone:
    """A recipe's step was applied or rolled back."""

    edit: Edit


@dataclass(frozen=True)
class Progress:
    """How far a piece of work is, told between measurements and never beside one."""

    work: str  # what is being done, such as ``timing``
    done: float = 0  # of `total`, in whatever unit
    total: float = 0  # 0 where it is not known
    pace: str = ""  # how fast it goes, such as ``40 rows a second``


@dataclass(frozen=True)
class TimeLeft:
    """Seconds that are left of a time budget, from now on."""

    seconds: float
    may_restart: bool = False  # a set-up is at work that does not count where it takes long


@dataclass(frozen=True)
class TrialStarted:
    """A plan comes up, known or not."""

    plan: Plan
    stage: str


@dataclass(frozen=True)
class Timing:
    """The present plan's ratio so far."""

    ratio: Interval
    blocks: int


@dataclass(frozen=True)
class TrialDone:
    """A plan is through; `cached` when the ledger already had it."""

    trial: Trial
    cached: bool = False


@dataclass(frozen=True)
class Unconfirmed:
    """The first plan that seems faster and keeps the budget; a finalist's pairs may tell else."""

    trial: Trial


Event: TypeAlias = (
    Note | StepDone | Progress | TimeLeft | TrialStarted | Timing | TrialDone | Unconfirmed
)
Sink: TypeAlias = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """Drop the event: the default sink."""


def without_notes(sink: Sink) -> Sink:
    """Return a sink that forwards progress alone, for a verb whose parts have nothing to say."""
    return lambda event: sink(event) if isinstance(event, Progress) else None


def collect_notes(notes: list[str], sink: Sink) -> Sink:
    """Return a sink that forwards every event and keeps the text of notes."""

    def forward_event(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)
        sink(event)

    return forward_event
