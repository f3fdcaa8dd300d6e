"""What `explain` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ortune.core.result import TableResult
from ortune.core.step import Edit
from ortune.core.trial import Interval, Score, Untried
from ortune.regions.survey import RegionCost

KEPT, GIVEN = "kept", "given"
"""How it begins what became of a region: it has the surveyed precision in the winner, or not."""


@dataclass(frozen=True)
class Attempted:
    """One trial of a plan.

    Attributes:
        part: ``search``, or ``final`` in fresh pairs.
        outcome: What it may be called.
        ratio: Of the latencies, plan over original.
        why: Why it lost, or what it won by.
        stopped: Why its timing ended part way; empty where it did not.
    """

    part: str
    effort: str
    outcome: str
    why: str
    ratio: Interval | None
    predicted: Interval | None
    scores: tuple[Score, ...]
    seconds: float
    stopped: str = ""


@dataclass(frozen=True)
class MixtureTold:
    """A plan that leaves some regions of a surveyed plan in float.

    Attributes:
        survey: Key of the surveyed plan's trial.
        given_back: Regions that the surveyed precision was taken from, in the graph's order.
        regions: How many there are.
        expected_cost: Single costs of the regions that keep the precision, added up.
        expected_gain: Single gains of those regions, added up: a share of the original's latency.
        measured_gain: That of the plan whole; None where it was not timed.
        expected_ratio: Of its latency, as it was proposed; None without a line in the journal.
        expected_lost: Loss over what the budget lets a plan lose, likewise.
        lost: That as it was measured; None where it was not scored.
        kept: It was the best plan when it was measured; None without a line in the journal.
        why: Why it was kept, or why not.
    """

    survey: str
    given_back: tuple[str, ...]
    regions: int
    expected_cost: float
    expected_gain: float
    measured_gain: float | None
    expected_ratio: float | None = None
    expected_lost: float | None = None
    lost: float | None = None
    kept: bool | None = None
    why: str = ""


@dataclass(frozen=True)
class PlanTold:
    """A plan's whole record.

    Attributes:
        number: Its place among the plans tried; 0 is the original.
        key: Of its trials.
        plan: Its name.
        steps: Spelled.
        backend: Spelled.
        stage: What the search was about.
        proposed: Why it was proposed.
        outcome: What became of it, by its last trial.
        why: Of that trial.
        edits: What each step did.
        size: Bytes of the built files.
        trials: In order.
        winner: It is what the search hands out.
        mixture: Which regions it leaves out, where it is one of a surveyed plan.
        error: Why it failed.
        reproduce: Command that runs its worker again.
    """

    number: int
    key: str
    plan: str
    steps: tuple[str, ...]
    backend: str
    stage: str
    proposed: str
    outcome: str
    why: str
    edits: tuple[Edit, ...]
    size: int | None
    trials: tuple[Attempted, ...]
    winner: bool
    mixture: MixtureTold | None = None
    error: str | None = None
    reproduce: str | None = None

    @property
    def ratio(self) -> Interval | None:
        """Of its last trial that was timed."""
        return next((one.ratio for one in reversed(self.trials) if one.ratio), None)

    @property
    def score(self) -> Score | None:
        """The budget's, of its last trial that was scored."""
        return next((one.scores[0] for one in reversed(self.trials) if one.scores), None)


@dataclass(frozen=True)
class RegionTold:
    """What a region was tried at, what that gave, and what became of it.

    Attributes:
        cost: Of the region alone, as it was surveyed.
        winner: Its precision in the winner's file; empty where that does not tell.
        left_in: Numbers of the plans that leave it out of the surveyed precision.
        became: What became of it in the winner, in a few words.
        why: In one line, for a person.
    """

    cost: RegionCost
    winner: str
    left_in: tuple[int, ...]
    became: str
    why: str


@dataclass(frozen=True)
class SurveyTold:
    """All regions of a surveyed plan.

    Attributes:
        plan: Its name.
        precision: The step that decides its layers' precision.
        whole_cost: What the metric loses with all regions at it.
        unit: Of accuracy costs.
        seconds: What it took.
        error: Why there is none.
    """

    key: str
    plan: str
    precision: str
    regions: tuple[RegionTold, ...]
    whole_cost: float
    unit: str
    seconds: float
    error: str


@dataclass(frozen=True)
class NodeTold:
    """All that is known of one node.

    Attributes:
        node: Its name.
        op: Its operator in the original; empty where that is gone.
        winner: Its precision in the winner's file; empty where it has no node of its own there.
        rounded: The winner's backend computes in fewer bits than the file says.
        notes: What the winner's quantizers say of what they leave in float.
        regions: Key of a survey's plan -> the region that it is in.
        left_out: Number of a plan -> the step that leaves it out by name.
        taken: Number of a plan -> the step that may take it.
    """

    node: str
    op: str
    winner: str
    rounded: bool
    notes: tuple[str, ...]
    regions: Mapping[str, RegionTold]
    left_out: Mapping[int, str]
    taken: Mapping[int, str]


@dataclass(frozen=True)
class ChangeTold:
    """One row of the way from the original to the winner.

    Attributes:
        what: Kind of change.
        number: Of the plan that stands for it.
        ratio: Of that plan's latency, over the original's.
        why: Why it was proposed.
    """

    what: str
    number: int
    ratio: Interval | None
    why: str


@dataclass(frozen=True, repr=False)
class Explanation(TableResult):
    """Why a search came to its answer.

    Attributes:
        run: Its folder.
        answer: In one sentence.
        accuracy: What the winner's verdict means, in one sentence.
        way: From the original to the winner.
        plans: Every plan that was tried, the original first.
        untried: How many were not.
        left_out: The first of these, each with its reason.
        surveys: Of regions; empty where none was taken.
        node: What was asked of a node.
        asked: The plans that were asked for.
        notes: What a person should know.
    """

    headline = ("run", "model", "answer", "budget", "finished")
    table = "plans"

    run: str
    model: str
    answer: str
    accuracy: str
    budget: str
    finished: str
    way: tuple[ChangeTold, ...]
    plans: tuple[PlanTold, ...]
    untried: int
    left_out: tuple[Untried, ...]
    surveys: tuple[SurveyTold, ...]
    node: NodeTold | None = None
    asked: tuple[PlanTold, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def winner(self) -> PlanTold:
        """What the search hands out; the original where nothing is better."""
        return next((one for one in self.plans if one.winner), self.plans[0])
