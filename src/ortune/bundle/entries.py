"""Members of a bundle's zip as they are written: the same content gives the same bytes."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import IO

from ortune.bundle.engine.manifest import Member

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
