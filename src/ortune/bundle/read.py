"""Read what a bundle says about itself, without opening a session."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortune.bundle.evidence import BundleEvidence
from ortune.core.backend import Backend
from ortune.core.errors import BadModel
from ortune.core.plugins import codec
from ortune.core.step import Recipe
from ortune.engine import archive
from ortune.engine.manifest import EVIDENCE, RECIPE, SETTINGS, Manifest


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
        BadModel: It is no bundle, or was changed after packing.
        OrtuneError: It needs a plugin that is not installed.
    """
    path = Path(path)
    if not archive.is_bundle(path):
        raise BadModel(f"{path.name} is not a bundle", fix="give a file made by pack")
    with archive.opened(path) as (file, manifest):
        for member in manifest.members:
            archive.take(file, manifest, member, None)
        texts = {name: _json(file.read(name), name, path) for name in (SETTINGS, RECIPE, EVIDENCE)}
    return Bundle(
        str(path),
        manifest,
        codec.decode(Backend, texts[SETTINGS]),
        codec.decode(Recipe, texts[RECIPE]),
        codec.decode(BundleEvidence, texts[EVIDENCE]),
    )


def _json(content: bytes, member: str, path: Path) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise BadModel(
            f"{path.name}: '{member}' cannot be read: {error}", fix="pack the run again"
        ) from error
