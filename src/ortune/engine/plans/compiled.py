"""Models that a provider compiled when a bundle was packed, for one device and release."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ortune.core.backend import Backend
from ortune.core.errors import BadModel, OrtuneError
from ortune.core.plugins import codec, stored
from ortune.engine import archive
from ortune.engine.manifest import COMPILED, Manifest
from ortune.runtimes.onnxruntime.compiled import Compiling, contexts

HOME = "compiled"
"""Folder of a plan's compiled models."""


@dataclass(frozen=True)
class CompiledPlan:
    """What a plan's models were compiled to.

    Attributes:
        plan: Place of the plan in the bundle, from 0.
        models: Model name -> member of the compiled model.
        made_for: What must be the same where it is opened: provider, versions, device.
    """

    plan: int
    models: Mapping[str, str]
    made_for: Mapping[str, str]


def packed_compiled(
    name: str, file: zipfile.ZipFile, manifest: Manifest
) -> dict[int, CompiledPlan]:
    """Return place of a plan -> its compiled models; empty where the bundle has none.

    Args:
        name: Of the bundle, for errors.

    Raises:
        BadModel: What the bundle says of them was changed, or does not fit it.
    """
    if COMPILED not in manifest.members:
        return {}
    archive.take(file, manifest, COMPILED, None)
    try:
        data = stored.loads(file.read(COMPILED))
        if not isinstance(data, list):
            raise ValueError("it is no list")
        found = [codec.decode(CompiledPlan, one) for one in data]
    except (ValueError, OrtuneError) as error:
        raise BadModel(
            f"{name}: '{COMPILED}' cannot be read: {error}", fix=stored.DISTRUST
        ) from error
    places = {one.plan: one for one in found}
    for place, one in places.items():
        fits = place in range(len(manifest.plans)) and set(one.models) == set(manifest.fallback)
        inside = all(
            member in manifest.members and member.endswith(".onnx")
            for member in one.models.values()
        )
        if not fits or not inside or len(places) != len(found):
            raise BadModel(
                f"{name}: '{COMPILED}' names models or plans that it has not", fix=stored.DISTRUST
            )
    return places


def unfit(compiled: CompiledPlan, backend: Backend) -> str:
    """Say why compiled models are not for this machine; empty where they are.

    Raises:
        OrtuneError: The backend cannot say what it would compile for.
    """
    if not isinstance(backend, Compiling):
        return f"'{backend.name()}' opens no compiled models"
    here = backend.compiled_for()
    return "; ".join(
        f"{name}: {compiled.made_for.get(name, 'none')} then, {here.get(name, 'none')} now"
        for name in sorted({*compiled.made_for, *here})
        if compiled.made_for.get(name) != here.get(name)
    )


def demand_embedded(path: Path, member: str) -> None:
    """Refuse a compiled model of a bundle that keeps what it was compiled to in another file.

    Raises:
        BadModel: It does, or nothing in it is compiled.
    """
    found = contexts(path)
    if not found or not all(one.embedded for one in found):
        what = "names a file outside itself" if found else "holds nothing that is compiled"
        raise BadModel(f"'{member}' {what}", fix=stored.DISTRUST)
