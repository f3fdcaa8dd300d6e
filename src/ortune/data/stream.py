"""Many samples of named arrays in one file: how tensors travel between processes.

Layout: the magic, then one standard ``.npy`` record an array, each at a multiple of 64 bytes so
that its data are aligned, then a JSON index, its length (8 bytes, little-endian) and the magic
again. The index::

    {"forms": [[name, dtype, [dim, ...]], ...], "samples": [[form, offset, form, ...], ...]}

A file without the closing magic was not finished. Imports numpy only: the worker reads these.
"""

import contextlib
import json
import mmap
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from ortune.core.atomic_write import open_draft, report_write_errors
from ortune.core.errors import BadData
from ortune.core.session import Tensors
from ortune.data import sizes

Form: TypeAlias = tuple[str, np.dtype[Any], tuple[int, ...]]
"""Name, type and shape of arrays."""
_MAGIC = b"ortune-stream-1\n"
_ALIGN = 64
LOOK_BYTES, LOOK_SAMPLES = 64 * 2**20, 2**18
"""After so many the room that is left is looked at."""
_FEWER = "give fewer samples, end the generator, or set TMPDIR to a larger disk"


def write_stream(path: Path, samples: Iterable[Tensors]) -> int:
    """Write the samples one by one and return their number; see `open_writer`."""
    count = 0
    with open_writer(path) as add:
        for sample in samples:
            add(sample)
            count += 1
    return count


@contextlib.contextmanager
def open_writer(path: Path) -> Iterator[Callable[[Tensors], None]]:
    """Give a function that adds one sample; the file appears when all are in.

    Takes every NumPy dtype but structured ones, and ml_dtypes' by name. Text is kept with a fixed
    width; an array of Python objects is taken only when all of them are text. Only one sample and
    the index are in memory. A failure leaves nothing behind, no folder either. It is not waited
    for until the disk has it: samples are read, made up or computed again.

    Raises:
        BadData: An array holds Python objects.
        OrtuneError: The file cannot be written.
    """
    with open_draft(path, durable=False) as draft:
        with report_write_errors(path):
            file = draft.open("wb")
        with file:
            writer = _Writer(file, path.parent)

            def add(sample: Tensors) -> None:
                with report_write_errors(path):
                    writer.add(sample)

            yield add
            with report_write_errors(path):
                writer.close()
                file.flush()


class Stream(Sequence[dict[str, NDArray[Any]]]):
    """The samples of a file that `write_stream` made; arrays are read-only views of the mapped
    file.

    Attributes:
        names: Array names in order of first appearance.
    """

    def __init__(self, path: Path) -> None:
        """Map the file, else raise BadData: it is no finished stream, or its index is none."""
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise BadData(f"cannot read {path}: {error}", fix="write the file again") from error
        index = _read_index(path, self._map)
        try:
            self._forms = [_parse_form(*form) for form in index["forms"]]
            samples = [_parse_places(sample) for sample in index["samples"]]
            alike = len({len(places) for places in samples}) == 1
            # Where all have as many arrays the index takes a twentieth of the memory.
            packed: Any = np.array(samples, np.int64) if alike else samples
            self._samples: Sequence[Sequence[int]] = packed
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise _make_index_error(path, error) from None
        self.names: tuple[str, ...] = tuple(dict.fromkeys(name for name, _, _ in self._forms))

    @property
    def shapes(self) -> Mapping[str, frozenset[tuple[int, ...]]]:
        """Name -> all shapes that the array has, in whatever sample; no data are read."""
        by_name: dict[str, set[tuple[int, ...]]] = {}
        for name, _, shape in self._forms:
            by_name.setdefault(name, set()).add(shape)
        return {name: frozenset(shapes) for name, shapes in by_name.items()}

    @property
    def widest(self) -> int:
        """Bytes of a sample whose arrays are all as large as the largest of their name."""
        largest: dict[str, int] = {}
        for name, dtype, shape in self._forms:
            largest[name] = max(largest.get(name, 0), sizes.array_bytes(shape, dtype))
        return sum(largest.values())

    def __len__(self) -> int:
        return len(self._samples)

    def release(self) -> None:
        """Release the pages that were read; later reads fetch them again."""
        if sys.platform != "win32":
            self._map.madvise(mmap.MADV_DONTNEED)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, NDArray[Any]]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        """Return one sample, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        places = self._samples[index]
        arrays = {}
        try:
            for form, offset in zip(places[::2], places[1::2], strict=True):
                name, dtype, shape = self._forms[form]
                arrays[name] = np.ndarray(shape, dtype, buffer=self._map, offset=offset)
        except (ValueError, TypeError, IndexError, OverflowError) as error:
            raise _make_index_error(self.path, error) from None
        return arrays


def _parse_form(name: object, kind: object, dims: Sequence[object]) -> Form:
    """Check one form of an index: what lies in the file is never read as pointers."""
    dtype, shape = parse_dtype(str(kind)), tuple(dim for dim in dims if isinstance(dim, int))
    if (
        dtype.hasobject
        or not dtype.itemsize
        or len(shape) != len(dims)
        or min(shape, default=0) < 0
    ):
        raise ValueError(f"no array is {kind} {dims}")
    return str(name), dtype, shape


def _parse_places(sample: Sequence[object]) -> list[int]:
    places = [place for place in sample if isinstance(place, int) and place >= 0]
    if len(places) != len(sample) or len(places) % 2:
        raise ValueError(f"no sample is {sample!r:.80}")
    return places


def _make_index_error(path: Path, error: Exception) -> BadData:
    return BadData(
        f"{path} has an invalid index: {type(error).__name__}: {error}", fix="write the file again"
    )


NO_DTYPE = (TypeError, ValueError, SyntaxError)
"""What NumPy raises of a text that is no dtype, such as ``,0float32``."""


def parse_dtype(text: str) -> np.dtype[Any]:
    """Return the dtype of NumPy's name or spelling, or of ml_dtypes' name.

    Raises:
        TypeError: It is none.
    """
    try:
        return np.dtype(text)
    except NO_DTYPE:
        kind: Any = None
        with contextlib.suppress(ImportError):  # beside numpy and onnxruntime alone it is missing
            import ml_dtypes

            kind = vars(ml_dtypes).get(text)
        if not isinstance(kind, type):
            raise TypeError(f"{text!r} is no dtype") from None
        return np.dtype(kind)


class _Writer:
    """Appends records and keeps the index."""

    def __init__(self, file: IO[bytes], folder: Path) -> None:
        self._folder, self._next_bytes = folder, LOOK_BYTES
        # Form and offset of every array, and where the next sample begins: 24 bytes a sample.
        self._places, self._ends = array("q"), array("q")
        self._forms: dict[tuple[str, str, tuple[int, ...]], int] = {}
        self._file = file
        file.write(_MAGIC)

    def add(self, sample: Tensors) -> None:
        for name, value in sample.items():
            array = np.asarray(value, order="C")
            if array.dtype.kind == "T" or (
                array.dtype.hasobject and all(isinstance(item, str) for item in array.flat)
            ):
                array = array.astype(np.str_)
            if array.dtype.hasobject or array.dtype.names is not None:
                raise BadData(
                    f"array '{name}' holds Python objects or records ({array.dtype})",
                    fix="give an array of numbers or text",
                )
            values = array.astype(f"{array.dtype.kind}1") if array.itemsize == 0 else array
            spelled = values.dtype.name if values.dtype.isbuiltin == 2 else values.dtype.str
            form = self._forms.setdefault((name, spelled, values.shape), len(self._forms))
            self._file.write(b"\0" * (-self._file.tell() % _ALIGN))
            # .npy cannot spell ml_dtypes' types: their bits are stored, the index has the name.
            raw = values.view(f"V{values.itemsize}") if values.dtype.isbuiltin == 2 else values
            header = np.lib.format.header_data_from_array_1_0(raw)
            np.lib.format.write_array_header_1_0(self._file, header)
            offset = self._file.tell()
            self._file.write(raw.tobytes())
            self._places.extend((form, offset))
        self._ends.append(len(self._places))
        if self._file.tell() > self._next_bytes:
            self._next_bytes = self._file.tell() + LOOK_BYTES
            sizes.require_disk(LOOK_BYTES, self._folder, "samples so far and more", _FEWER)
        if len(self._ends) % LOOK_SAMPLES == 0:
            sizes.require_list_memory(len(self._ends))

    def close(self) -> None:
        begin = self._file.tell()
        forms = json.dumps(list(self._forms), separators=(",", ":"))
        self._file.write(f'{{"forms":{forms},"samples":['.encode())
        at = 0
        for number, end in enumerate(self._ends):
            sample = json.dumps(self._places[at:end].tolist(), separators=(",", ":"))
            self._file.write(f"{',' if number else ''}{sample}".encode())
            at = end
        self._file.write(b"]}")
        size = self._file.tell() - begin
        self._file.write(size.to_bytes(8, "little") + _MAGIC)


def _read_index(path: Path, data: mmap.mmap) -> dict[str, Any]:
    end = len(data) - len(_MAGIC) - 8
    if end >= len(_MAGIC) and data[: len(_MAGIC)] == _MAGIC and data[end + 8 :] == _MAGIC:
        size = int.from_bytes(data[end : end + 8], "little")
        with contextlib.suppress(ValueError, RecursionError):
            index: dict[str, Any] = json.loads(data[max(0, end - size) : end])
            return index
    raise BadData(f"{path} is not a finished stream of samples", fix="write the file again")
