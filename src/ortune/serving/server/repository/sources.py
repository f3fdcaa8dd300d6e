"""Where served models come from: a file, or a folder with a folder for each version."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TypeAlias

from ortune.bundle.engine import archive
from ortune.core import regular_file
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.wording import format_count
from ortune.graph.io.protobuf import Malformed, list_locations

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Names of models: they stand in URLs, metrics and logs as they are."""
ONLY = "1"
"""The version of what has no folder of versions."""
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
MODEL_SUFFIXES = (".ortune", ".onnx")
"""Of bundles and plain models."""

_Look: TypeAlias = tuple[str, int, int, int]
State: TypeAlias = tuple[_Look, ...]
"""Path, inode, time of change and bytes of the files that hold one version."""


@dataclass(frozen=True)
class ModelSource:
    """A bundle, a plain model, or a folder of folders 1, 2, ... with one of them each.

    Its model has its name; several models of one bundle are NAME.MODEL.
    """

    name: str
    path: Path

    def list_files(self) -> dict[str, Path]:
        """Return version -> file, lowest first; BadSettings without one, or with several."""
        if not self.path.is_dir():
            if not self.path.is_file():
                raise BadSettings(f"there is no file {self.path}", fix="name a bundle or a model")
            return {ONLY: self.path}
        versions = {}
        for folder in sorted(self.path.iterdir(), key=lambda path: (len(path.name), path.name)):
            if folder.is_dir() and _VERSION.fullmatch(folder.name):
                files = [file for file in folder.iterdir() if file.name.endswith(MODEL_SUFFIXES)]
                if len(files) != 1:
                    raise BadSettings(
                        f"{folder} holds {format_count(len(files), 'model')}, and a version "
                        "holds one",
                        fix="leave one .ortune or .onnx file in it",
                    )
                versions[folder.name] = files[0]
        if not versions:
            raise BadSettings(
                f"{self.path} has no version in it", fix=f"put the file into {self.path.name}/1/"
            )
        return versions


def find_sources(spellings: Iterable[str | Path]) -> list[ModelSource]:
    """Return sources of ``PATH`` or ``NAME=PATH``; BadSettings for two of a name, or a bad one."""
    sources: dict[str, ModelSource] = {}
    for text in map(str, spellings):
        name, _, path = ("", "", text) if Path(text).exists() else text.rpartition("=")
        if not name:
            file = Path(os.path.abspath(path))  # noqa: PTH100 (a link keeps its own name)
            name = file.stem if file.name.endswith(MODEL_SUFFIXES) else file.name
        source = ModelSource(name, Path(path))
        if not NAME.fullmatch(source.name):
            raise BadSettings(
                f"a model cannot be served as '{source.name}'",
                fix=f"name it with letters, digits, '.', '_', '-': net={path}",
            )
        if source.name in sources:
            raise BadSettings(
                f"two models would be served as '{source.name}'", fix=f"name one: other={path}"
            )
        source.list_files()
        sources[source.name] = source
    return list(sources.values())


def read_state(path: Path) -> State:
    """Return what changes when a model is replaced: also files of weights beside a plain one."""
    status = _stat_file(path)
    return (status, *map(_stat_file, _list_weight_files(path, status)))


def read_states(source: ModelSource) -> dict[str, State]:
    """Return version -> state; nothing where the source cannot be read."""
    with suppress(OSError, BadSettings):
        return {version: read_state(path) for version, path in source.list_files().items()}
    return {}


def _stat_file(path: Path) -> _Look:
    with suppress(OSError, ValueError):  # a name may hold a null
        seen = path.stat()
        return str(path), seen.st_ino, seen.st_mtime_ns, seen.st_size
    return str(path), 0, 0, 0


@lru_cache(maxsize=256)
def _list_weight_files(path: Path, seen: _Look) -> tuple[Path, ...]:
    """Return a plain model's files of weights; read again where `seen` changed."""
    with suppress(OSError, ValueError, OrtuneError, Malformed):
        if archive.is_bundle(path):
            return ()
        with (
            regular_file.open_regular(path) as file,
            mmap(file.fileno(), 0, access=ACCESS_READ) as data,
        ):
            return tuple(path.parent / name for name in sorted(set(list_locations(data))))
    return ()
