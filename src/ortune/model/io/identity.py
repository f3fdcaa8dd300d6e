"""What a model file is, told without the weights in memory: for workers."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortune.core.errors import BadModel
from ortune.model.io import protobuf

if TYPE_CHECKING:
    import onnx


def identity(path: Path) -> tuple[str, int]:
    """Return the digest that `model.io.file.digest` gives, and the number of nodes.

    Nodes are those of all graphs and functions.

    Raises:
        BadModel: The file is no model, or a file with weights is missing.
    """
    import onnx
    from google.protobuf.message import DecodeError

    total, nodes, places = hashlib.sha256(), 0, set[str]()
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            proto = onnx.ModelProto.FromString(protobuf.outline(data))
        for part in parts(proto):
            nodes += isinstance(part, onnx.NodeProto)
            if isinstance(part, onnx.TensorProto) and (place := _place(part)) != protobuf.HELD:
                places.add(place)
        places.discard("")
        files = {protobuf.HELD: path} | {one: path.parent / one for one in sorted(places)}
        for location, member in files.items():
            total.update(f"{location}\0{member.stat().st_size}\0".encode())
            with member.open("rb") as stream:
                while chunk := stream.read(1 << 20):
                    total.update(chunk)
    except (OSError, ValueError, DecodeError, protobuf.Malformed) as error:
        raise BadModel(
            f"{path} cannot be read: {error}", fix="run `ortune inspect` on it"
        ) from error
    return total.hexdigest()[:32], nodes


def parts(message: Any) -> Iterator[Any]:
    """Yield a message and all messages within it, as they come."""
    waiting = [message]
    while waiting:
        one = waiting.pop()
        yield one
        within: list[Any] = []
        for field, value in one.ListFields():
            if field.message_type is not None:
                within += [value] if hasattr(value, "ListFields") else value
        waiting += reversed(within)


def _place(tensor: onnx.TensorProto) -> str:
    """Return where a tensor's external data lies; empty where it has none."""
    if tensor.data_location != tensor.EXTERNAL:
        return ""
    return next((one.value for one in tensor.external_data if one.key == "location"), "")
