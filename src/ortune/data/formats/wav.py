"""Sound in RIFF/WAVE files: 8, 16, 24 and 32 bit PCM and 32 bit float, read where it lies."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ortune.core import wording
from ortune.data import arrays

SUFFIXES = frozenset({".wav", ".wave"})
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_KINDS = {(_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32)}
_OPEN_END = 0xFFFFFFFF
"""The length that a program writes which does not know it yet."""
_CHUNKS = 4096
_MOST_CHANNELS = 1024


@dataclass(frozen=True)
class Wav:
    """A file of sound.

    Attributes:
        rate: Frames a second.
        channels: Values a frame.
        bits: Of one value.
        floats: Values are float32, else whole numbers.
        frames: How many there are.
        offset: Of the first, in bytes.
    """

    path: Path
    rate: int
    channels: int
    bits: int
    floats: bool
    frames: int
    offset: int

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return frames [n, channels] as they are stored: uint8, int16, int32 or float32.

        Values of 24 bits are int32.

        Raises:
            BadData: The file cannot be read.
        """
        stop = self.frames if stop is None else min(stop, self.frames)
        count = max(0, stop - start) * self.channels
        width = self.bits // 8
        with arrays.reading(self.path), self.path.open("rb") as file:
            file.seek(self.offset + start * self.channels * width)
            data = file.read(count * width)
            if len(data) < count * width:
                raise EOFError("it ends early")
        if self.bits == 24:
            padded = np.zeros((count, 4), np.uint8)
            padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
            found = padded.view("<i4")[:, 0] >> 8
        else:
            kind = "<f4" if self.floats else {8: "u1", 16: "<i2", 32: "<i4"}[self.bits]
            found = np.frombuffer(data, kind)
        return found.astype(found.dtype.newbyteorder("=")).reshape(-1, self.channels)


def open_wav(path: Path) -> Wav:
    """Read the header of a file.

    Raises:
        BadData: It is no such file, of another kind, or promises more than it holds.
    """
    with arrays.reading(path), path.open("rb") as file:
        size = path.stat().st_size
        if _exactly(file, 4) != b"RIFF" or len(_exactly(file, 8)) != 8:
            raise ValueError("it is no RIFF file")
        file.seek(8)
        if _exactly(file, 4) != b"WAVE":
            raise ValueError("it is a RIFF file without sound")
        return _parsed(path, file, size)


def scaled(frames: NDArray[Any], bits: int) -> NDArray[np.float32]:
    """Return stored values as float32 between -1 and 1; floats as they are."""
    if frames.dtype.kind == "f":
        return frames.astype(np.float32)
    zero = 128 if bits == 8 else 0
    return ((frames.astype(np.float64) - zero) / 2.0 ** (bits - 1)).astype(np.float32)


def _parsed(path: Path, file: IO[bytes], size: int) -> Wav:
    """Walk over the chunks up to the data; what is of no use is skipped."""
    form: tuple[int, int, int, int, int] | None = None
    for _ in range(_CHUNKS):
        name, length = struct.unpack("<4sI", _exactly(file, 8))
        at = file.tell()
        if name == b"data":
            if form is None:
                raise ValueError("its data come before their format")
            return _checked(path, form, at, size - at if length == _OPEN_END else length, size)
        if length > size - at:
            raise ValueError(f"a part promises {length} bytes, and there are {size - at}")
        if name == b"fmt ":
            form = _format(_exactly(file, min(length, 40)))
        file.seek(at + length + length % 2)
    raise ValueError(f"it has more than {_CHUNKS} parts before its data")


def _format(data: bytes) -> tuple[int, int, int, int, int]:
    """Return kind, channels, rate, bytes a frame and bits a value."""
    if len(data) < 16:
        raise ValueError("its format is cut off")
    kind, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", data[:16])
    if kind == _EXTENSIBLE:
        if len(data) < 26:
            raise ValueError("its format is cut off")
        kind = struct.unpack("<H", data[24:26])[0]
    return kind, channels, rate, frame, bits


def _checked(
    path: Path, form: tuple[int, int, int, int, int], at: int, length: int, size: int
) -> Wav:
    kind, channels, rate, frame, bits = form
    if (kind, bits) not in _KINDS:
        held = wording.count(bits, "bit")
        raise ValueError(f"format {kind} of {held} is not read; 8 to 32 bit PCM and float32")
    if not 1 <= channels <= _MOST_CHANNELS or not rate or frame != channels * bits // 8:
        held = wording.count(channels, "channel")
        raise ValueError(f"its format has {held} at {rate} Hz, {frame} bytes a frame")
    if length > size - at:
        raise ValueError(f"its header promises {length} bytes, and there are {size - at}")
    return Wav(path, rate, channels, bits, kind == _FLOAT, length // frame, at)


def _exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError("it ends early")
    return data
