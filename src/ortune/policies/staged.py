"""Fixed stages: ranked plans, rescues of what fails, runtime settings, padding cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from ortune.core.acceptance import accepted
from ortune.core.backend import Backend
from ortune.core.plugins.bounds import SHARE
from ortune.core.step import AS_IS, Step
from ortune.core.trial import Plan, Proposal, Status, Trial
from ortune.recipe.space import Space, merge
from ortune.search.compare import leaders, quicker, to_beat
from ortune.search.policy import LeftOut, Policy, View

_MOST_SETTINGS = (3, 12)
"""Runtime settings tried around a plan: in a short search, and from three minutes on."""


@dataclass(frozen=True)
class Staged(Policy):
    """Try ranked plans, save those that are fast but fail, then descend over runtime settings.

    Attributes:
        plans: Share of the time until which ranked plans are begun; one is tried in any case.
        rescues: Share until which the accuracy kit is tried.
        settings: Share until which runtime settings are tried.
        padding: Share until which the best plan is tried behind buckets.
        worth_saving: A failed plan is rescued where its latency lies below this, in that of the
            best plan that keeps the budget.
    """

    plans: Annotated[float, SHARE] = 0.6
    rescues: Annotated[float, SHARE] = 0.65
    settings: Annotated[float, SHARE] = 0.7
    padding: Annotated[float, SHARE] = 0.8
    worth_saving: Annotated[float, SHARE] = 0.97

    def next(self, view: View) -> Proposal | None:
        """Return the first untried plan of the first stage that has one and the time for it."""
        return next((step for step in self._walk(view) if isinstance(step, Proposal)), None)

    def left_out(self, view: View) -> LeftOut:
        """Say which stages had more to try."""
        found = LeftOut()
        for step in self._walk(view):
            if isinstance(step, LeftOut):
                found = found.and_also(step)
        return found

    def _walk(self, view: View) -> Iterator[Proposal | LeftOut]:
        """Yield what each stage would try next, or what it leaves out."""
        yield from self._plans(view)
        yield from self._rescues(view)
        yield from self._settings(view)
        yield from self._padding(view)

    def _plans(self, view: View) -> Iterator[Proposal | LeftOut]:
        """Best bets first."""
        found = ranked(view.space)
        untried = [plan for plan in found if not view.tried(plan)]
        if not untried:
            return
        if untried[0] is not found[0] and view.remaining(self.plans) <= 0:
            yield LeftOut.of(untried, "the time for ranked plans was up")
            return
        place = found.index(untried[0]) + 1
        why = f"bet {place} of {len(found)}"
        yield Proposal(untried[0], "search", why)

    def _rescues(self, view: View) -> Iterator[Proposal | LeftOut]:
        """Spend the accuracy kit on plans that are faster than the best but fail the budget."""
        planned = _of_stages(view, "search")
        for failed in self._worth_saving(view, planned):
            for plan in view.space.rescues(failed.plan):
                trial = view.find(plan)
                if trial is None:
                    if view.remaining(self.rescues) <= 0:
                        text = f"time is up: {failed.plan.recipe.name} was not saved"
                        yield LeftOut.of([plan], "the time for rescues was up", text, late=False)
                        return
                    why = f"{failed.plan} is faster than the best but fails the budget"
                    yield Proposal(plan, "rescue", why)
                    return
                if accepted(trial, strict=False):
                    break

    def _worth_saving(self, view: View, trials: Sequence[Trial]) -> list[Trial]:
        """Return the plans that fail for accuracy alone and are clearly faster, fastest first.

        One a quantizer and backend: what saves one of its settings is tried with the fastest.
        """
        bare = [t for t in trials if not view.space.is_unpadded(t.plan)]
        limit = self.worth_saving * to_beat(bare, view.wanted)
        failed = [
            t for t in trials if t.status is Status.FAILS and t.ratio and t.ratio.value < limit
        ]
        found: dict[tuple[type[Step], type[Backend]], Trial] = {}
        for trial in sorted(failed, key=lambda t: t.ratio.value if t.ratio else 1.0):
            step = trial.plan.recipe.quantizer
            if step is not None:
                found.setdefault((type(step), type(trial.plan.backend)), trial)
        return list(found.values())

    def _settings(self, view: View) -> Iterator[Proposal | LeftOut]:
        """Descend around the best plan; the second best gets what that gained."""
        found = _bare(view, _of_stages(view, "search", "rescue"))[:2]
        gained: dict[type[Backend], tuple[Backend, Backend]] = {}
        for leader in found:
            kind, proposal = type(leader.plan.backend), None
            if kind in gained:
                better, base = gained[kind]
                plan = Plan(leader.plan.recipe, merge(better, leader.plan.backend, base))
                if plan != leader.plan and not view.tried(plan):
                    why = "the settings that the best plan gained by"
                    proposal = Proposal(plan, "runtime", why)
            else:
                best, proposal = self._descend(view, leader)
                gained[kind] = (best.plan.backend, leader.plan.backend)
            if proposal is not None:
                late = view.remaining(self.settings) <= 0
                gone = LeftOut.of([proposal.plan], "the time for runtime settings was up")
                yield gone if late else proposal
                return

    def _descend(self, view: View, best: Trial) -> tuple[Trial, Proposal | None]:
        """Repeat the descent over the settings tried so far; return its best and the next one."""
        few, many = _MOST_SETTINGS
        most = min(many, max(few, int(view.total / 15)))

        def present() -> Plan:
            return best.plan

        for index, (setting, plan) in enumerate(view.space.walk(present), 1):
            if index > most:
                break
            if view.space.exact and plan.backend.lossy:
                continue
            trial = view.find(plan)
            if trial is None:
                why = f"{setting}, around {best.plan}"
                return best, Proposal(plan, "runtime", why, neighbour_of=best.key)
            if accepted(trial, strict=False) and quicker(trial, best):
                best = trial
        return best, None

    def _padding(self, view: View) -> Iterator[Proposal | LeftOut]:
        """Put the best plan behind the buckets too."""
        best = next(iter(_bare(view, view.trials)), None)
        plan = view.space.unpadded(best.plan) if best is not None else None
        if plan is None or view.tried(plan):
            return
        late = view.remaining(self.padding) <= 0
        why = "the best plan, padding cut off"
        gone = LeftOut.of([plan], "the time for plans behind buckets was up")
        yield gone if late else Proposal(plan, "padding", why)


def ranked(space: Space) -> list[Plan]:
    """Return the plans of the first stage, best bets first, without the baseline itself.

    A bet's rank is the sum of two places: of the recipe among the backend's recipes (quantizers
    come before the merely cleaned model) and of the variant among the backend's variants. Behind
    buckets the original comes before all.
    """
    bets: list[tuple[float, Plan]] = []
    for target in space.targets:
        for place, backend in enumerate(space.variants(target)):
            offered = list(space.recipes(target, backend))
            for index, recipe in enumerate(offered):
                worth = len(offered) if recipe.name == "clean" else max(0, index - 1)
                bets.append((worth + 1.5 * place, Plan(recipe, backend)))
    original = Plan(AS_IS, space.baseline)
    found = [plan for _, plan in sorted(bets, key=lambda bet: bet[0]) if plan != original]
    first = space.unpadded(original)
    return list(dict.fromkeys([*([first] if first is not None else []), *found]))


def _of_stages(view: View, *stages: str) -> list[Trial]:
    """Return the original and the trials of some stages."""
    return [t for t in view.trials if t.stage in ("baseline", *stages)]


def _bare(view: View, trials: Sequence[Trial]) -> list[Trial]:
    """Return verified plans that may win, the best first; none behind buckets."""
    found = leaders(trials, view.wanted)
    return [trial for trial in found if not view.space.is_unpadded(trial.plan)]
