"""A cache that a team shares: builds, ranges and trials by key, each byte by its SHA-256.

``ROOT/entries/KIND/KEY.json`` says which files a key has and has a digest of its own;
``ROOT/blobs/SHA256`` are the files. What is not what its digest says is refused and made anew.
Writers need no lock: a blob is what it is called, and appears whole, as an entry does.
"""

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ortune.core.atomic_write import open_draft
from ortune.core.errors import BadSettings, summarize_error
from ortune.core.event import Note, Sink, ignore_event
from ortune.core.plugins import codec
from ortune.core.plugins.user_function import digest_file

_MOST = 64 * 2**20  # bytes of an entry


@dataclass(frozen=True, repr=False)
class SharedCache:
    """A folder or a bucket that several machines read and write.

    What fails in it is told once, and the work goes on without.

    Attributes:
        url: A folder, or what fsspec opens, such as ``s3://bucket/ortune``.
        about: Digest of what every key depends on too: the samples and the packages' versions.
    """

    url: str
    about: str
    sink: Sink = ignore_event
    _warnings: set[str] = field(default_factory=set, compare=False)
    _refused: set[str] = field(default_factory=set, compare=False)

    def __post_init__(self) -> None:
        self._open()

    def _open(self) -> tuple[Any, str]:
        """Return the file system and the root in it."""
        try:
            import fsspec
        except ImportError:
            raise BadSettings(
                "--cache needs the package fsspec", fix="pip install fsspec"
            ) from None
        try:
            local = {} if "://" in self.url else {"auto_mkdir": True}
            system, root = fsspec.core.url_to_fs(self.url, **local)
        except (ImportError, ValueError) as error:
            raise BadSettings(
                f"--cache {self.url} cannot be opened: {summarize_error(error)}",
                fix="give a folder, or install what that address needs, such as s3fs for s3://",
            ) from None
        return system, str(root).rstrip("/")

    def fetch_files(
        self, kind: str, key: Sequence[str], folder: Path, names: Sequence[str]
    ) -> bool:
        """Put the files of a key into a folder, each whole and in this order, unless one is wrong.

        Others than these names are refused.
        """
        entry = self._try(lambda: self._read_entry(kind, key))
        listed = entry.get("files") if isinstance(entry, dict) else None
        if not isinstance(listed, dict) or not set(listed) <= set(names):
            return False
        return bool(self._try(lambda: self._fetch_blobs(listed, folder, names)))

    def store_files(
        self, kind: str, key: Sequence[str], folder: Path, names: Sequence[str]
    ) -> None:
        """Give the files that a folder has of these names to whoever asks for the key."""
        self._try(lambda: self._store_blobs(kind, key, folder, names))

    def fetch_record(self, kind: str, key: Sequence[str]) -> Any:
        """Return what was stored under a key; None where there is nothing that can be trusted."""
        entry = self._try(lambda: self._read_entry(kind, key))
        return entry.get("record") if isinstance(entry, dict) else None

    def store_record(self, kind: str, key: Sequence[str], record: Any) -> None:
        """Store a JSON value under a key."""
        self._try(lambda: self._write_entry(kind, key, {"record": record}))

    def _fetch_blobs(self, listed: Mapping[str, Any], folder: Path, names: Sequence[str]) -> bool:
        system, root = self._open()
        for name in (name for name in names if name in listed):
            digest = str(listed[name])
            folder.mkdir(parents=True, exist_ok=True)
            with open_draft(folder / name, durable=False) as draft:
                system.get_file(f"{root}/blobs/{digest}", str(draft))
                if digest_file(draft) != digest:
                    self._refused.add(digest)
                    raise ValueError(f"blob {digest[:12]} does not match its digest: refused")
        return True

    def _store_blobs(
        self, kind: str, key: Sequence[str], folder: Path, names: Sequence[str]
    ) -> None:
        system, root = self._open()
        files = {}
        for path in (folder / name for name in names if (folder / name).is_file()):
            files[path.name] = digest_file(path)
            place = f"{root}/blobs/{files[path.name]}"
            if files[path.name] in self._refused or not system.exists(place):
                self._write(place, partial(system.put_file, str(path)))
        self._write_entry(kind, key, {"files": files})

    def _entry_place(self, root: str, kind: str, key: Sequence[str]) -> str:
        return f"{root}/entries/{kind}/{codec.digest([self.about, *key])}.json"

    def _read_entry(self, kind: str, key: Sequence[str]) -> Any:
        system, root = self._open()
        place = self._entry_place(root, kind, key)
        try:
            content = system.cat_file(place, end=_MOST)
        except FileNotFoundError:
            return None
        entry = json.loads(content)
        if entry["digest"] != _digest_text(entry["body"]):
            raise ValueError(f"entry {place} does not match its digest: refused")
        return entry["body"]

    def _write_entry(self, kind: str, key: Sequence[str], body: Mapping[str, Any]) -> None:
        system, root = self._open()
        text = json.dumps({"digest": _digest_text(body), "body": body})
        place = self._entry_place(root, kind, key)
        self._write(place, lambda to: system.pipe_file(to, text.encode()))

    def _write(self, place: str, write: Callable[[str], object]) -> None:
        """Let a file appear whole: on a disk by a rename; an object store does so itself."""
        system, _ = self._open()
        if "file" not in system.protocol:
            write(place)
            return
        draft = f"{place}.{uuid.uuid4().hex}.part"
        write(draft)
        system.mv(draft, place)

    def _try(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:  # any store, any client: a search does without
            text = f"the cache {self.url}: {summarize_error(error)}"
            if text not in self._warnings:
                self._warnings.add(text)
                self.sink(Note(text, warning=True))
            return None


def _digest_text(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
