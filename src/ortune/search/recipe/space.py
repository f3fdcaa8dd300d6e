"""The candidates: tens of plans. The order of passes is never searched."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Self

from ortune.backends.bucketed import Bucketed
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE, Capabilities
from ortune.core.facts import Facts
from ortune.core.plugins import catalog, codec
from ortune.core.self_agreement import SelfAgreement
from ortune.core.step import AS_IS, Quantizer, Recipe, Step, Transform
from ortune.core.trial import Plan
from ortune.core.workload import Workload
from ortune.search.recipe.built import steps_key

_UNKNOWN = Capabilities()
FIXED = "fixed shapes"  # name of the recipe that fixes the inputs' sizes and does no more


@dataclass(frozen=True)
class SearchTarget:
    """A backend to search on and the fields that the user pinned.

    Attributes:
        splits: Thread counts that the workload wants tried, best bet first; 0 is all CPUs.
        rules: Steps of the user's own, which the search applies too.
        portable: Nothing that is bound to this machine's CPU is offered.
    """

    backend: Backend
    capabilities: Capabilities = field(compare=False)
    pinned: frozenset[str] = frozenset()
    splits: tuple[int, ...] = ()
    rules: tuple[Transform, ...] = ()
    portable: bool = False
    environment: str = HERE

    def leave_out(self, agreement: SelfAgreement) -> Self:
        """Return it without the optimizers of the runtime that make the original wrong."""
        backend = self.backend.leave_out(agreement.disable, agreement.level)
        return replace(self, backend=backend)

    def apply_pins(self, variant: Backend) -> Backend:
        """Put the pinned values back into a variant."""
        return replace(variant, **{name: getattr(self.backend, name) for name in self.pinned})

    def list_variants(self, facts: Facts, workload: Workload) -> list[Backend]:
        """Return the option sets to try with every recipe.

        Of the splits the best bet and the one on all CPUs; the others are coordinates.
        """
        backends = self.backend.variants(facts, workload, self.capabilities)
        thread_counts = dict.fromkeys((*self.splits[:1], *self.splits[-1:]))
        if thread_counts:
            backends = [replace(v, threads=threads) for v in backends for threads in thread_counts]
        return list(
            dict.fromkeys(
                variant for v in backends if self.is_allowed(variant := self.apply_pins(v))
            )
        )

    def list_coordinates(self, backend: Backend, facts: Facts) -> dict[str, list[Backend]]:
        """Return the settings to try around a backend, within the pins: the splits first.

        A number of threads that resets a pinned field, as one thread does with spinning, is tried
        by itself.
        """
        split = [replace(backend, threads=threads) for threads in self.splits]
        settings: dict[str, list[Backend]] = {"split": split}
        for name, values in backend.coordinates(facts, self.capabilities).items():
            settings[name] = [
                variant if self.is_allowed(variant) else replace(backend, threads=variant.threads)
                for variant in values
            ]
        return {
            name: [
                variant for variant in values if variant != backend and self.is_allowed(variant)
            ]
            for name, values in settings.items()
        }

    def is_allowed(self, backend: Backend) -> bool:
        """Whether a backend keeps to the pins, and is portable where that is asked."""
        keeps_pins = type(backend) is type(self.backend) and self.apply_pins(backend) == backend
        # Every CPU is suited by all of its threads or one, unless they are pinned.
        suits_all = backend.portable and (backend.threads <= 1 or "threads" in self.pinned)
        return keeps_pins and (not self.portable or suits_all)


def make_clean_recipe(
    facts: Facts,
    backend: Backend | None = None,
    capabilities: Capabilities = _UNKNOWN,
    rules: Sequence[Transform] = (),
) -> Recipe:
    """Return every automatic transform that applies, in stage order, then name order.

    A model of an older opset than they write for is raised first, as a verified step.

    Args:
        backend: Where it will run; without one, only what suits every backend.
        rules: More transforms, each in its stage.
    """
    kinds = [catalog.load_plugin(Transform, name) for name in catalog.list_plugins(Transform)]
    transforms = [*(cls() for cls in kinds if cls.automatic), *rules]
    fit = sorted((t for t in transforms if t.applies(facts)), key=lambda t: (t.stage, t.name()))
    if backend is None:
        fit = [t for t in fit if type(t).suits is Transform.suits]
    else:
        fit = [t for t in fit if t.suits(backend, capabilities)]
    needed = max((t.needs_opset for t in fit), default=0)
    if needed > facts.opset:
        fit.insert(
            0, codec.build_dataclass(catalog.load_plugin(Transform, "raise-opset"), {"to": needed})
        )
    return Recipe("clean", tuple(fit))


def list_recipes(
    facts: Facts,
    backend: Backend,
    capabilities: Capabilities,
    rules: Sequence[Transform] = (),
    *,
    exact: bool = False,
    first: Sequence[Transform] = (),
) -> Iterator[Recipe]:
    """Yield a backend's recipes: as it came, clean, and clean with each quantizer's offers.

    Rules of the user's are a recipe of their own beside the clean one, and part of the offers'.

    Args:
        first: Steps in front of every recipe but the first, and a recipe of their own.
    """
    yield AS_IS
    if first:
        yield Recipe(FIXED, tuple(first))
    base = Recipe("clean", (*first, *make_clean_recipe(facts, backend, capabilities).steps))
    if len(base.steps) > len(first):
        yield base
    if rules:
        with_rules = make_clean_recipe(facts, backend, capabilities, rules).steps
        base = Recipe("clean + rules", (*first, *with_rules))
        yield base
    if exact:
        return
    # What quantizers offer, best bet first, by their rank, then by name; behind a quantizer's own
    # offers come its mixes with others. Convolutions with static ranges and recurrent layers with
    # dynamic ones are one more: neither takes the other's layers.
    kinds = [catalog.load_plugin(Quantizer, name) for name in catalog.list_plugins(Quantizer)]
    kinds.sort(key=lambda kind: kind.rank)
    by_name = {kind.name(): tuple(kind.offers(facts, backend, capabilities)) for kind in kinds}
    all_offers: list[tuple[Quantizer, ...]] = []
    for kind in kinds:
        all_offers += [(offer,) for offer in by_name[kind.name()]]
        all_offers += kind.mixes(facts, backend, capabilities)
    static, dynamic = by_name.get("int8-static", ()), by_name.get("int8-dynamic", ())
    if facts.has("LSTM") and facts.has("Conv") and static and dynamic:
        all_offers.insert(0, (static[0], dynamic[0]))
    for steps in all_offers:
        ready = dict.fromkeys(t for step in steps for t in step.prepares(facts, backend))
        yield Recipe(" + ".join(map(str, steps)), (*base.steps, *ready, *steps))


def _make_portable(candidates: Iterable[Recipe]) -> Iterator[Recipe]:
    """Yield recipes in their portable form, each once."""
    seen: set[str] = set()
    for recipe in candidates:
        portable = recipe.made_portable()
        if portable is not None and portable.key not in seen:
            seen.add(portable.key)
            yield portable


@dataclass(frozen=True)
class Space:
    """Every plan that a search may try: a policy chooses among them and their order.

    Attributes:
        targets: Backends to search on, with their pins.
        exact: No lossy recipe or backend is offered.
        buckets: The baseline without padding, where the data are padded and that can be cut.
        fixing: The step that fixes the inputs' sizes, where all samples have one shape.
        fixed: It is part of every recipe: the user wants a model that takes that shape alone.
        models: Names of the job's models, where there are several.
    """

    facts: Facts
    targets: Sequence[SearchTarget]
    workload: Workload
    baseline: Backend
    exact: bool = False
    buckets: Bucketed | None = None
    fixing: Transform | None = None
    fixed: bool = False
    models: tuple[str, ...] = ()

    def list_variants(self, target: SearchTarget) -> list[Backend]:
        """Return the option sets to try with every recipe, best bet first."""
        backends = target.list_variants(self.facts, self.workload)
        return [backend for backend in backends if not (self.exact and backend.lossy)]

    def list_recipes(self, target: SearchTarget, backend: Backend) -> Iterator[Recipe]:
        """Yield a variant's recipes; see `list_recipes`."""
        offered, rules = target.capabilities, target.rules
        first = (self.fixing,) if self.fixed and self.fixing is not None else ()
        candidates = list_recipes(
            self.facts, backend, offered, rules, exact=self.exact, first=first
        )
        return _make_portable(candidates) if target.portable else candidates

    def list_neighbours(self, plan: Plan) -> dict[str, list[Plan]]:
        """Return setting -> plans that differ from a plan in this runtime setting alone."""
        kind = type(plan.backend)
        target = next((t for t in self.targets if type(t.backend) is kind), None)
        if target is None:
            return {}
        settings = target.list_coordinates(plan.backend, self.facts)
        return {
            name: [Plan(plan.recipe, backend) for backend in values]
            for name, values in settings.items()
        }

    @cached_property
    def all_plans(self) -> tuple[Plan, ...]:
        """Every recipe on every variant: kept, as a policy asks for every proposal."""
        return tuple(
            Plan(recipe, backend)
            for target in self.targets
            for backend in self.list_variants(target)
            for recipe in self.list_recipes(target, backend)
        )

    def list_rescues(self, plan: Plan) -> Sequence[Plan]:
        """Return the plans that may bring a failed one back into the budget, best bet first."""
        if plan not in self._rescues:
            last, before = plan.recipe.quantizer, plan.recipe.steps[:-1]
            rescues = last.rescues(self.facts) if last is not None else ()
            self._rescues[plan] = tuple(_make_plan(plan, before, steps) for steps in rescues)
        return self._rescues[plan]

    def list_model_plans(self, plan: Plan) -> Sequence[Plan]:
        """Return a plan for each of the job's models alone; none where there is one model."""
        names = self.models if plan.recipe.lossy and not plan.recipe.only else ()
        kind, recipes = catalog.load_plugin(Quantizer, "only-models"), []
        for name in names:
            steps = (
                codec.build_dataclass(kind, {"names": (name,), "step": step})
                if isinstance(step, Quantizer)
                else step
                for step in plan.recipe.steps
            )
            recipes.append(Recipe(f"{plan.recipe.name} for {name}", tuple(steps)))
        return tuple(Plan(recipe, plan.backend) for recipe in recipes)

    def list_extensions(self, plan: Plan) -> Sequence[Plan]:
        """Return the plans that go further than one that keeps the budget."""
        return tuple(list_extension_plans(plan, self.facts))

    @cached_property
    def _rescues(self) -> dict[Plan, Sequence[Plan]]:
        return {}

    def without_padding(self, plan: Plan) -> Plan | None:
        """Return a plan behind the buckets; None where no padding can be cut."""
        if self.buckets is None or not all(step.keeps_io for step in plan.recipe.steps):
            return None
        return Plan(plan.recipe, self.buckets.wrap_backend(plan.backend))

    def is_unpadded(self, plan: Plan) -> bool:
        """Whether a plan runs behind the buckets; those that the user asked for do not count."""
        return self.buckets is not None and isinstance(plan.backend, Bucketed)


def join_recipes(first: Recipe, second: Recipe) -> Recipe | None:
    """Return two recipes for different models as one; None where they are for the same.

    Exact steps, which are for all models, come first.
    """
    if not first.only or not second.only or first.only & second.only:
        return None
    steps = dict.fromkeys((*first.steps, *second.steps))
    exact = [step for step in steps if not isinstance(step, Quantizer)]
    lossy = [step for step in steps if isinstance(step, Quantizer)]
    return Recipe(f"{first.name} + {second.name}", (*exact, *lossy))


def trial_key(job: str, plan: Plan) -> str:
    """Digest everything a trial's result depends on."""
    source = catalog.source_digest(plan.backend)
    return codec.digest([job, steps_key(plan.recipe.steps), codec.encode(plan.backend), source])


def list_extension_plans(plan: Plan, facts: Facts) -> Iterator[Plan]:
    """Yield what goes further than a plan that keeps the budget, prepared by the same steps."""
    steps = plan.recipe.steps
    last = steps[-1] if steps else None
    if not isinstance(last, Quantizer):
        return
    kit, names = len(steps) - 1, plan.recipe.name.split(" + ")  # a rescue is named by its kit too
    while kit and (isinstance(steps[kit - 1], Quantizer) or str(steps[kit - 1]) in names):
        kit -= 1
    for more in last.extensions(facts):
        yield _make_plan(
            plan, steps[:kit], (*(_retarget_step(step, more) for step in steps[kit:-1]), more)
        )


def _make_plan(plan: Plan, before: tuple[Step, ...], steps: tuple[Step, ...]) -> Plan:
    name = " + ".join(str(step) for step in steps)
    return Plan(Recipe(name, (*before, *steps)), plan.backend)


def _retarget_step(step: Step, last: Quantizer) -> Step:
    """Return a step that prepares weights with the one that it prepares them for."""
    if any(option.name == "before" for option in fields(step)):
        return replace(step, before=last)  # type: ignore[call-arg]
    return step
