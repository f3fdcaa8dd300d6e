"""Read a run and say why it came to its answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ortune.bundle.engine import archive
from ortune.core import wording
from ortune.core.acceptance import Outcome, classify_outcome
from ortune.core.errors import BadData, BadSettings, OrtuneError, find_nearest
from ortune.core.plan_label import ORIGINAL
from ortune.core.request import make_verb
from ortune.core.result import TableResult
from ortune.core.roles import PREPARES, find_deciding_step, find_step_role
from ortune.core.step import Edit, Quantizer
from ortune.core.study import Study
from ortune.core.trial import Interval, Score, Trial, UntriedPlan
from ortune.graph.analysis.precision import find_precision, map_precisions
from ortune.graph.io import file
from ortune.graph.ir import edit
from ortune.quantizers.common.nodes import make_name_matcher
from ortune.reporting.explanation.requests import Explain
from ortune.reporting.sections.history import list_contributions
from ortune.reporting.sections.verdict import describe_answer
from ortune.search.experiment import surveys as journal
from ortune.search.experiment.ledger import read_study
from ortune.search.mixed_precision.choice import parse_assignment, strip_node_filters
from ortune.search.mixed_precision.survey import MixtureOutcome, RegionCost, Survey, is_unchanged

KEPT, GIVEN = "kept", "left"
"""How it begins what became of a region: it has the surveyed precision in the winner, or not."""


@dataclass(frozen=True)
class TrialExplanation:
    """One trial of a plan."""

    part: str  # ``search``, or ``final`` in fresh pairs
    effort: str
    outcome: str
    why: str
    ratio: Interval | None  # of the latencies, plan over original
    predicted: Interval | None
    scores: tuple[Score, ...]
    seconds: float
    stopped: str = ""  # why its timing ended part way; empty where it did not


@dataclass(frozen=True)
class MixtureExplanation:
    """A plan that leaves some regions of a surveyed plan in float."""

    survey: str  # key of the surveyed plan's trial
    # Regions that the surveyed precision was taken from, in the graph's order.
    given_back: tuple[str, ...]
    regions: int
    expected_cost: float  # single costs of the regions that keep the precision, added up
    # Single gains of those regions, added up: a share of the original's latency.
    expected_gain: float
    measured_gain: float | None  # that of the plan whole; None where it was not timed
    # Of its latency, as it was proposed; None without a line in the journal.
    expected_ratio: float | None = None
    expected_lost: float | None = None  # loss over what the budget lets a plan lose, likewise
    lost: float | None = None  # that as it was measured; None where it was not scored
    # It was the best plan when it was measured; None without a line in the journal.
    kept: bool | None = None
    why: str = ""


@dataclass(frozen=True)
class PlanExplanation:
    """A plan's whole record."""

    number: int  # its place among the plans tried; 0 is the original
    key: str
    plan: str  # in full
    label: str  # written for people, by what differs from the baseline
    steps: tuple[str, ...]
    backend: str
    stage: str  # what the search was about
    proposed: str
    outcome: str  # what became of it, by its last trial
    why: str  # of that trial
    edits: tuple[Edit, ...]
    size: int | None  # bytes of the built files
    trials: tuple[TrialExplanation, ...]
    winner: bool  # it is what the search hands out
    # Which regions it leaves out, where it is one of a surveyed plan.
    mixture: MixtureExplanation | None = None
    error: str | None = None
    reproduce: str | None = None  # command that runs its worker again
    # What its runtime made of the layers that its files give integers; empty where it was no
    # finalist.
    integers: str = ""

    @property
    def ratio(self) -> Interval | None:
        """Latency ratio of the plan's last trial that was timed."""
        return next((attempt.ratio for attempt in reversed(self.trials) if attempt.ratio), None)

    @property
    def score(self) -> Score | None:
        """The budget's, of its last trial that was scored."""
        return next(
            (attempt.scores[0] for attempt in reversed(self.trials) if attempt.scores), None
        )


@dataclass(frozen=True)
class RegionExplanation:
    """What a region was tried at, what that gave, and what became of it."""

    cost: RegionCost  # of the region alone, as it was surveyed
    winner: str  # its precision in the winner's file; empty where that does not tell
    left_in: tuple[int, ...]  # numbers of the plans that leave it out of the surveyed precision
    became: str  # what became of it in the winner, in a few words
    why: str  # in one line, for a person


@dataclass(frozen=True)
class SurveyExplanation:
    """All regions of a surveyed plan."""

    key: str
    plan: str
    label: str
    precision: str  # the step that decides its layers' precision
    regions: tuple[RegionExplanation, ...]
    whole_cost: float  # what the metric loses with all regions at it
    unit: str  # of accuracy costs
    seconds: float
    error: str


@dataclass(frozen=True)
class NodeExplanation:
    """All that is known of one node."""

    node: str
    op: str  # its operator in the original; empty where that is gone
    winner: str  # its precision in the winner's file; empty where it has no node of its own there
    rounded: bool  # the winner's backend computes in fewer bits than the file says
    notes: tuple[str, ...]  # what the winner's quantizers say of what they leave in float
    regions: Mapping[str, RegionExplanation]  # key of a survey's plan -> the region that it is in
    left_out: Mapping[int, str]  # number of a plan -> the step that leaves it out by name
    taken: Mapping[int, str]  # number of a plan -> the step that may take it


@dataclass(frozen=True)
class ChangeExplanation:
    """One row of the way from the original to the winner."""

    what: str
    label: str
    number: int  # of the plan that stands for it
    ratio: Interval | None  # of that plan's latency, over the original's
    why: str


@dataclass(frozen=True, repr=False)
class Explanation(TableResult):
    """Why a search came to its answer.

    Attributes:
        accuracy: What the winner's verdict means, in one sentence.
        way: From the original to the winner.
        plans: Every plan that was tried, the original first.
        left_out: The first of these, each with its reason.
        surveys: Of regions; empty where none was taken.
    """

    headline = ("run", "model", "answer", "budget", "finished")
    table = "plans"

    run: str
    model: str
    answer: str
    accuracy: str
    budget: str
    finished: str
    way: tuple[ChangeExplanation, ...]
    plans: tuple[PlanExplanation, ...]
    untried: int
    left_out: tuple[UntriedPlan, ...]
    surveys: tuple[SurveyExplanation, ...]
    node: NodeExplanation | None = None
    asked: tuple[PlanExplanation, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def winner(self) -> PlanExplanation:
        """What the search hands out; the original where nothing is better."""
        return next((plan for plan in self.plans if plan.winner), self.plans[0])


_SHORTEST, _NEAR = 4, 3
NO_SURVEY = "precision by region was not measured"


def run(request: Explain) -> Explanation:
    """Explain a run, or a node or a plan of it."""
    root = Path(request.run)
    if root.is_file() and archive.is_bundle(root):
        raise BadData(
            f"{root} is a bundle, which lacks the record of the search",
            fix="give the run's folder that it was packed from",
        )
    study = read_study(root)
    return explain_study(study, journal.read_journal(root), node=request.node, plan=request.plan)


explain = make_verb(Explain, run)


def explain_study(
    study: Study,
    records: Sequence[Survey | MixtureOutcome],
    *,
    node: str | None = None,
    plan: str | None = None,
) -> Explanation:
    """Explain a study, which may be unfinished.

    Args:
        records: Of its regions, as its journal has them.

    Raises:
        BadSettings: There is no such node or plan.
    """
    latest = wording.list_latest_trials(study)
    surveys = [record for record in records if isinstance(record, Survey)]
    tried = {record.key: record for record in records if isinstance(record, MixtureOutcome)}
    mixtures = {
        number: mixture
        for number, trial in enumerate(latest)
        if (mixture := _describe_mixture(trial, _find_survey(trial, surveys), tried)) is not None
    }
    plans = tuple(
        _describe_plan(study, number, last, mixtures.get(number))
        for number, last in enumerate(latest)
    )
    ops: dict[str, str] = {}
    built: dict[str, str] = {}
    notes: list[str] = []
    if surveys or node is not None:
        ops, built = _read_nodes(study, notes)
    best = study.best
    winner, winning = [trial.key for trial in latest].index(best.key), _find_survey(best, surveys)
    survey_reports = tuple(
        _describe_survey(study, record, mixtures, winner if record is winning else None, built)
        for record in surveys
    )
    numbers = {trial.key: number for number, trial in enumerate(latest)}
    return Explanation(
        run=study.root,
        model=study.job.model,
        answer=describe_answer(study),
        accuracy=wording.explain_verdict(best.score) if best.key != study.baseline.key else "",
        budget=str(study.budget),
        finished=study.finished,
        way=tuple(
            ChangeExplanation(
                name, label, numbers[t.key], t.ratio, wording.find_search_trial(study, t).proposed
            )
            for name, label, t in list_contributions(study)
        ),
        plans=plans,
        untried=study.counts[Outcome.UNTRIED],
        left_out=study.ending.left_out,
        surveys=survey_reports,
        node=None if node is None else _describe_node(study, node, ops, built, survey_reports),
        asked=() if plan is None else _match_plans(plans, plan),
        notes=(*notes, *(() if surveys else (f"{NO_SURVEY} in this run",))),
    )


def _describe_plan(
    study: Study, number: int, last: Trial, mixture: MixtureExplanation | None
) -> PlanExplanation:
    trials = [trial for trial in study.trials if trial.key == last.key]
    return PlanExplanation(
        number=number,
        key=last.key,
        plan=ORIGINAL if last.key == study.baseline.key else str(last.plan),
        label=study.label(last.plan),
        steps=tuple(map(str, last.plan.recipe.steps)),
        backend=str(last.plan.backend),
        stage=trials[0].stage,
        proposed=trials[0].proposed,
        outcome=str(classify_outcome(last)) if number else "the original",
        why=wording.explain_outcome(last),
        edits=last.edits,
        size=last.size,
        trials=tuple(
            TrialExplanation(
                part=t.part,
                effort=t.effort,
                outcome=str(classify_outcome(t)),
                why=wording.explain_outcome(t),
                ratio=t.shown_ratio,
                predicted=t.predicted,
                scores=t.scores,
                seconds=t.seconds,
                stopped=t.stopped,
            )
            for t in trials
        ),
        winner=last.key == study.best.key,
        mixture=mixture,
        error=last.error,
        reproduce=last.reproduce,
        integers=wording.format_integer_use(last.integers) if last.integers else "",
    )


def _match_plans(plans: Sequence[PlanExplanation], text: str) -> tuple[PlanExplanation, ...]:
    """Return the plans of this number, name (several backends may have it) or start of a key."""
    if text.isdecimal() and len(text) < _SHORTEST and int(text) < len(plans):
        return (plans[int(text)],)
    if text == "winner":
        return tuple(plan for plan in plans if plan.winner)
    recipes = {plan.number: plan.plan.partition(" @ ")[0] for plan in plans}
    matches = [plan for plan in plans if text in (plan.plan, plan.label, recipes[plan.number])]
    if len(text) >= _SHORTEST:
        matches = matches or [plan for plan in plans if plan.key.startswith(text)]
    if matches:
        return tuple(matches)
    candidates = [*dict.fromkeys([*recipes.values(), *(plan.plan for plan in plans)])]
    raise BadSettings(
        f"no plan '{text}' in this run",
        fix=f"give a number from 0 to {len(plans) - 1}, the start of a key, or a name such as "
        f"{', '.join(_suggest_names(text, candidates))}",
    )


def _suggest_names(text: str, candidates: Sequence[str]) -> Sequence[str]:
    """Return names that hold a text, else names that are like it, else the first."""
    return find_nearest(text, candidates, _NEAR) or candidates[:_NEAR]


def _find_survey(trial: Trial, surveys: Sequence[Survey]) -> Survey | None:
    """Return the survey whose plan a trial's is, up to regions that it leaves in float."""
    for survey in surveys:
        same_place = survey.plan.backend == trial.plan.backend
        if same_place and parse_assignment(survey, trial.plan.recipe) is not None:
            return survey
    return None


def _describe_mixture(
    trial: Trial, survey: Survey | None, tried: Mapping[str, MixtureOutcome]
) -> MixtureExplanation | None:
    """Say which regions a plan leaves out of a survey's precision; None where it leaves none."""
    if survey is None:
        return None
    in_float = parse_assignment(survey, trial.plan.recipe) or frozenset()
    measured = [cost for cost in survey.regions if not cost.error and not is_unchanged(cost)]
    kept = [cost for cost in measured if cost.region not in in_float]
    if len(kept) == len(measured):
        return None
    line = tried.get(trial.key)
    return MixtureExplanation(
        survey=survey.key,
        given_back=tuple(cost.region for cost in measured if cost.region in in_float),
        regions=len(survey.regions),
        expected_cost=sum(cost.accuracy_cost.value for cost in kept),
        expected_gain=sum(cost.time_gained.value for cost in kept),
        measured_gain=None if trial.shown_ratio is None else 1 - trial.shown_ratio.value,
        expected_ratio=None if line is None else line.expected_ratio,
        expected_lost=None if line is None else line.expected_lost,
        lost=None if line is None else line.lost,
        kept=None if line is None else line.kept,
        why="" if line is None else line.why,
    )


def _describe_survey(
    study: Study,
    survey: Survey,
    mixtures: Mapping[int, MixtureExplanation],
    winner: int | None,
    built: Mapping[str, str],
) -> SurveyExplanation:
    """Say what became of every region of a survey.

    Args:
        mixtures: Number of a plan -> what it leaves out, of any survey.
        winner: Its number, where its steps are the surveyed ones up to what they leave out.
        built: Node of the winner's file -> precision.
    """
    at = find_deciding_step(survey.plan.recipe.steps)
    step = "" if at is None else str(strip_node_filters(survey.plan.recipe.steps[at]))
    regions = []
    for cost in survey.regions:
        plans = [(number, plan) for number, plan in mixtures.items() if plan.survey == survey.key]
        left_in = tuple(number for number, plan in plans if cost.region in plan.given_back)
        why = ""
        if cost.error:
            became = f"not measured: {cost.error}"
        elif is_unchanged(cost):
            became = f"not changed by {step}"
        else:
            became = f"{KEPT} in {step}"
            if winner is None:
                became = "the winner has another precision"
            elif winner in left_in:
                became = f"{GIVEN} in float"
            gain = f"{100 * cost.time_gained.value:.2g} % of the time"
            why = (
                f": alone {step} costs {cost.accuracy_cost.value:.3g} of accuracy and saves {gain}"
            )
        in_file = (
            find_precision(built, name) for name in (cost.region, *cost.layers, *cost.nodes)
        )
        precision = "" if winner is None else next(filter(None, in_file), "")
        regions.append(RegionExplanation(cost, precision, left_in, became, became + why))
    return SurveyExplanation(
        key=survey.key,
        plan=str(survey.plan),
        label=study.label(survey.plan),
        precision=step,
        regions=tuple(regions),
        whole_cost=survey.whole_cost,
        unit=survey.unit,
        seconds=survey.seconds,
        error=survey.error,
    )


def _read_nodes(study: Study, notes: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the original's nodes' operators and the winner's precisions, of files still there."""

    def read(path: Path) -> ir.Model | None:
        try:
            return file.load(path)
        except (OrtuneError, OSError) as error:
            text = error.what if isinstance(error, OrtuneError) else f"{path}: {error.strerror}"
            notes.append(f"its nodes are not known: {text}")
            return None

    originals = [model for path in study.models.values() if (model := read(Path(path)))]
    models, artefact = originals, study.best.artefact
    if artefact:
        files = sorted((Path(study.root) / artefact).rglob("*.onnx"))
        models = [model for path in files if (model := read(path))]
    ops = {n.name: n.op_type for model in originals for n in edit.walk_nodes(model) if n.name}
    return ops, {name: text for model in models for name, text in map_precisions(model).items()}


def _describe_node(
    study: Study,
    name: str,
    ops: Mapping[str, str],
    built: Mapping[str, str],
    surveys: Sequence[SurveyExplanation],
) -> NodeExplanation:
    """Tell all that is known of a node; refuse one that no file and no survey of the run knows."""
    keyed_regions = [(survey.key, region) for survey in surveys for region in survey.regions]
    inside = [
        text for _, region in keyed_regions for text in (region.cost.region, *region.cost.nodes)
    ]
    candidates = [*dict.fromkeys([*ops, *built, *inside])]
    if not candidates:
        raise BadSettings(
            f"no node '{name}': the run's models are gone", fix="put them back where they were"
        )
    if name not in candidates and find_precision(built, name) is None:
        raise BadSettings(
            f"no node '{name}' in the run's models",
            fix=f"give a node's whole name, such as {', '.join(_suggest_names(name, candidates))}",
        )
    excluding_steps: dict[int, str] = {}
    including_steps: dict[int, str] = {}
    for number, trial in enumerate(wording.list_latest_trials(study)):
        for step in trial.plan.recipe.steps:
            if not isinstance(step, Quantizer) or find_step_role(step) in PREPARES:
                continue
            only = getattr(step, "include", ())
            if make_name_matcher(getattr(step, "exclude", ()))(name):
                excluding_steps[number] = str(strip_node_filters(step))
            elif not only or make_name_matcher(only)(name):
                including_steps[number] = str(strip_node_filters(step))
    best = study.best
    steps = {str(s) for s in best.plan.recipe.steps if isinstance(s, Quantizer)}
    return NodeExplanation(
        node=name,
        op=ops.get(name, ""),
        winner=find_precision(built, name) or "",
        rounded=best.plan.backend.lossy,
        notes=tuple(f"{e.step}: {e.note}" for e in best.edits if e.note and e.step in steps),
        regions={key: r for key, r in keyed_regions if name in (r.cost.region, *r.cost.nodes)},
        left_out=excluding_steps,
        taken=including_steps,
    )
