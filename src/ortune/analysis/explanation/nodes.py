"""All that a run knows of one node."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ortune.analysis.explanation.result import NodeTold, SurveyTold
from ortune.core import wording
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.step import Quantizer
from ortune.core.study import Study
from ortune.core.trial import Trial
from ortune.model.analysis.precision import named, precisions
from ortune.model.graph import edit
from ortune.model.io import file
from ortune.quantization.node_filter import names
from ortune.quantization.roles import PREPARES, role
from ortune.regions.choice import bare

_NEAR = 3


@dataclass(frozen=True)
class KnownNodes:
    """The nodes that a run can be asked about.

    Attributes:
        ops: Node of the original -> operator; empty where its file is gone.
        built: Node of the winner's file -> precision.
        notes: Files that could not be read.
    """

    ops: Mapping[str, str]
    built: Mapping[str, str]
    notes: tuple[str, ...] = ()


def known(study: Study) -> KnownNodes:
    """Read the nodes of the original and of the winner; a file that is gone is told."""
    notes: list[str] = []
    originals = [model for path in study.models.values() if (model := _read(Path(path), notes))]
    ops = {n.name: n.op_type for model in originals for n in edit.every_node(model) if n.name}
    artefact = study.best.artefact
    files = sorted((Path(study.root) / artefact).rglob("*.onnx")) if artefact else ()
    models = [model for path in files if (model := _read(path, notes))]
    built: dict[str, str] = {}
    for model in models if artefact else originals:
        built |= precisions(model)
    return KnownNodes(ops, built, tuple(notes))


def _read(path: Path, notes: list[str]) -> ir.Model | None:
    try:
        return file.load(path)
    except (OrtuneError, OSError) as error:
        what = error.what if isinstance(error, OrtuneError) else f"{path}: {error.strerror}"
        notes.append(f"its nodes are not known: {what}")
        return None


def told(study: Study, name: str, of: KnownNodes, surveys: Sequence[SurveyTold]) -> NodeTold:
    """Tell all that is known of a node.

    Raises:
        BadSettings: No file and no survey of the run knows it; close names are told.
    """
    regions = {
        survey.key: one
        for survey in surveys
        for one in survey.regions
        if name in (one.cost.region, *one.cost.nodes)
    }
    every = [*dict.fromkeys([*of.ops, *of.built, *_surveyed(surveys)])]
    if name not in every and named(of.built, name) is None:
        raise _unknown(name, every)
    left: dict[int, str] = {}
    taken: dict[int, str] = {}
    for number, trial in enumerate(wording.latest(study)):
        for step, may in _asked(trial, name):
            (taken if may else left)[number] = step
    return NodeTold(
        name,
        of.ops.get(name, ""),
        named(of.built, name) or "",
        study.best.plan.backend.lossy,
        tuple(_notes(study.best)),
        regions,
        left,
        taken,
    )


def _surveyed(surveys: Sequence[SurveyTold]) -> Iterator[str]:
    for survey in surveys:
        for one in survey.regions:
            yield from (one.cost.region, *one.cost.nodes)


def _asked(trial: Trial, name: str) -> Iterator[tuple[str, bool]]:
    """Yield each step that decides a precision and takes a node, or leaves it out by name."""
    for step in trial.plan.recipe.steps:
        if isinstance(step, Quantizer) and role(step) not in PREPARES:
            only = getattr(step, "include", ())
            excluded = names(getattr(step, "exclude", ()))(name)
            may = not excluded and (not only or names(only)(name))
            if may or excluded:
                yield str(bare(step)), may


def _notes(best: Trial) -> Iterator[str]:
    """Yield what the winner's quantizers say of what they did."""
    steps = {str(s) for s in best.plan.recipe.steps if isinstance(s, Quantizer)}
    for one in best.edits:
        if one.note and one.step in steps:
            yield f"{one.step}: {one.note}"


def _unknown(name: str, every: Sequence[str]) -> BadSettings:
    near = [one for one in every if name and name.lower() in one.lower()][:_NEAR]
    near = near or difflib.get_close_matches(name, every, n=_NEAR, cutoff=0.4)
    if not every:
        return BadSettings(
            f"no node '{name}': the run's models are gone", fix="put them back where they were"
        )
    return BadSettings(
        f"no node '{name}' in the run's models",
        fix=f"give a node's whole name, such as {', '.join(near or every[:_NEAR])}",
    )
