"""The plans that a search may try next, with where each comes from."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from ortune.core.backend import Backend
from ortune.core.plan_label import label_backend, label_plan
from ortune.core.step import AS_IS
from ortune.core.trial import Plan, Status, Trial, Verdict
from ortune.search.compare import select_leaders
from ortune.search.expectation.features import backend_precision
from ortune.search.experiment.misread import mend_plan
from ortune.search.policy import View
from ortune.search.recipe.space import Space, join_recipes

REGIONS = "regions"  # stage of mixtures of regions
SETTINGS = "runtime"  # stage of plans that change settings of the runtime alone
LEADERS = 3  # plans around which settings are tried, and whose settings the others get


@dataclass(frozen=True)
class Candidate:
    """A plan without a trial.

    Attributes:
        neighbour_of: Key of the trial of which it changes settings alone.
    """

    plan: Plan
    stage: str
    why: str
    neighbour_of: str = ""


def list_screening_plans(view: View) -> Iterator[Candidate]:
    """Yield the original without padding and on every backend and precision: nothing to build.

    Where the workload wants several thread counts, with the best bet and with all CPUs.
    """
    original = Plan(AS_IS, view.space.baseline)
    unpadded = view.space.without_padding(original)
    if unpadded is not None:
        yield Candidate(unpadded, "screen", "the original, padding cut off")
    by_place: dict[tuple[str, int], list[Plan]] = {}
    for backend in _list_variants(view.space):
        place = backend_precision(backend), backend.threads
        by_place.setdefault(place, []).append(Plan(AS_IS, backend))
    for alike in by_place.values():
        plan = min(alike, key=lambda plan: plan.settings)
        if plan != original:
            yield Candidate(
                plan, "screen", f"the original on {label_backend(plan.backend, original.backend)}"
            )


def list_candidates(view: View) -> list[Candidate]:
    """Return every plan without a trial that follows from the space and the trials so far."""
    by_spelling: dict[str, Candidate] = {}
    listed = (Candidate(plan, "search", "") for plan in view.space.all_plans)
    ways = (
        list_mended_plans,
        _list_rescues,
        _list_model_plans,
        _list_extensions,
        _list_transfers,
        _list_settings_changes,
    )
    for candidate in chain(listed, *(way(view) for way in ways)):
        if candidate.plan.spelling not in by_spelling and not view.has_sound_trial(candidate.plan):
            by_spelling[candidate.plan.spelling] = candidate
    return [
        candidate
        for candidate in by_spelling.values()
        if not (view.space.exact and candidate.plan.lossy)
    ]


def _list_variants(space: Space) -> Iterator[Backend]:
    for target in space.targets:
        yield from space.list_variants(target)


def list_mended_plans(view: View) -> Iterator[Candidate]:
    """Yield plans that fail by their runtime's fault without the pairs that it misreads."""
    for trial in _list_search_trials(view):
        plan = mend_plan(trial)
        if plan is not None and not view.has_trial(plan):
            yield Candidate(plan, "rescue", str(trial.misreading))


def _list_rescues(view: View) -> Iterator[Candidate]:
    """Yield what may bring plans back into the budget that run and fail it."""
    for trial in _list_search_trials(view):
        if trial.status is Status.FAILS and trial.stage != REGIONS:
            for plan in view.space.list_rescues(trial.plan):
                yield Candidate(
                    plan,
                    "rescue",
                    f"{_name_plan(view, trial.plan)} is outside the accuracy budget",
                )


def _list_model_plans(view: View) -> Iterator[Candidate]:
    """Yield for one model of a job what fails for all, and what keeps the budget for one each."""
    kept: list[Trial] = []
    for trial in _list_search_trials(view):
        undecided = trial.score is not None and trial.score.verdict is Verdict.UNDECIDED
        if trial.plan.recipe.only:
            kept += [trial] * (trial.status is Status.OK)
        elif undecided or trial.status is Status.FAILS:
            fault = "may be" if undecided else "is"
            for plan in view.space.list_model_plans(trial.plan):
                why = f"{_name_plan(view, trial.plan)} {fault} outside the accuracy budget"
                yield Candidate(plan, "rescue", why)
    for first, second in combinations(kept, 2):
        joined = join_recipes(first.plan.recipe, second.plan.recipe)
        if joined is not None and first.plan.backend == second.plan.backend:
            names = " and ".join(_name_plan(view, trial.plan) for trial in (first, second))
            yield Candidate(
                Plan(joined, first.plan.backend), "search", f"{names} keep the accuracy budget"
            )


def _list_extensions(view: View) -> Iterator[Candidate]:
    """Yield what goes further than the leaders."""
    for leader in select_leaders(view.trials, view.goal)[:LEADERS]:
        if leader.stage != REGIONS and not view.space.is_unpadded(leader.plan):
            for plan in view.space.list_extensions(leader.plan):
                yield Candidate(
                    plan,
                    "search",
                    f"{_name_plan(view, leader.plan)} is within the accuracy budget",
                )


def _list_transfers(view: View) -> Iterator[Candidate]:
    """Yield recipes that were scored, such as rescues, on the other variants of their backend."""
    variants = list(_list_variants(view.space))
    for trial in _list_search_trials(view):
        if trial.score is None or view.space.is_unpadded(trial.plan):
            continue
        for backend in variants:
            if type(backend) is type(trial.plan.backend):
                why = f"{_name_plan(view, trial.plan)} with other settings"
                yield Candidate(Plan(trial.plan.recipe, backend), "rescue", why)


def _list_settings_changes(view: View) -> Iterator[Candidate]:
    """Yield one other setting around the leaders, the leaders' settings together, and buckets."""
    best = select_leaders(view.trials, view.goal)
    unbucketed = [t for t in best if not view.space.is_unpadded(t.plan)][:LEADERS]
    for leader in unbucketed:
        for setting, plans in view.space.list_neighbours(leader.plan).items():
            for plan in plans:
                why = f"another {setting} for {_name_plan(view, leader.plan)}"
                yield Candidate(plan, SETTINGS, why, leader.key)
        for other in unbucketed:
            if type(other.plan.backend) is type(leader.plan.backend):
                name, settings = (_name_plan(view, t.plan) for t in (leader, other))
                why = f"{name} with the settings of {settings}"
                plan = Plan(leader.plan.recipe, other.plan.backend)
                yield Candidate(plan, SETTINGS, why)
    for leader in best[:1]:
        cut = view.space.without_padding(leader.plan)
        if cut is not None and not view.space.is_unpadded(leader.plan):
            yield Candidate(cut, "padding", "the best plan, padding cut off")


def _name_plan(view: View, plan: Plan) -> str:
    return label_plan(plan, view.trials[0].plan)


def _list_search_trials(view: View) -> Iterable[Trial]:
    return (t for t in view.trials if t.part == "search" and t.stage != "baseline")


def find_obstacle(plan: Plan, alike: Sequence[Trial]) -> str:
    """Say why a plan cannot run or would change nothing; empty where it may.

    What did not build, changed nothing or is too large is so everywhere. What died in a session
    dies again under the same hint, whatever its other settings are, unless it ran there with
    others: then they are to blame. `alike` are the search's trials of the plan's steps.
    """
    why, ran = "", False
    for trial in alike:
        there = backend_precision(trial.plan.backend) == backend_precision(plan.backend)
        match trial.status:
            case Status.UNCHANGED | Status.TOO_LARGE:
                return trial.why
            case Status.FAILED if not trial.reproduce:
                return f"could not be built: {trial.why}"
            case Status.FAILED if there:
                why = why or f"failed there before: {trial.why}"
            case Status.FAILED:
                continue
            case _ if there:
                ran = True
    return "" if ran else why
