"""Model files that differ in their outputs alone, over one set of weights."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from ortune.core.errors import OrtuneError
from ortune.model.io import external
from ortune.model.io.write import NEWEST_IR, held, point, stream, weight_bytes
from ortune.model.parts.expose import Watch, expose

MANY = 1_900_000_000
"""Bytes of weights from which those in bodies and attributes go beside the model too."""


@dataclass
class Watched:
    """A model without its weights, in a folder that has them.

    Attributes:
        folder: Of the files; it goes when the context ends.
        proto: The model; its weights refer to files of the folder.
        written: Bytes of weights that had to be copied; the others are the source's own files.
    """

    folder: Path
    proto: onnx.ModelProto
    written: int = 0
    _count: int = field(default=0, repr=False)

    def showing(
        self, tensors: Sequence[str], *, shapes: bool = False
    ) -> tuple[Path, dict[str, Watch], dict[str, str]]:
        """Write a model that gives out the tensors too; see `expose`."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        found, hidden = expose(proto, tensors, shapes=shapes)
        self._count += 1
        path = self.folder / f"watched-{self._count}.onnx"
        path.write_bytes(proto.SerializeToString())
        return path, found, hidden


@contextlib.contextmanager
def watched(model: ir.Model, folder: Path) -> Iterator[Watched]:
    """Prepare a model for watching; it is unchanged afterwards.

    Weights that still are what a file holds are read from that file, by a hard link to it. Where
    none can be made (another file system) and for weights that a step changed, one copy is
    written.

    Args:
        model: Loaded by `ortune.model.io.file.load`, or made otherwise.
        folder: A folder is made in it for as long as the context lasts.

    Raises:
        OrtuneError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="watched-", dir=folder) as name,
            held(model, everywhere=weight_bytes(model) > MANY) as tensors,
        ):
            proto = ir.serde.serialize_model(model)
            proto.ir_version = max(4, min(proto.ir_version, NEWEST_IR))
            made = Watched(Path(name), proto)
            places = _linked(tensors, model, made.folder)
            left = [i for i in range(len(tensors)) if i not in places]
            if left:
                offsets = stream([tensors[i] for i in left], made.folder / "weights")
                made.written = sum(tensors[i].nbytes for i in left)
                places |= {i: ("weights", at) for i, at in zip(left, offsets, strict=True)}
            point(proto, places)
            yield made
    except OSError as error:
        raise OrtuneError(
            f"cannot write below {folder}: {error.strerror or error}",
            fix="free some space there, or choose another folder",
        ) from error


def _linked(
    tensors: Sequence[ir.TensorProtocol], model: ir.Model, folder: Path
) -> dict[int, tuple[str, int]]:
    """Return tensor -> file of `folder` and offset, for all that lie in the source's files."""
    maps: Sequence[tuple[Path, mmap.mmap]] = model.graph.meta.get(external.MAPS, ())
    spans = [(file, _address(np.frombuffer(data, np.uint8)), len(data)) for file, data in maps]
    links: dict[Path, str | None] = {}
    found = {}
    for index, tensor in enumerate(tensors):
        raw: Any = getattr(tensor, "raw", None)
        if not isinstance(raw, np.ndarray) or not raw.flags.c_contiguous:
            continue
        at = _address(raw)
        for file, start, length in spans:
            if start <= at and at + raw.nbytes <= start + length and raw.nbytes == tensor.nbytes:
                if file not in links:
                    links[file] = _link(file, folder / f"source-{len(links)}")
                if (name := links[file]) is not None:
                    found[index] = name, at - start
                break
    return found


def _link(file: Path, to: Path) -> str | None:
    try:
        os.link(file.resolve(), to)  # a link to a symbolic one would lead out of the folder
    except OSError:
        return None
    return to.name


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
