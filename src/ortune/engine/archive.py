"""Read a bundle's zip: members are checked against digests and stay below a folder."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path, PurePosixPath, PureWindowsPath

from ortune.core.errors import BadModel, OrtuneError
from ortune.engine.manifest import MANIFEST, Manifest, read_manifest

_ZIP = b"PK\x03\x04"
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How members are packed. Other ways unpack a few bytes to any size at once."""
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError)
"""What `zipfile` raises of a damaged, encrypted or newer zip."""
_CHUNK = 1 << 20
_MANIFEST_LIMIT = 64 << 20
"""Bytes. The manifest is read before its size can be checked against a digest."""


def is_bundle(path: Path) -> bool:
    """Say whether a file starts like a zip; a model never does.

    Raises:
        BadModel: There is no such file.
    """
    try:
        with path.open("rb") as file:
            return file.read(len(_ZIP)) == _ZIP
    except OSError as error:
        raise BadModel(
            f"cannot open '{path}': {error.strerror or error}", fix="give a bundle or a model file"
        ) from error


@contextmanager
def opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, Manifest]]:
    """Open a bundle and its manifest.

    Raises:
        BadModel: The zip is damaged; a member is missing, unlisted, twice in it, unsafely named
            or packed in another way than by ortune.
    """
    with ExitStack() as stack:
        try:
            bundle = stack.enter_context(zipfile.ZipFile(path))
            manifest = _manifest(bundle, path.name)
        except _UNREADABLE as error:
            raise BadModel(
                f"{path.name} is damaged: {error}", fix="copy it again, or pack the run again"
            ) from error
        yield bundle, manifest


def take(
    bundle: zipfile.ZipFile, manifest: Manifest, member: str, folder: Path | None
) -> Path | None:
    """Check one member's digest; write it below `folder` when one is given and return its path.

    Raises:
        BadModel: Its content is not what was packed.
        OrtuneError: It cannot be written.
    """
    expected = manifest.members[member]
    target = None if folder is None else folder / member
    digest, size = hashlib.sha256(), 0
    try:
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        with bundle.open(member) as source, target.open("wb") if target else nullcontext() as out:
            while size <= expected.size and (chunk := source.read(_CHUNK)):
                digest.update(chunk)
                size += len(chunk)
                if out is not None:
                    out.write(chunk)
    except OSError as error:
        raise OrtuneError(
            f"cannot unpack '{member}' ({expected.size / 1e6:.1f} MB) into '{folder}': "
            f"{error.strerror or error}",
            fix="free some space there, or point TMPDIR at another folder",
        ) from error
    except _UNREADABLE as error:
        raise _changed(bundle, member, str(error)) from error
    if size != expected.size or digest.hexdigest() != expected.sha256:
        raise _changed(bundle, member, "its sha256 is not the one in the manifest")
    return target


def unpack(
    bundle: zipfile.ZipFile, manifest: Manifest, folder: Path, keep: Collection[str]
) -> None:
    """Check every member; write those of `keep`, and of their folders, below `folder`.

    External data lies in the folder of its model, so that folder is written as a whole.
    """
    folders = {name.rpartition("/")[0] for name in keep if name.count("/") > 1}
    for member in manifest.members:
        wanted = member in keep or any(member.startswith(f"{path}/") for path in folders)
        take(bundle, manifest, member, folder if wanted else None)


def safe(member: str) -> bool:
    """Say whether a member's name stays below the folder that it is written to, on any system."""
    parts = PurePosixPath(member).parts
    return (
        bool(parts)
        and "\0" not in member
        and ".." not in parts
        and not PureWindowsPath(member).drive
        and "\\" not in member
        and "/".join(parts) == member
    )


def _manifest(bundle: zipfile.ZipFile, name: str) -> Manifest:
    held = bundle.namelist()
    if MANIFEST not in held:
        raise BadModel(
            f"{name} is a zip without {MANIFEST}, so not a bundle", fix="give a file made by pack"
        )
    for member in held:
        if not safe(member):
            raise BadModel(
                f"{name} has the unsafe member '{member}'", fix="do not trust this file"
            )
    for entry in bundle.infolist():
        if entry.compress_type not in _PACKED:
            raise BadModel(
                f"{name} has '{entry.filename}' compressed as bundles are not",
                fix="give a file made by pack",
            )
    if bundle.getinfo(MANIFEST).file_size > _MANIFEST_LIMIT:
        raise BadModel(f"{name}: its manifest is too large", fix="do not trust this file")
    manifest = read_manifest(bundle.read(MANIFEST), name)
    listed = [MANIFEST, *manifest.members]
    if sorted(held) != sorted(listed):
        odd = sorted(set(held) ^ set(listed)) or sorted({m for m in held if held.count(m) > 1})
        raise BadModel(
            f"{name}: manifest and members differ: '{odd[0]}'",
            fix="copy it again, or pack the run again",
        )
    return manifest


def _changed(bundle: zipfile.ZipFile, member: str, reason: str) -> BadModel:
    name = Path(bundle.filename or "the bundle").name
    return BadModel(
        f"{name}: '{member}' was changed after packing: {reason}",
        fix="copy it again, or pack the run again",
    )
