"""Members of a bundle as they are written: the same trials pack to the same bytes.

The bill of materials is CycloneDX 1.6 as JSON. A copy of a bundle may say how it is served.
"""

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ortune.bundle.engine import archive
from ortune.bundle.engine.instances import Serving
from ortune.bundle.engine.manifest import (
    FORMAT,
    LIBRARIES,
    MANIFEST,
    SBOM,
    SERVING,
    Manifest,
    Member,
)
from ortune.core.atomic_write import open_output_draft
from ortune.core.errors import BadModel
from ortune.core.plugins import codec, stored

_SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
_BUNDLE = "bundle"
_NOT_PACKAGES = ("python",)


def build_sbom(manifest: Manifest, plugins: Mapping[str, str]) -> bytes:
    """Return a manifest's members and the packages that it was measured with, as bytes of a bill.

    It has no serial number and no date: both would differ from one packing to the next. `plugins`:
    package that the plans take a plugin of -> version.
    """
    models = {*manifest.fallback.values(), *(m for p in manifest.plans for m in p.models.values())}
    files = []
    for name, member in manifest.members.items():
        kind = "machine-learning-model" if name in models else "data"
        kind = "library" if name.startswith(f"{LIBRARIES}/") else kind
        files.append(_make_component(kind, name, member))
    versions = {**manifest.versions, **plugins}
    whole: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": _BUNDLE,
        "name": ", ".join(PurePosixPath(member).stem for member in manifest.fallback.values()),
        "description": f"A model tuned by ortune: {manifest.plan}",
    }
    if manifest.licence:
        whole["licenses"] = [{"expression": manifest.licence}]
    tool = {"type": "application", "name": "ortune", "version": manifest.ortune}
    packages = [_make_package(name, version) for name, version in versions.items()]
    bill = {
        "$schema": _SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {"components": [tool]},
            "component": whole,
            "properties": [
                *(
                    {"name": f"ortune:{name}", "value": value}
                    for name, value in manifest.provenance.items()
                ),
                *(
                    {"name": f"ortune:plan {place}", "value": plan.plan}
                    for place, plan in enumerate(manifest.plans, 1)
                ),
            ],
        },
        "components": [*files, *packages],
        "dependencies": list(
            _list_dependencies(manifest, [package["bom-ref"] for package in packages])
        ),
    }
    return json.dumps(bill, indent=1).encode()


def _make_component(kind: str, name: str, member: Member) -> dict[str, Any]:
    return {
        "type": kind,
        "bom-ref": name,
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": member.sha256}],
    }


def _make_package(name: str, version: str) -> dict[str, Any]:
    """Describe a package of Python, or Python itself."""
    if name in _NOT_PACKAGES:
        return {"type": "platform", "bom-ref": name, "name": name, "version": version}
    purl = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version.replace('+', '%2B')}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _list_dependencies(manifest: Manifest, packages: list[str]) -> Iterator[dict[str, Any]]:
    """Say that the bundle is made of its members, and what was built from which original."""
    yield {"ref": _BUNDLE, "dependsOn": [*manifest.members, *packages]}
    model_originals: dict[str, list[str]] = {}
    for plan in manifest.plans:
        for name, model in plan.models.items():
            original = manifest.fallback[name]
            if model != original and original not in model_originals.setdefault(model, []):
                model_originals[model].append(original)
    yield from (
        {"ref": model, "dependsOn": originals} for model, originals in model_originals.items()
    )


_CHUNK = 1 << 20
_DATE = (1980, 1, 1, 0, 0, 0)
"""A fixed date: the same trials pack to the same bytes."""


def write_text_member(
    bundle: zipfile.ZipFile, name: str, content: bytes, *, packed: bool = True
) -> Member:
    """Write a text."""
    how = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    bundle.writestr(_make_entry(name, how), content)
    return Member(hashlib.sha256(content).hexdigest(), len(content))


def write_file_member(bundle: zipfile.ZipFile, name: str, source: Path) -> Member:
    """Write a file as it is."""
    with source.open("rb") as stream:
        return write_stream_member(bundle, name, stream, source.stat().st_size)


def write_stream_member(
    bundle: zipfile.ZipFile, name: str, source: IO[bytes], size: int
) -> Member:
    """Copy and digest in one pass; what is digested is what is in the zip."""
    digest, count = hashlib.sha256(), 0
    entry = _make_entry(name, zipfile.ZIP_STORED)
    entry.file_size = size
    with bundle.open(entry, "w", force_zip64=True) as out:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            count += len(chunk)
            out.write(chunk)
    return Member(digest.hexdigest(), count)


def _make_entry(name: str, how: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = how
    entry.external_attr = 0o644 << 16
    return entry


def with_serving(
    bundle: str | Path, out: str | Path, how: Serving, *, force: bool = False
) -> Path:
    """Write a copy of a bundle, whole or not at all, that engines and servers open as `how` says.

    A signature is of a file's bytes, so the copy has none. Raises BadModel: it is no bundle, or
    was changed after packing; OrtuneError: the copy cannot be written.
    """
    path, bundle = Path(out), Path(bundle)
    with open_output_draft(path, force=force, sources=[bundle]) as draft:
        write_serving(bundle, draft, how)
    return path


def write_serving(bundle: Path, draft: Path, how: Serving) -> None:
    """Write the copy to a path of the caller's; BadModel where it is no bundle, or changed."""
    if not archive.is_bundle(bundle):
        raise BadModel(f"{bundle.name} is not a bundle", fix="give a file made by pack")
    with archive.open_bundle(bundle) as (source, manifest), zipfile.ZipFile(draft, "w") as target:
        members = {}
        for name in manifest.members:
            if name in (SERVING, SBOM):
                continue
            archive.extract_member(source, manifest, name, None)  # is it what the manifest says?
            entry = source.getinfo(name)
            if entry.compress_type != zipfile.ZIP_STORED:
                members[name] = write_text_member(target, name, source.read(name))
                continue
            with source.open(name) as stream:
                members[name] = write_stream_member(target, name, stream, entry.file_size)
        fields = codec.encode(how)
        text = json.dumps(
            {name: fields[name] for name in stored.list_settable_rules(Serving)}, indent=1
        )
        members[SERVING] = write_text_member(target, SERVING, text.encode(), packed=False)
        if SBOM in manifest.members:
            archive.extract_member(source, manifest, SBOM, None)
            try:
                bill = stored.parse_json(source.read(SBOM))
                kept = [part for part in bill["components"] if part.get("bom-ref") != SERVING]
                kept.append(_make_component("data", SERVING, members[SERVING]))
                for entry in bill["dependencies"]:
                    if entry["ref"] == _BUNDLE and SERVING not in entry["dependsOn"]:
                        entry["dependsOn"].append(SERVING)
                text = json.dumps({**bill, "components": kept}, indent=1)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BadModel(
                    f"{bundle.name}: its bill of materials cannot be read: {error}",
                    fix=stored.DISTRUST,
                ) from error
            members[SBOM] = write_text_member(target, SBOM, text.encode())
        whole = replace(manifest, format=FORMAT, members=members)
        write_text_member(target, MANIFEST, whole.write_json())
    with archive.open_bundle(draft):  # what a reader would refuse is not written
        pass
