"""Read what a bundle says about itself, without opening a session."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ortune.bundle.evidence import BundleEvidence
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings, OrtuneError, UnknownPlugin
from ortune.core.plugins import codec, stored
from ortune.core.step import Recipe
from ortune.engine import archive, consent
from ortune.engine.manifest import EVIDENCE, RECIPE, SETTINGS, Manifest
from ortune.engine.settings import demand_settings
from ortune.experiment.ledger import unimported

T = TypeVar("T")


@dataclass(frozen=True)
class Bundle:
    """A bundle's settings and evidence.

    Attributes:
        backend: The settings that it runs with.
        recipe: How its model was made.
    """

    path: str
    manifest: Manifest
    backend: Backend
    recipe: Recipe
    evidence: BundleEvidence


def read(path: str | Path) -> Bundle:
    """Check every member's digest and return what the bundle says.

    Raises:
        BadModel: It is no bundle, was changed after packing, or holds settings that a bundle may
            not make.
        OrtuneError: It needs a plugin that is not installed.
    """
    path = Path(path)
    if not archive.is_bundle(path):
        raise BadModel(f"{path.name} is not a bundle", fix="give a file made by pack")
    with archive.opened(path) as (file, manifest):
        for member in manifest.members:
            archive.take(file, manifest, member, None)
        texts = {name: _json(file.read(name), name, path) for name in (SETTINGS, RECIPE, EVIDENCE)}
    demand_settings(texts[SETTINGS], f"{path.name}: '{SETTINGS}'")
    backend: Backend = _decoded(Backend, texts[SETTINGS], SETTINGS, path)
    recipe = _decoded(Recipe, texts[RECIPE], RECIPE, path)
    consent.listed(backend, manifest.custom_ops)
    evidence = _decoded(BundleEvidence, texts[EVIDENCE], EVIDENCE, path)
    job = unimported(evidence.job, evidence.trials)
    return Bundle(str(path), manifest, backend, recipe, replace(evidence, job=job))


def _decoded(kind: type[T], data: Any, member: str, path: Path) -> T:
    """Build what a member says, none of it more than a file from elsewhere may set."""
    where = f"{path.name}: '{member}'"
    try:
        stored.demand(data, where)
    except BadSettings as error:
        raise BadModel(error.what, fix=error.fix) from None
    try:
        return codec.decode(kind, data)
    except UnknownPlugin:
        raise
    except OrtuneError as error:
        raise BadModel(f"{where} cannot be used: {error.what}", fix=error.fix) from None


def _json(content: bytes, member: str, path: Path) -> Any:
    try:
        return stored.loads(content)
    except ValueError as error:
        raise BadModel(
            f"{path.name}: '{member}' cannot be read: {error}", fix="pack the run again"
        ) from error
