"""Read a bundle's zip: members are checked against digests and stay below a folder.

A signature is ECDSA, in a file beside the bundle, by the package model-signing.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from ortune.bundle.engine.manifest import (
    COMPILED,
    EVIDENCE,
    MANIFEST,
    MOST_PLANS,
    PREPROCESS,
    READER,
    RECIPE,
    SBOM,
    SERVING,
    SETTINGS,
    Manifest,
    name_plan_member,
    read_manifest,
)
from ortune.core import regular_file
from ortune.core.atomic_write import open_output_draft
from ortune.core.errors import BadModel, BadSettings, OrtuneError, summarize_error
from ortune.core.plugins import stored
from ortune.graph.io.protobuf import Malformed, list_locations

_ZIP = b"PK\x03\x04"
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How members are packed. Other ways unpack a few bytes to any size at once."""
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError)
"""What `zipfile` raises of a damaged, encrypted or newer zip."""
_UNIX, _FILES = 3, (0, stat.S_IFREG)
"""The system that writes kinds of files into a zip, and the kinds that are plain files."""
_CHUNK = 1 << 20
_ROOM = "free some space there, or point TMPDIR at another folder"
AGAIN = "copy it again, or pack the run again"

_LONGEST = 1024
_MOST_MEMBERS = 4096
"""A bundle has a dozen, some for every further plan and one for every file of external data."""
_OWN = {SETTINGS: 1 << 18, RECIPE: 1 << 20}
"""Texts of which every plan has its own."""
TEXTS = {
    MANIFEST: 4 << 20,
    EVIDENCE: 8 << 20,
    SBOM: 4 << 20,
    PREPROCESS: 1 << 16,
    SERVING: 1 << 16,
    COMPILED: 1 << 18,
    READER: 1 << 20,
} | {
    name_plan_member(place, name): size
    for place in range(MOST_PLANS)
    for name, size in _OWN.items()
}
"""Member that is read as text, and may be packed -> bytes at most: parsed, JSON may take fifty
times that, and has a tenth of it in bundles seen. All others lie in the zip as they are: a bundle
unpacks to little more than its own size."""
_MOST_TABLE = 2 << 20
"""Bytes of a zip's table of contents, of which `zipfile` makes ten times as much at once."""
_FREE, _RATIO = 1 << 20, 200
"""What is unpacked to more than so many bytes is packed to at least that share of them."""


class _Source(io.BufferedReader):
    """A zip's file that refuses to give a table of contents of more than `most` bytes."""

    most: int | None = _MOST_TABLE

    def read(self, size: int | None = -1, /) -> bytes:
        if self.most is not None and size is not None and size > self.most:
            raise zipfile.BadZipFile("its table of contents is too large")
        return super().read(size)


def is_bundle(path: Path) -> bool:
    """Say whether a file starts like a zip, as no model does; BadModel where there is none."""
    try:
        with regular_file.open_regular(path, BadModel) as file:
            return file.read(len(_ZIP)) == _ZIP
    except OSError as error:
        raise BadModel(
            f"cannot open '{path}': {error.strerror or error}", fix="give a bundle or a model file"
        ) from error


@contextmanager
def open_bundle(path: Path) -> Iterator[tuple[zipfile.ZipFile, Manifest]]:
    """Open a bundle and its manifest.

    Raises BadModel: the zip is damaged; a member is missing, unlisted, twice in it, unsafely named
    or packed in another way than by ortune.
    """
    with ExitStack() as stack:
        try:
            source = stack.enter_context(_Source(io.FileIO(path)))
            bundle = stack.enter_context(zipfile.ZipFile(source))
            source.most = None
            # Check the table of contents against file and manifest; nothing is unpacked yet.
            name = path.name
            names = [entry.filename for entry in bundle.infolist()]
            if MANIFEST not in names:
                raise BadModel(
                    f"{name} is a zip without {MANIFEST}, so not a bundle",
                    fix="give a file made by pack",
                )
            if why := next(list_zip_faults(bundle.infolist(), path.stat().st_size), ""):
                raise BadModel(f"{name} {why}", fix=stored.DISTRUST)
            manifest = read_manifest(bundle.read(MANIFEST), name)
            listed = [MANIFEST, *manifest.members]
            if sorted(names) != sorted(listed):
                odd = sorted(set(names) ^ set(listed)) or sorted(
                    {m for m in names if names.count(m) > 1}
                )
                raise BadModel(f"{name}: manifest and members differ: '{odd[0]}'", fix=AGAIN)
            for member, expected in manifest.members.items():
                if bundle.getinfo(member).file_size != expected.size:
                    raise BadModel(
                        f"{name}: '{member}' was changed after packing: its size is not the one "
                        "in the manifest",
                        fix=AGAIN,
                    )
        except (OSError, *_UNREADABLE) as error:
            raise BadModel(f"{path.name} is damaged: {error}", fix=AGAIN) from error
        yield bundle, manifest


def extract_member(
    bundle: zipfile.ZipFile, manifest: Manifest, member: str, folder: Path | None
) -> Path | None:
    """Check one member's digest; write it below `folder`, if given, and return its path.

    Raises BadModel: its content is not what was packed; OrtuneError: it cannot be written.
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
            fix=_ROOM,
        ) from error
    except _UNREADABLE as error:
        raise _make_digest_error(bundle, member, str(error)) from error
    if size != expected.size or digest.hexdigest() != expected.sha256:
        raise _make_digest_error(bundle, member, "its sha256 is not the one in the manifest")
    return target


def unpack_members(
    bundle: zipfile.ZipFile, manifest: Manifest, folder: Path, keep: Collection[str]
) -> None:
    """Check every member; write those of `keep`, and of their folders, below `folder`.

    External data lies in the folder of its model, so such a folder is written as a whole. Raises
    BadModel: a member is not what was packed; OrtuneError: there is no room, or it cannot be
    written.
    """
    models = [name for name in keep if name.endswith(".onnx") and name.count("/") > 1]
    folders = tuple(f"{name.rpartition('/')[0]}/" for name in models)
    selected = {name for name in manifest.members if name in keep or name.startswith(folders)}
    needed = sum(manifest.members[name].size for name in selected)
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if needed > (free := shutil.disk_usage(there).free):
        raise OrtuneError(
            f"cannot unpack {needed / 1e6:.1f} MB into '{folder}': {free / 1e6:.1f} MB are free",
            fix=_ROOM,
        )
    for member in manifest.members:
        extract_member(bundle, manifest, member, folder if member in selected else None)


def list_zip_faults(entries: Sequence[zipfile.ZipInfo], size: int) -> Iterator[str]:
    """Yield what is wrong with the table of contents of a zip of `size` bytes."""
    if len(entries) > _MOST_MEMBERS:
        yield f"has {len(entries)} members, more than the {_MOST_MEMBERS} that a bundle may have"
    if sum(entry.compress_size for entry in entries) > size:
        yield "has members that share their bytes"
    names: dict[str, str] = {}
    for entry in entries:
        name, most = entry.filename, TEXTS.get(entry.filename)
        shown = name.encode("unicode_escape").decode()
        if not 0 <= entry.header_offset <= size - entry.compress_size:
            yield f"has '{shown}' beyond its own end"
        if not is_safe_member(name):
            yield f"has the unsafe member '{shown}'"
        if names.setdefault(name.casefold(), name) != name:
            yield f"has two members that some systems take for one: '{shown}'"
        if entry.create_system == _UNIX and stat.S_IFMT(entry.external_attr >> 16) not in _FILES:
            yield f"has '{shown}', which is not a regular file"
        if entry.compress_type not in _PACKED:
            yield f"has '{shown}' compressed by a method that bundles do not use"
        if most is None and entry.file_size > entry.compress_size:
            yield f"has '{shown}' compressed, where bundles store it uncompressed"
        if most is not None and entry.file_size > most:
            yield f"has '{shown}' of {entry.file_size} bytes: it may have {most}"
        if entry.file_size > max(_FREE, _RATIO * entry.compress_size):
            yield f"has '{shown}', which unpacks to more than {_RATIO} times its size"


def is_safe_member(member: str) -> bool:
    """Say whether a member's name stays below the folder that it is written to, on any system."""
    parts = PurePosixPath(member).parts
    return (
        bool(parts)
        and member.isprintable()
        and ".." not in parts
        and not PureWindowsPath(member).drive
        and "\\" not in member
        and len(member) <= _LONGEST
        and "/".join(parts) == member
    )


def _make_digest_error(bundle: zipfile.ZipFile, member: str, reason: str) -> BadModel:
    name = Path(bundle.filename or "the bundle").name
    return BadModel(f"{name}: '{member}' was changed after packing: {reason}", fix=AGAIN)


def require_inside(folder: Path, member: str, members: Collection[str]) -> None:
    """Raise BadModel for an unpacked model with weights anywhere but beside it in the bundle."""
    home = member.rpartition("/")[0]
    try:
        with (folder / member).open("rb") as file:
            if not file.read(1):
                raise Malformed("it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                places = list(dict.fromkeys(list_locations(data)))
    except Malformed as error:
        raise BadModel(f"'{member}' is no ONNX model: {error}", fix="pack the run again") from None
    for place in places:
        if f"{home}/{place}" not in members or place == member.rpartition("/")[2]:
            shown = place.encode("unicode_escape").decode()
            raise BadModel(
                f"'{member}' keeps weights outside the bundle, in '{shown}'", fix=stored.DISTRUST
            )


if TYPE_CHECKING:
    from collections.abc import Callable

_MOST = 1 << 20
"""Bytes of a signature; one has 2,000."""
_MAKE = "make one with `openssl ecparam -name prime256v1 -genkey -noout -out key.pem`"
_PUBLIC = "give the public half: `openssl ec -in key.pem -pubout -out public.pem`"
_DISTRUST = "ask its owner for the bundle and for the key that it was signed with"


def signature_of(bundle: Path) -> Path:
    """Return where a bundle's signature lies: beside it."""
    return bundle.with_name(f"{bundle.name}.sig")


def make_signer(key: Path) -> Callable[[Path, bool], Path]:
    """Read a private key and return what signs a bundle with it, replacing a signature if told.

    Two signatures of the same bytes differ: a signature has a random number in it. Raises
    BadSettings: it is no key that can sign; OrtuneError: the package is not installed.
    """
    with _wrap_key_errors(key, "private", _MAKE):
        signing, _ = _import_signing()
        config = signing.Config().use_elliptic_key_signer(private_key=key)

    def sign(bundle: Path, force: bool) -> Path:
        place = signature_of(bundle)
        with open_output_draft(place, force=force, sources=[bundle, key]) as draft:
            config.sign(bundle.resolve(), draft)
        return place

    return sign


def verify_signature(path: str | Path, key: str | Path) -> None:
    """Refuse a bundle that the owner of a key did not sign, or that was changed since.

    The signature lies beside it, NAME.ortune.sig. It is of every byte of the file.

    Args:
        path: A bundle.
        key: The public key, a PEM file: P-256, P-384 or P-521.

    Raises:
        BadModel: There is no signature, it is by another key, or of another file.
        BadSettings: The key is no public key of these kinds.
        OrtuneError: Package model-signing is not installed.
    """
    path, key = Path(path), Path(key)
    with _wrap_key_errors(key, "public", _PUBLIC):
        regular_file.require_regular(key, BadSettings)
        _, verifying = _import_signing()
        config = verifying.Config().use_elliptic_key_verifier(public_key=key)
    place = signature_of(path)
    # A signature that is missing, huge, or that does not say by which key it is, is refused.
    if not place.is_file():
        raise BadModel(
            f"{path.name} is not signed, and a signature is required: there is no {place.name}",
            fix=_DISTRUST,
        )
    try:
        signature: Any = stored.parse_json(regular_file.read_bytes(place, _MOST, BadModel))
        if not isinstance(signature["verificationMaterial"]["publicKey"]["hint"], str):
            raise ValueError("it names no key")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadModel(
            f"{place.name} cannot be read as a signature: {summarize_error(error)}", fix=_DISTRUST
        ) from error
    try:
        config.verify(path.resolve(), place)
    except Exception as error:  # of many kinds: the file is hostile until it holds
        raise BadModel(
            f"{path.name}: its signature does not match this file and '{key}': "
            f"{_shorten_reason(error)}",
            fix=_DISTRUST,
        ) from error


@contextmanager
def _wrap_key_errors(key: Path, half: str, fix: str) -> Iterator[None]:
    """Say in two lines what is wrong with a key, whatever the package raises."""
    try:
        yield
    except OrtuneError:
        raise
    except Exception as error:
        why = "wrong kind of key" if isinstance(error, AttributeError) else _shorten_reason(error)
        raise BadSettings(
            f"'{key}' is not a usable {half} key (PEM; P-256, P-384 or P-521): {why}", fix=fix
        ) from error


def _shorten_reason(error: Exception) -> str:
    """Return the reason alone: cryptography goes on for lines about what may have been."""
    reason = getattr(error, "strerror", None) or next(map(str, error.args), "")
    return re.split(r"[.:]", summarize_error(reason), maxsplit=1)[0] or type(error).__name__


def _import_signing() -> tuple[Any, Any]:
    """Import what signs and what verifies; seconds, so only where it is asked for."""
    try:
        from model_signing import signing, verifying
    except ImportError as error:
        raise OrtuneError(
            f"signatures need package model-signing: {summarize_error(error)}",
            fix="pip install model-signing pyopenssl",
        ) from error
    return signing, verifying
