"""What a search records: immutable values that are written to JSON and read back."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import ClassVar, Literal, get_args

from ortune.core.backend import Backend
from ortune.core.errors import Interruption
from ortune.core.session import IntegerUse
from ortune.core.step import Edit, Recipe


@dataclass(frozen=True)
class Plan:
    """One thing to try: how to rewrite the model and where to run it."""

    recipe: Recipe
    backend: Backend

    @property
    def lossy(self) -> bool:
        """Whether numbers may change beyond rounding."""
        return self.recipe.lossy or self.backend.lossy

    @property
    def settings(self) -> int:
        """How many of the backend's fields are not at their default."""
        plain = type(self.backend)()
        return sum(getattr(self.backend, f.name) != getattr(plain, f.name) for f in fields(plain))

    @cached_property
    def spelling(self) -> str:
        """Steps and backend as the command line spells them: what a plan is, whatever its name."""
        return f"{', '.join(map(str, self.recipe.steps))} @ {self.backend}".lstrip()

    def __str__(self) -> str:
        return f"{self.recipe.name} @ {self.backend.shown}"

    def __repr__(self) -> str:
        return f"Plan({self.spelling})"


BESIDE = "beside"
"""Stage of a trial that is only shown: no search proposes it, chooses it or learns from it."""
Effort = Literal["screen", "search", "full"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""How far a trial is taken, least first."""


@dataclass(frozen=True)
class Proposal:
    """A plan to try, with the reason."""

    plan: Plan
    stage: str  # what the policy is about, in a word; stored with the trial
    why: str = ""  # why this plan and why now; stored with the trial
    # ``screen`` times a single block; ``search`` until the answer is clear; ``full`` all the time
    # that a plan gets, and judges accuracy whatever the time was.
    effort: Effort = "search"
    # Whether its accuracy is judged; it never is where the plan has lost on time.
    score: bool = True
    # Key of the trial of which it changes a setting; a finalist only if it gains.
    neighbour_of: str = ""


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether it excludes 1: the sides differ beyond the noise."""
        return self.high < 1 or self.low > 1

    @property
    def is_bounded(self) -> bool:
        """Whether its ends tell anything: of one or two blocks they may be a hundredfold apart."""
        return self.high < 100 * self.low

    def inverse(self) -> Interval:
        """Return the interval of 1/x; for latency ratio <-> speed-up. That of 0 is infinite."""
        return Interval(*(1 / x if x else math.inf for x in (self.value, self.high, self.low)))

    def __str__(self) -> str:
        ends = f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"
        return ends if self.is_bounded else f"about {self.value:.3f}"


@dataclass(frozen=True)
class UntriedPlan:
    """A plan that a search left out, and why."""

    plan: str  # in full
    why: str
    label: str = ""  # for people; empty in runs of older versions
    speedup: Interval | None = None  # what was expected of it, with 90 %; None where nothing was
    chance: float | None = None  # that it is within the accuracy budget
    seconds: float | None = None  # what trying it would have taken


@dataclass(frozen=True)
class Burst:
    """Consecutive timed runs of one live process."""

    # One entry a run, nanoseconds; runs much shorter than the clock are averaged over `runs_each`.
    latency_ns: tuple[int, ...]
    # For each entry the share of the time that the process's threads stood in the run queue, from
    # the scheduler's own counters; negative when it cannot be read.
    waited: tuple[float, ...]
    runs_each: int = 1  # runs behind one entry
    # All entries asked for the same, so that bursts are compared by their medians; else entry i of
    # one side is compared with entry i of the other.
    alike: bool = False
    # CPUs that other processes used meanwhile, counted in the kernel's ticks: of one burst it may
    # be negative; None when it cannot be read.
    neighbours: float | None = None


@dataclass(frozen=True)
class Block:
    """One turn A B B A: two bursts of the baseline around two of the candidate, joined.

    A side runs by time: the sides may differ in entries.
    """

    baseline: Burst
    candidate: Burst

    @property
    def seconds(self) -> float:
        """How long its runs took."""
        bursts = (self.baseline, self.candidate)
        return sum(sum(burst.latency_ns) * burst.runs_each for burst in bursts) / 1e9


@dataclass(frozen=True)
class Pair:
    """All blocks timed by one pair of live processes."""

    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, baseline: Iterable[Burst], candidate: Iterable[Burst]) -> Pair:
        """Pair the bursts of two sides, which took turns."""
        return cls(tuple(Block(a, b) for a, b in zip(baseline, candidate, strict=True)))


@dataclass(frozen=True)
class Measurement:
    """What one plan cost to run. Raw samples; every statistic is computed from them on demand."""

    pairs: tuple[Pair, ...]  # paired latency samples; a fresh pair of processes each
    load_ns: int  # session creation
    first_ns: int  # first inference
    peak_rss: int  # bytes; peak resident set of the fresh process, its imports included
    placement: Mapping[str, int] = field(default_factory=dict)  # execution provider -> nodes

    @property
    def latency_ns(self) -> tuple[int, ...]:
        """All samples of the candidate, raw."""
        blocks = (block for pair in self.pairs for block in pair.blocks)
        return tuple(ns for block in blocks for ns in block.candidate.latency_ns)


LIKELY_ERROR = 0.15
"""The chance, at most, that a search whose plans are all outside calls one of them likely: with
5 % that are called proved it is 20 % in which it hands one out."""


class Verdict(enum.StrEnum):
    """The answer of a paired accuracy test."""

    PROVED = "proved"
    LIKELY = "likely"
    UNDECIDED = "undecided"
    FAILS = "fails"


@dataclass(frozen=True)
class ScoreChange:
    """What a budget limits, with the ends of the interval that holds it with 90 %.

    In relative budgets it is the paired change of the score, which may be negative.
    """

    value: float
    least: float
    most: float


@dataclass(frozen=True)
class Score:
    """One metric of one plan over one part of the data."""

    added: ClassVar[frozenset[str]] = frozenset({"looser"})

    metric: str  # its spelling
    value: float  # the candidate's score
    base: float  # the baseline's score on the same samples
    # What `value` is at least, at `error` (relative budgets: at fixed `base`); minus infinity
    # where nothing says so, and where lower is better.
    low: float
    high: float  # what it is at most, where lower is better; else infinity
    samples: int  # how many samples were scored
    # Against the budget; None for a metric that is only reported along with it.
    verdict: Verdict | None = None
    # Independent samples that would prove what is not; None where none would. Where a search
    # divides them, so many in all.
    needed: int | None = None
    basis: str = ""  # how the verdict was reached, in a few words
    error: float = 0.05  # the chance at most, that what is outside the budget is called proved
    # Independent samples (groups count once) behind a proof; None without any.
    proved_on: int | None = None
    # Of the samples that must keep the limit; None where another kind counts.
    share: float | None = None
    inside: float | None = None  # share of the samples, groups counting once, that do
    claim: str = ""  # what the budget asks for, as a clause that a sentence can end on
    # What counts as independent: ``sample``, or ``group`` where samples share one.
    unit: str = "sample"
    # Of so good a result, at most, were the plan just outside the budget; None where nothing tests
    # that.
    chance: float | None = None
    plans: int = 1  # how many were looked at: so many times smaller `chance` has to be
    # What the budget limits, on all samples; None where it is not known.
    change: ScoreChange | None = None
    # The same answers as each looser step of the budget judges them, in order.
    looser: tuple[Score, ...] = ()

    def __eq__(self, other: object) -> bool:
        """Compare field by field; what is not known, NaN, is alike in both."""
        return isinstance(other, Score) and self._comparable == other._comparable

    def __hash__(self) -> int:
        """Agree with equality, for which NaN is one value."""
        return hash(self._comparable)

    @property
    def _comparable(self) -> tuple[object, ...]:
        values = (getattr(self, entry.name) for entry in fields(self))
        return tuple(None if value != value else value for value in values)

    def count_likely_samples(self, plans: int) -> int | None:
        """Return how many samples would make it likely, were all like those behind it.

        The chance of a result falls with the power of the samples that it rests on. None where
        nothing is likely by its samples.

        Args:
            plans: How many were looked at.
        """
        if self.chance is None or self.chance >= 1:
            return None
        times = math.log(LIKELY_ERROR / max(1, plans)) / math.log(max(self.chance, 1e-300))
        return math.ceil(max(1, self.samples) * times)


class Status(enum.StrEnum):
    """What became of a plan; unchanged ones and those that are too large were not run."""

    OK = "ok"
    SLOWER = "slower"
    LEVEL = "no faster"  # lost by what a search sorts by, within the noise
    FAILS = "fails"
    FAILED = "failed"
    UNCHANGED = "unchanged"
    TOO_LARGE = "too large"
    SCREENED = "screened"  # and not scored


@dataclass(frozen=True)
class Misreading:
    """Where a runtime computes another function than the file says.

    Attributes:
        version: Of its package; empty where it has none here.
        pairs: Tensor -> what stands around its quantize / dequantize pair, such as ``Conv, uint8
            pair, Reshape``: without these pairs the runtime keeps the accuracy budget. Empty where
            no few pairs are to blame.
    """

    runtime: str
    version: str = ""
    pairs: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        around = "; ".join(dict.fromkeys(self.pairs.values()))
        where = f" where it finds {around}" if around else ""
        name = " ".join(filter(None, (self.runtime, self.version)))
        return f"{name} computes another function than the file says{where}"


@dataclass(frozen=True)
class Trial:
    """One plan and its results.

    Attributes:
        key: Digest of everything the result depends on.
        part: ``search``, or ``final`` for a finalist in fresh pairs, on held-out samples too.
        ratio: Latency of the plan over that of the baseline, with its 99 % interval.
        predicted: Where a new measurement of that ratio, on another occasion, falls with 95 %.
        scores: The budget's metric first.
        size: Bytes of the model file and its external data.
        artefact: Path of the built model, relative to the run's folder.
        content: Digest of what it computes; empty where it is not known.
        why: One line: why it lost, or what it won by.
        building: Of its `seconds` those in which models were built.
        neighbour_of: As in the proposal.
        effort: How far it was taken; one that was screened may be proposed again for more.
        stopped: Why its timing ended part way, in one line; empty where it did not.
        interruption: What from outside made it fail, which says nothing of the plan: it is tried
            again when the same command runs again; None where the plan itself failed.
        by_operator: Operator -> its share of the time of all kernels, of a finalist; empty where
            its runtime records none.
        waited: Too few of its runs did not wait for a CPU: its ratio is one to sort by.
        integers: What became of the layers that a finalist's file gives integers; None where it
            gives none or nobody looked.
        emulated: What emulated the CPU that it was timed on: its ratio is one to sort by, and
            claims nothing; empty for a real CPU.
        device: Which of several devices timed it; empty of one alone.
        misreading: The plan misses the budget by its runtime's fault, as its file keeps it
            elsewhere; None where that is not so or nobody looked.
    """

    formerly: ClassVar[Mapping[str, str]] = {"phase": "part"}

    key: str
    plan: Plan
    part: str
    status: Status
    ratio: Interval | None = None
    scores: tuple[Score, ...] = ()
    size: int | None = None
    measurement: Measurement | None = field(default=None, repr=False)
    edits: tuple[Edit, ...] = ()
    artefact: str | None = None
    content: str = ""
    why: str = ""
    error: str | None = None
    reproduce: str | None = None
    seconds: float = 0.0
    building: float = 0.0
    predicted: Interval | None = None
    stage: str = ""
    proposed: str = ""
    neighbour_of: str = ""
    effort: Effort = "search"
    stopped: str = ""
    interruption: Interruption | None = None
    by_operator: Mapping[str, float] = field(default_factory=dict)
    integers: IntegerUse | None = None
    waited: bool = False
    misreading: Misreading | None = None
    emulated: str = ""
    device: str = ""

    def has_reached(self, effort: Effort) -> bool:
        """Whether the trial reached this part of the search, or ended earlier for good."""
        ended = self.status in (Status.FAILED, Status.UNCHANGED)
        return ended or EFFORTS.index(self.effort) >= EFFORTS.index(effort)

    @property
    def is_disturbed(self) -> bool:
        """Whether its timing has no interval, as too few of its runs did not wait for a CPU."""
        pairs = self.measurement.pairs if self.measurement else ()
        lone = all(len(pair.blocks) < 2 for pair in pairs)
        unknown = self.ratio is not None and math.isinf(self.ratio.high) and not lone
        return self.waited or (unknown and not self.emulated)

    @property
    def is_disturbed_block(self) -> bool:
        """Whether it is one block alone, whose runs waited for a CPU: it tells nothing."""
        return self.waited and self.effort == "screen"

    @property
    def shown_ratio(self) -> Interval | None:
        """Latency ratio to show to a user; None where its runs waited or their CPU was emulated.

        A ratio of runs that waited is one of time slices: a search sorts by it, for want of more.
        """
        return None if self.waited or self.emulated else self.ratio

    @property
    def score(self) -> Score | None:
        """The score that the budget judges."""
        return self.scores[0] if self.scores else None


_BUILDER = "builds"


def count_spent_s(trials: Iterable[Trial]) -> float:
    """Return about how many seconds trials took: devices worked at once, beside one builder."""
    by_place: dict[str, float] = {}
    for trial in trials:
        by_place[trial.device] = by_place.get(trial.device, 0.0) + trial.seconds
        if trial.device:
            by_place[_BUILDER] = by_place.get(_BUILDER, 0.0) + trial.building
    return by_place.pop("", 0.0) + max(by_place.values(), default=0.0)
