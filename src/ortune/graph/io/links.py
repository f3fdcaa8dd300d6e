"""A model whose files are symbolic links, for runtimes that follow none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.core.errors import OrtuneError


@contextmanager
def replace_links(path: Path) -> Iterator[Path]:
    """Give a model as regular files: as it is, else in a folder that lasts for the block.

    Download caches keep a model and its external data as links into a folder of blobs.
    onnxruntime follows them; OpenVINO's and onnx's own readers refuse such data. The files in the
    folder are hard links, and copies where the disk is another.

    Raises:
        BadModel: As `ortune.graph.io.file.load`, of a model with a link beside it.
        OrtuneError: There is no room for the copies.
    """
    with os.scandir(path.parent) as entries:
        linked = any(entry.is_symlink() for entry in entries)
    if not linked:
        yield path
        return
    from ortune.graph.io import external, file  # workers need no onnx for models without links

    files = external.list_files(path, file.parse_outline(path))
    if not any(source.is_symlink() for source in files.values()):
        yield path
        return
    with TemporaryDirectory(prefix="ortune-") as folder:
        model = Path(folder) / path.name
        for source in files.values():
            target = Path(folder) / source.relative_to(path.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_file(source.resolve(), target)
        yield model


def _copy_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise OrtuneError(
                f"cannot copy {source} for a runtime that follows no links: {error.strerror}",
                fix="free space in the temporary folder, or set TMPDIR",
            ) from error
