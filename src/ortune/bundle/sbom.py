"""Write a bundle's bill of materials: CycloneDX 1.6 as JSON, the same for the same bundle."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

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
