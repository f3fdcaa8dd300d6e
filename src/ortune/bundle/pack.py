"""Pack trials of a study into one file that serves exactly as it was measured."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ortune.bundle.choose import chosen
from ortune.bundle.content import Content, content
from ortune.bundle.evidence import evidence
from ortune.bundle.sbom import sbom
from ortune.core.atomic_write import replacing
from ortune.core.backend import Backend
from ortune.core.errors import BadSettings
from ortune.core.outputs import free
from ortune.core.plugins import codec, stored
from ortune.core.study import Study
from ortune.core.trial import Trial
from ortune.engine import archive
from ortune.engine.manifest import EVIDENCE, LICENCE, MANIFEST, SBOM, Member
from ortune.engine.signing import signature_of, signer

_CHUNK = 1 << 20
_ANOTHER = "pack another trial"
_DATE = (1980, 1, 1, 0, 0, 0)
"""A fixed date: the same trials pack to the same bytes."""


def pack(
    study: Study,
    path: str | Path,
    *,
    trial: str | None = None,
    with_: str | Sequence[str] = (),
    per_backend: bool = False,
    unconfirmed: bool = False,
    licence: str = "",
    sign: str | Path | None = None,
    force: bool = False,
    custom_ops: bool = False,
) -> Path:
    """Pack the winner: model, plain original, settings, recipe, evidence, golden samples.

    Models are stored, not compressed. The file appears when it is whole. What a reader would
    refuse is not written.

    Args:
        path: Where it goes, by custom ``NAME.ortune``.
        trial: Start of the key of another trial than the best.
        with_: Starts of the keys of further trials, whose plans are taken where those before them
            do not run.
        per_backend: The best confirmed plan of each backend as well, such as the CPU's beside
            OpenVINO's.
        unconfirmed: Pack also what no finalist's pairs have confirmed as faster and within the
            budget.
        licence: Of the model, as an SPDX expression such as ``Apache-2.0``.
        sign: Private key, a PEM file: a signature is written beside, ``NAME.ortune.sig``.
        force: Replace an existing file. Inputs of the run are never replaced.
        custom_ops: Run the code that the run names, where golden samples of a trial are not there
            yet.

    Raises:
        OrtuneError: A trial cannot be packed or is not confirmed, a part of the run is gone, its
            settings are none that a bundle may hold, the key cannot sign, or the path cannot be
            written.
    """
    path = Path(path)
    signed = None if sign is None else signer(Path(sign))
    _demand_licence(licence)
    others = with_.split(",") if isinstance(with_, str) else with_
    trials = chosen(study, trial, others, per_backend=per_backend, unconfirmed=unconfirmed)
    for one in trials:
        _demand_portable(one.plan.backend)
    if signed is not None:
        free(signature_of(path), force, Path(sign or ""))
    parts = content(study, trials, licence=licence, custom_ops=custom_ops)
    with replacing(path, force=force, sources=parts.files.values()) as draft:
        _write(draft, parts, {**_texts(parts, trials), EVIDENCE: _evidence(study, trials)})
        with archive.opened(draft):  # what a reader would refuse is not written
            pass
    if signed is not None:
        signed(path, force)
    return path


def _texts(parts: Content, trials: Sequence[Trial]) -> dict[str, bytes]:
    """Return settings and recipe of every plan."""
    texts = {}
    for packed, backend, trial in zip(parts.manifest.plans, parts.settings, trials, strict=True):
        texts[packed.settings] = _json(backend)
        texts[packed.recipe] = _json(trial.plan.recipe)
    return texts


def _evidence(study: Study, trials: Sequence[Trial]) -> bytes:
    return _json(evidence(study, trials), indent=None)


def _write(draft: Path, parts: Content, texts: Mapping[str, bytes]) -> None:
    """Write the zip: texts, files, then what tells of them."""
    with zipfile.ZipFile(draft, "w") as bundle:
        members = {name: _text(bundle, name, data) for name, data in texts.items()}
        for name, source in parts.files.items():
            members[name] = _file(bundle, name, source)
        manifest = replace(parts.manifest, members=members)
        members[SBOM] = _text(bundle, SBOM, sbom(manifest, parts.plugins))
        _text(bundle, MANIFEST, replace(manifest, members=members).write())


def _demand_licence(text: str) -> None:
    """Refuse what cannot be an SPDX expression.

    Raises:
        BadSettings: It holds other characters, or is long.
    """
    if not LICENCE.fullmatch(text):
        raise BadSettings(
            f"'{text}' is no licence", fix="write an SPDX expression, such as Apache-2.0"
        )


def _demand_portable(backend: Backend) -> None:
    """Refuse settings that a reader of the bundle would refuse.

    Raises:
        BadSettings: They are not in the table, or name code that a bundle cannot bring.
    """
    stored.demand(codec.encode(backend), "a bundle", fix=_ANOTHER)
    named = set(stored.code(codec.encode(backend))) - set(backend.custom_ops)
    if named:
        raise BadSettings(
            f"a bundle cannot bring the code of {backend}: {', '.join(sorted(named))}",
            fix=_ANOTHER,
        )


def _json(value: object, indent: int | None = 1) -> bytes:
    return json.dumps(codec.encode(value), indent=indent).encode()


def _text(bundle: zipfile.ZipFile, name: str, text: bytes) -> Member:
    bundle.writestr(_entry(name, zipfile.ZIP_DEFLATED), text)
    return Member(hashlib.sha256(text).hexdigest(), len(text))


def _file(bundle: zipfile.ZipFile, name: str, source: Path) -> Member:
    """Copy and digest in one pass; what is digested is what is in the zip."""
    digest, size = hashlib.sha256(), 0
    entry = _entry(name, zipfile.ZIP_STORED)
    entry.file_size = source.stat().st_size
    with source.open("rb") as stream, bundle.open(entry, "w", force_zip64=True) as out:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            out.write(chunk)
    return Member(digest.hexdigest(), size)


def _entry(name: str, how: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = how
    entry.external_attr = 0o644 << 16
    return entry
