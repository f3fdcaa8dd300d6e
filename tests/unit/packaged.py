"""Bundles of toy models, opened: what package targets are tried on."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ortune.bundle.engine.manifest import MANIFEST, Member
from ortune.bundle.pack import pack
from ortune.bundle.target import Source, unpack_temporarily
from ortune.core.backend import Backend
from tests.unit import studies

Members = dict[str, bytes]


def bundle(folder: Path, backend: Backend | None = None) -> Path:
    """Pack the winner of the toy study."""
    return pack(studies.study(folder, backend=backend), folder / "toy.ortune")


def members_of(bundle: Path) -> Members:
    """Return member -> its content."""
    with zipfile.ZipFile(bundle) as file:
        return {name: file.read(name) for name in file.namelist()}


def write_members(bundle: Path, members: Members) -> Path:
    """Write a bundle of these members anew."""
    with zipfile.ZipFile(bundle, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return bundle


def forge(
    bundle: Path, changed: Members, retold: Callable[[dict[str, Any]], None] = lambda _: None
) -> Path:
    """Replace members and tell the manifest of it, as somebody with bad intent would."""
    members = members_of(bundle) | changed
    manifest = json.loads(members[MANIFEST])
    for name, content in members.items():
        if name != MANIFEST:
            told = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
            manifest["members"][name] = told
    retold(manifest)
    return write_members(bundle, {**members, MANIFEST: json.dumps(manifest).encode()})


@contextmanager
def source(folder: Path, backend: Backend | None = None) -> Iterator[Source]:
    """Open that bundle and give its plan."""
    with unpack_temporarily(bundle(folder, backend)) as held:
        yield held.read_source(held.manifest.plans[0])


def external(source: Source) -> Source:
    """Put the weights of its model into a file beside it."""
    home = source.folder / "models" / "big"
    home.mkdir()
    model = onnx.load(source.models[""])
    w = next(one for one in model.graph.initializer if one.name == "w")
    w.raw_data = np.array([1, 2, 3, 4], np.float32).tobytes()
    w.ClearField("float_data")
    path = home / "big.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    members = {**source.manifest.members, "models/big/w.bin": Member("", 16)}
    return replace(
        source,
        plan=replace(source.plan, models={"": "models/big/big.onnx"}),
        models={"": path},
        manifest=replace(source.manifest, members=members),
    )


def pair(source: Source) -> Source:
    """Let it hold its model twice, under two names."""
    both = {"encode": source.models[""], "decode": source.models[""]}
    golden = dict.fromkeys(both, source.plan.golden[""])
    members = dict.fromkeys(both, source.plan.models[""])
    signatures = dict.fromkeys(both, source.manifest.signatures[""])
    return replace(
        source,
        models=both,
        plan=replace(source.plan, models=members, golden=golden),
        manifest=replace(source.manifest, signatures=signatures),
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
