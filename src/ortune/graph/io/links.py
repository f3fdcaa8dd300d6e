"""A model whose files are symbolic links, for runtimes that follow none."""

import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ortune.core import regular_file
from ortune.core.errors import BadModel, OrtuneError
from ortune.core.temporary_folder import open_temporary_folder
from ortune.graph.io.protobuf import Malformed, list_locations


@contextmanager
def replace_links(path: Path) -> Iterator[Path]:
    """Give a model as regular files: as it is, else in a folder that lasts for the block.

    Download caches keep a model and its external data as links into a folder of blobs.
    onnxruntime follows them; OpenVINO's and onnx's own readers refuse such data. The files in the
    folder are hard links, and copies where the disk is another.

    Raises:
        BadModel: It is no regular file.
        OrtuneError: There is no room for the copies.
    """
    with os.scandir(path.parent) as entries:
        linked = any(entry.is_symlink() for entry in entries)
    if not linked:
        yield path
        return
    files = [path, *(path.parent / place for place in _list_places(path))]
    homes = path.parent.resolve(), path.resolve().parent
    regular = all(any(f.resolve().is_relative_to(h) for h in homes) and f.is_file() for f in files)
    if not regular or not any(file.is_symlink() for file in files):
        yield path  # what leads out of the folder the runtime itself refuses
        return
    with open_temporary_folder() as folder:
        for file in files:
            target = folder / file.relative_to(path.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_file(file.resolve(), target)
        yield folder / path.name


def _list_places(path: Path) -> list[str]:
    """Return where a model's external data lies, but for what climbs out of its folder."""
    with regular_file.open_regular(path, BadModel) as file:
        if not path.stat().st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                places = list(dict.fromkeys(list_locations(data)))
            except Malformed:
                return []  # the runtime says what is wrong with it
    climbs = any(".." in Path(place).parts or Path(place).is_absolute() for place in places)
    return [] if climbs else places


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
