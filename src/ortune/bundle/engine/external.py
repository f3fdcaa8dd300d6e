"""Where the models of a bundle keep their weights: in themselves, or in files beside them."""

from __future__ import annotations

import mmap
from collections.abc import Collection
from pathlib import Path

from ortune.core.errors import BadModel
from ortune.core.plugins import stored
from ortune.graph.io.locations import list_locations
from ortune.graph.io.protobuf import Malformed


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
