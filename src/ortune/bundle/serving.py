"""Write how a bundle is to be served into a copy of it."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

from ortune.bundle import entries
from ortune.bundle.engine import archive
from ortune.bundle.engine.instances import Serving
from ortune.bundle.engine.manifest import FORMAT, MANIFEST, SBOM, SERVING, Manifest, Member
from ortune.bundle.sbom import extended
from ortune.core.atomic_write import replacing
from ortune.core.errors import BadModel
from ortune.core.plugins import codec, stored


def with_serving(
    bundle: str | Path, out: str | Path, how: Serving, *, force: bool = False
) -> Path:
    """Write a copy of a bundle that engines and servers open as `how` says.

    A signature is of a file's bytes, so the copy has none.

    Args:
        bundle: It stays as it is.
        out: The copy; it appears when it is whole.
        force: Replace an existing file.

    Raises:
        BadModel: It is no bundle, or was changed after packing.
        OrtuneError: The copy cannot be written.
    """
    path, bundle = Path(out), Path(bundle)
    with replacing(path, force=force, sources=[bundle]) as draft:
        write(bundle, draft, how)
    return path


def write(bundle: Path, draft: Path, how: Serving) -> None:
    """Write the copy to a path of the caller's.

    Raises:
        BadModel: It is no bundle, or was changed after packing.
    """
    if not archive.is_bundle(bundle):
        raise BadModel(f"{bundle.name} is not a bundle", fix="give a file made by pack")
    with archive.opened(bundle) as (source, manifest), zipfile.ZipFile(draft, "w") as made:
        members = {
            name: _copied(source, made, name, manifest)
            for name in manifest.members
            if name not in (SERVING, SBOM)
        }
        fields = codec.encode(how)
        text = json.dumps({name: fields[name] for name in stored.settable(Serving)}, indent=1)
        members[SERVING] = entries.text(made, SERVING, text.encode(), packed=False)
        if SBOM in manifest.members:
            archive.take(source, manifest, SBOM, None)
            try:
                bill = extended(stored.loads(source.read(SBOM)), SERVING, members[SERVING])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BadModel(
                    f"{bundle.name}: its bill of materials cannot be read: {error}",
                    fix=stored.DISTRUST,
                ) from error
            members[SBOM] = entries.text(made, SBOM, bill)
        whole = replace(manifest, format=FORMAT, members=members)
        entries.text(made, MANIFEST, whole.write())
    with archive.opened(draft):  # what a reader would refuse is not written
        pass


def _copied(
    source: zipfile.ZipFile, made: zipfile.ZipFile, name: str, manifest: Manifest
) -> Member:
    """Copy a member as it is packed, once it is known to be what the manifest says."""
    archive.take(source, manifest, name, None)
    entry = source.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED:
        return entries.text(made, name, source.read(name))
    with source.open(name) as stream:
        return entries.stored(made, name, stream, entry.file_size)
