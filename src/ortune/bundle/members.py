"""Members of a bundle as they are written: the same trials pack to the same bytes.

The bill of materials is CycloneDX 1.6 as JSON. A copy of a bundle may say how it is served.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ortune.bundle.engine.manifest import LIBRARIES, Manifest, Member

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


def extend_sbom(bill: dict[str, Any], name: str, member: Member) -> bytes:
    """Return a bill with one more file of data, in the place of one of that name.

    Raises KeyError, TypeError or AttributeError where it is none that was written here.
    """
    component = _make_component("data", name, member)
    components = [entry for entry in bill["components"] if entry.get("bom-ref") != name]
    for entry in bill["dependencies"]:
        if entry["ref"] == _BUNDLE and name not in entry["dependsOn"]:
            entry["dependsOn"].append(name)
    return json.dumps({**bill, "components": [*components, component]}, indent=1).encode()


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
