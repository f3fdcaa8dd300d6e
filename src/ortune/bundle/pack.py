"""Pack a trial of a study into one file that serves exactly as it was measured."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.bundle.content import Content, content
from ortune.bundle.evidence import evidence
from ortune.bundle.package import package
from ortune.bundle.target import Target
from ortune.core.atomic_write import replacing
from ortune.core.backend import Backend
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.plugins import codec, stored
from ortune.core.study import Study
from ortune.core.trial import Status, Trial
from ortune.engine import archive
from ortune.engine.manifest import (
    EVIDENCE,
    MANIFEST,
    RECIPE,
    SETTINGS,
    Member,
)

_CHUNK = 1 << 20
_ANOTHER = "pack another trial"
_DATE = (1980, 1, 1, 0, 0, 0)
"""A fixed date: the same trial packs to the same bytes."""


def pack(
    study: Study | str | Path,
    path: str | Path,
    *,
    trial: str | None = None,
    unconfirmed: bool = False,
    force: bool = False,
    custom_ops: bool = False,
    target: str | Target | None = None,
) -> Path:
    """Pack the winner: model, plain original, settings, recipe, evidence, golden samples.

    Models are stored, not compressed. The file appears when it is whole. What a reader would
    refuse is not written.

    Args:
        study: The run; with `target` a bundle's path will do.
        path: Where it goes, by custom ``NAME.ortune``; with `target` a folder.
        trial: Start of the key of another trial than the best.
        unconfirmed: Pack one that no finalist's pairs have confirmed as faster and within the
            budget.
        force: Replace an existing file. Inputs of the run are never replaced.
        custom_ops: Run the code that the run names, where golden samples of the trial are not
            there yet.
        target: Write a package for another runtime in place of a bundle, such as
            ``triton(release=26.05)``: of the best confirmed plan that it can run.

    Raises:
        OrtuneError: The trial cannot be packed or is not confirmed, a part of the run is gone,
            its settings are none that a bundle may hold, or the path cannot be written; the
            package does not do what the bundle does.
    """
    if target is not None:
        bundles = candidates(study, trial=trial, unconfirmed=unconfirmed, custom_ops=custom_ops)
        with closing(bundles):
            return package(bundles, path, target, force=force, custom_ops=custom_ops).path
    if not isinstance(study, Study):
        raise BadSettings(f"'{study}' is no study", fix="give what read_study or optimize returns")
    path = Path(path)
    chosen = study.best if trial is None else _find(study, trial)
    if not (unconfirmed or study.confirmed(chosen)):
        raise OrtuneError(
            f"trial {chosen.key[:8]} ({chosen.plan}) is not confirmed: no finalist that is faster "
            "and keeps the budget",
            fix="give --unconfirmed (unconfirmed=True) to pack it all the same",
        )
    _demand_portable(chosen.plan.backend)
    parts = content(study, chosen, custom_ops=custom_ops)
    texts = {
        SETTINGS: _json(_settings(chosen.plan.backend, parts)),
        RECIPE: _json(chosen.plan.recipe),
        EVIDENCE: _json(evidence(study, chosen), indent=None),
    }
    with replacing(path, force=force, sources=parts.files.values()) as draft:
        with zipfile.ZipFile(draft, "w") as bundle:
            members = {name: _text(bundle, name, data) for name, data in texts.items()}
            for name, source in parts.files.items():
                members[name] = _file(bundle, name, source)
            _text(bundle, MANIFEST, replace(parts.manifest, members=members).write())
        with archive.opened(draft):  # what a reader would refuse is not written
            pass
    return path


def candidates(
    study: Study | str | Path,
    *,
    trial: str | None = None,
    unconfirmed: bool = False,
    custom_ops: bool = False,
) -> Generator[Path]:
    """Yield bundles to make a package of, the best first; each is gone when the next is asked for.

    That is a given bundle itself. Of a study it is the trial asked for, or the winner, the other
    confirmed plans and the original.

    Raises:
        OrtuneError: As `pack`.
    """
    if not isinstance(study, Study):
        yield Path(study)
        return
    chosen = _confirmed(study) if trial is None else [_find(study, trial)]
    with TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / f"{Path(study.root).name or 'run'}.ortune"
        for one in chosen:
            yield pack(
                study,
                path,
                trial=one.key,
                unconfirmed=unconfirmed,
                force=True,
                custom_ops=custom_ops,
            )


def _confirmed(study: Study) -> list[Trial]:
    """Return the winner, then what else was confirmed, in the order that was wanted."""
    rest = [one for one in study.final if study.confirmed(one)]
    ordered = [one for near in study.job.wanted.ordered(rest) for one in near]
    found = {one.key: one for one in (study.best, *ordered)}
    return [*found.values(), *[study.baseline] * (study.baseline.key not in found)]


def _find(study: Study, key: str) -> Trial:
    """Return the trial that a person means.

    Raises:
        OrtuneError: There is none, there are several, or it failed.
    """
    found = {t.key: t for t in study.trials if key and t.key.startswith(key)}
    if len(found) != 1:
        what = "several trials begin" if found else "no trial begins"
        keys = list(found) or list({t.key: None for t in study.trials})
        raise OrtuneError(
            f"{what} with '{key}'", fix=f"use one of: {', '.join(one[:8] for one in keys[:12])}"
        )
    trial = next(iter(found.values()))
    if trial.error or trial.status is Status.FAILED:
        raise OrtuneError(
            f"trial {trial.key[:8]} ({trial.plan}) failed: {trial.why or trial.error}",
            fix="pack one that ran",
        )
    return trial


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


def _settings(backend: Backend, parts: Content) -> Backend:
    """Return the plan's backend with the libraries named as in the bundle."""
    named = tuple(parts.libraries[text] for text in backend.custom_ops)
    return replace(backend, custom_ops=named) if named else backend  # type: ignore[call-arg]


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
