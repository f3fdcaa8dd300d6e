"""Write how a bundle is to be served into a copy of it."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

from ortune.bundle.engine import archive
from ortune.bundle.engine.instances import Serving
from ortune.bundle.engine.manifest import FORMAT, MANIFEST, SBOM, SERVING
from ortune.bundle.members import extend_sbom, write_stream_member, write_text_member
from ortune.core.atomic_write import open_output_draft
from ortune.core.errors import BadModel
from ortune.core.plugins import codec, stored


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
                bill = extend_sbom(stored.parse_json(source.read(SBOM)), SERVING, members[SERVING])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BadModel(
                    f"{bundle.name}: its bill of materials cannot be read: {error}",
                    fix=stored.DISTRUST,
                ) from error
            members[SBOM] = write_text_member(target, SBOM, bill)
        whole = replace(manifest, format=FORMAT, members=members)
        write_text_member(target, MANIFEST, whole.write_json())
    with archive.open_bundle(draft):  # what a reader would refuse is not written
        pass
