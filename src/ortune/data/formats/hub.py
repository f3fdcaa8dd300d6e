"""Datasets of Hugging Face's package ``datasets``: from a folder, or from its cache.

Nothing is fetched, and no code of a dataset is run: only what ``save_to_disk`` wrote, and what
the package has prepared before, is opened.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.plugins import user_function
from ortune.data import sizes
from ortune.data.arrays import NamedArrays
from ortune.data.checks import Note
from ortune.data.formats import rows

PREFIX = "hf:"
_SAVED = ("dataset_dict.json", "state.json")
_SPLIT = re.compile(r"[\w.-]+")


def blocks(
    source: str,
    inputs: Sequence[TensorSpec],
    note: Note,
    pictures: Mapping[str, Any] | None = None,
    spared: Collection[str] = (),
) -> Iterator[NamedArrays]:
    """Yield one block a row of ``hf:FOLDER[:split]`` or ``hf:NAME[:split]``.

    Raises:
        BadData: ``datasets`` is not installed, there is no such dataset, or several splits and
            none is named.
    """
    try:
        import datasets
    except ImportError:
        raise BadData(
            f"reading {source} needs the package datasets", fix="pip install ortune[datasets]"
        ) from None
    place, split = _parted(source)
    folder = Path(place)
    saved = folder.is_dir() and any((folder / name).is_file() for name in _SAVED)
    try:
        found = datasets.load_from_disk(place) if saved else _cached(datasets, place)
    except Exception as error:
        raise BadData(
            f"cannot read {source}: {user_function.reason(error)}",
            fix="save it with dataset.save_to_disk(FOLDER) and give hf:FOLDER; nothing is fetched",
        ) from error
    table = _split(found, split, source)
    columns = rows.wanted(table.column_names, inputs, note, source, spared)
    size = int(table.data.nbytes) // max(1, len(table))
    sizes.demand(size, f"a row of {source}")
    needed = [spec for spec in inputs if spec.name not in spared]
    tensor = rows.pictures(folder if saved else Path(), pictures, needed, note)
    table = table.with_format(None).select_columns(columns)
    for at in range(len(table)):
        try:
            row = table[at]
        except Exception as error:
            raise BadData(
                f"{source} row {at}: {user_function.reason(error)}", fix="leave the row out"
            ) from error
        yield rows.block(row, f"{source} row {at}", inputs, tensor)


def _parted(source: str) -> tuple[str, str]:
    """Return the folder or name, and the split or nothing; a drive's colon is no split's."""
    text = source.removeprefix(PREFIX)
    place, colon, split = text.rpartition(":")
    if colon and len(place) > 1 and _SPLIT.fullmatch(split):
        return place, split
    return text, ""


def _cached(datasets: Any, name: str) -> Any:
    """Open what the package prepared before; it never reaches for the network."""
    offline, config = "HF_HUB_OFFLINE", datasets.config
    before = getattr(config, offline, False)
    setattr(config, offline, True)
    try:
        return datasets.load_dataset(
            name, download_config=datasets.DownloadConfig(local_files_only=True)
        )
    finally:
        setattr(config, offline, before)


def _split(found: Any, split: str, source: str) -> Any:
    """Return the rows of one split.

    Raises:
        BadData: There is none of that name, or several and none is named.
    """
    if not isinstance(found, Mapping):
        own = str(found.split or "")
        if split and split != own:
            raise BadData(f"{source} has no split '{split}'", fix=f"leave ':{split}' out")
        return found
    if not split and len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        what = f"has no split '{split}'" if split else f"has {len(found)} splits"
        raise BadData(
            f"{source} {what}: {', '.join(found)}",
            fix=f"write hf:NAME:{next(iter(found), 'test')}",
        )
    return found[split]
