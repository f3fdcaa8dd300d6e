"""Read what a bundle says about itself, without opening a session."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ortune.bundle.engine import archive, consent
from ortune.bundle.engine.manifest import EVIDENCE, Manifest, PackedPlan
from ortune.core.backend import Backend
from ortune.core.errors import BadModel
from ortune.core.facts import Facts
from ortune.core.step import Recipe
from ortune.core.study import Job, Study
from ortune.core.trial import Trial
from ortune.search.experiment.ledger import disable_imports


@dataclass(frozen=True)
class BundleEvidence:
    """Enough to judge the packed plans again, raw samples included.

    Of a plan there is the search's trial and, where it was a finalist, the final one. `noise` says
    how far the machine could be trusted; `samples` are counted by the part of the data.
    """

    job: Job
    facts: Facts
    baseline: Trial
    trials: tuple[Trial, ...]
    noise: Mapping[str, str] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    finished: str = "done"
    command: str = ""


def collect_evidence(study: Study, trials: Sequence[Trial]) -> BundleEvidence:
    """Collect the evidence of some trials' plans."""
    keys = {trial.key for trial in trials}
    return BundleEvidence(
        replace(study.job, budget=study.budget),
        study.header.facts,
        study.baseline,
        tuple(trial for trial in study.trials if trial.key in keys),
        study.noise,
        study.samples,
        study.finished,
        study.command,
    )


T = TypeVar("T")


@dataclass(frozen=True)
class BundledPlan:
    """One plan of a bundle, read."""

    packed: PackedPlan
    backend: Backend
    recipe: Recipe


@dataclass(frozen=True)
class Bundle:
    """A bundle's evidence and plans, at least one: the one to run first."""

    path: str
    manifest: Manifest
    plans: tuple[BundledPlan, ...]
    evidence: BundleEvidence

    @property
    def backend(self) -> Backend:
        """The settings of the first plan."""
        return self.plans[0].backend

    @property
    def recipe(self) -> Recipe:
        """How the first plan's models were made."""
        return self.plans[0].recipe


def read_bundle(path: str | Path) -> Bundle:
    """Check every member's digest and return what the bundle says.

    Raises BadModel: it is no bundle, was changed after packing, or holds settings that a bundle
    may not make; OrtuneError: it needs a plugin that is not installed.
    """
    path = Path(path)
    if not archive.is_bundle(path):
        raise BadModel(f"{path.name} is not a bundle", fix="give a file made by pack")
    with archive.open_bundle(path) as (file, manifest):
        for member in manifest.members:
            archive.extract_member(file, manifest, member, None)
        names = [
            EVIDENCE,
            *(name for plan in manifest.plans for name in (plan.settings, plan.recipe)),
        ]
        texts = {name: file.read(name) for name in names}
    plans = []
    for packed in manifest.plans:
        settings, recipe_name = packed.settings, packed.recipe
        where = f"{path.name}: '{settings}'"
        backend: Backend = consent.decode_member(Backend, texts[settings], where)
        where = f"{path.name}: '{recipe_name}'"
        recipe = consent.decode_member(Recipe, texts[recipe_name], where)
        consent.require_listed(backend, packed.custom_ops)
        plans.append(BundledPlan(packed, backend, recipe))
    evidence = consent.decode_member(BundleEvidence, texts[EVIDENCE], f"{path.name}: '{EVIDENCE}'")
    keys = {"", *(trial.key for trial in evidence.trials)}
    for plan in manifest.plans:
        if plan.key not in keys:
            raise BadModel(
                f"{path.name}: its evidence says nothing of '{plan.plan}'",
                fix="pack the run again",
            )
    job = disable_imports(evidence.job, evidence.trials)
    return Bundle(str(path), manifest, tuple(plans), replace(evidence, job=job))
