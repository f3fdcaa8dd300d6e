"""Sound files as samples, cut and mixed as ``sound.toml`` beside them says."""

import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ortune.core import preprocess, regular_file
from ortune.core.errors import BadData, BadSettings
from ortune.core.facts import TensorSpec
from ortune.core.plugins import codec
from ortune.core.plugins.bounds import Bounds
from ortune.core.wording import format_count
from ortune.data import arrays, checks, sizes
from ortune.data.arrays import Column, NamedArrays
from ortune.data.checks import Note
from ortune.data.classes import number_classes
from ortune.data.reading import Reading
from ortune.data.stream import parse_dtype

SETTINGS = "sound.toml"
SUFFIXES = frozenset({".wav", ".wave"})
_STORED = {
    "PCM_U8": "uint8",
    "PCM_16": "int16",
    "PCM_24": "24 bit values",
    "PCM_32": "int32",
    "FLOAT": "float32",
}
"""What a file holds, by libsndfile's names of what is read; no input takes 24 bit as stored."""
_WIDEST = 256
"""How many times two rates may differ where one is resampled to the other."""
_OPEN_END = 0xFFFFFFFF
"""The length that a program writes which does not know it yet."""
_FIX = "give a whole .wav file of 8 to 32 bit PCM or float32"
_RATES, _FRAMES = Bounds(high=10_000_000), Bounds()


@dataclass(frozen=True)
class Sound:
    """How a file of sound becomes tensors."""

    input: str = ""  # the input that takes the signal; empty for the only one
    # That the model takes, in Hz; 0 takes that of the files, which must be one.
    rate: Annotated[int, _RATES] = 0
    resample: bool = False  # bring files of another rate to it; without, they are refused
    rate_input: str = ""  # the input that takes the rate as a number; empty for none
    # ``mean`` of all, the ``first`` alone, or all (``each``), [channels, length]; empty takes
    # ``each`` where the model's shape has their number, else ``mean``.
    channels: Literal["", "mean", "first", "each"] = ""
    # Of a chunk, in frames; 0 takes the model's fixed length, else the whole file.
    length: Annotated[int, _FRAMES] = 0
    step: Annotated[int, _FRAMES] = 0  # from chunk to chunk; 0 for chunks side by side
    # What is left over is filled up with silence (``pad``) or left out (``drop``).
    tail: Literal["pad", "drop"] = "pad"


@dataclass(frozen=True)
class Wav:
    """A RIFF/WAVE file of 8, 16, 24 or 32 bit PCM or 32 bit float, read where it lies."""

    path: Path
    rate: int  # frames a second
    channels: int
    kind: str  # libsndfile's name of its values, such as ``PCM_16``
    frames: int

    def read(self, start: int, stop: int, dtype: str = "float32") -> NDArray[Any]:
        """Return frames [n, channels]: float32 between -1 and 1, or the file's whole numbers.

        Args:
            dtype: ``float32``; or ``uint8``, ``int16`` or ``int32`` of a file of that width.

        Raises:
            BadData: The file cannot be read.
        """
        soundfile = _import_library("soundfile")
        values: NDArray[Any]
        count = max(0, min(stop, self.frames) - start)
        with arrays.translate_read_errors(self.path, _FIX):
            try:
                kind = "int16" if dtype == "uint8" else dtype
                values, _ = soundfile.read(self.path, count, start, dtype=kind, always_2d=True)
            except soundfile.SoundFileError as error:
                raise ValueError(getattr(error, "error_string", str(error))) from error
            if len(values) < count:
                raise EOFError("it ends early")
        return ((values >> 8) + 128).astype(np.uint8) if dtype == "uint8" else values


def open_wav(path: Path) -> Wav:
    """Read the header of a file.

    Raises:
        BadData: It is no such file, of another kind, or promises more than it holds; or
            soundfile is not installed.
    """
    soundfile = _import_library("soundfile")
    with arrays.translate_read_errors(path, _FIX):
        with regular_file.open_regular(path) as file:
            head = file.read(12)
        length, size = int.from_bytes(head[4:8], "little"), path.stat().st_size
        if head[:4] == b"RIFF" and size - 8 < length != _OPEN_END:
            raise EOFError(f"it ends early: it promises {length + 8} bytes, and there are {size}")
        if head[:4] not in (b"RIFF", b"RIFX") or head[8:] != b"WAVE":
            raise ValueError("it is no RIFF/WAVE file")  # else every format would be tried
        try:
            info = soundfile.info(path)
        except soundfile.SoundFileError as error:
            raise ValueError(getattr(error, "error_string", str(error))) from error
        if info.format not in ("WAV", "WAVEX") or info.subtype not in _STORED:
            raise ValueError(
                f"{info.format} of {info.subtype} is not read; 8 to 32 bit PCM and float32 are"
            )
    return Wav(path, info.samplerate, info.channels, info.subtype, info.frames)


def _import_library(name: str) -> Any:
    """Import soundfile or soxr. Raises BadData: it is not installed."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise BadData(f"reading sound needs {name}: {error}", fix=f"pip install {name}") from None


def read_sound_blocks(
    files: Sequence[Path], folder: Path, reading: Reading
) -> Iterator[NamedArrays]:
    """Yield one block a chunk; chunks of a file are one group, sub-folders of `folder` classes.

    Raises:
        BadData: The settings do not fit, a file cannot be read or has another rate.
    """
    note, features, specs = reading.note, reading.features, checks.specs_by_name(reading.needed)
    settings, spec = _read_settings(folder / SETTINGS, specs, note)
    if features is not None:
        length = features.length or settings.length
        spec = TensorSpec(spec.name, "float32", (1, length or (spec.shape or (None,))[-1]))
        settings = replace(settings, rate=features.rate, resample=True, length=length)
    class_numbers = number_classes(files, folder, note, reading.classes)
    wavs = [open_wav(path) for path in files]
    rate = settings.rate or wavs[0].rate
    for wav in wavs:
        if wav.rate == rate:
            continue
        if not settings.resample:
            reference = "the model's" if settings.rate else "that of the first file"
            raise BadData(
                f"{wav.path} has {wav.rate} Hz, {reference} is {rate}",
                fix=f"write rate = {rate} and resample = true into {SETTINGS}, or convert the "
                "file",
            )
        if not 1 / _WIDEST <= rate / wav.rate <= _WIDEST:
            raise BadData(
                f"{wav.path} has {wav.rate} Hz, more than {_WIDEST} times off {rate}",
                fix="convert the file",
            )
        note(f"sound of {wav.rate} Hz is resampled to {rate}")
    for wav in wavs:
        shown = str(wav.path.relative_to(folder))
        extras = {"group": Column.from_array(np.array(shown))}
        if wav.path.parent.name in class_numbers and wav.path.parent != folder:
            extras["label"] = Column.from_array(np.array(class_numbers[wav.path.parent.name]))
        if settings.rate_input:
            rate_spec = specs[settings.rate_input]
            if rate_spec.dtype in checks.TEXT:
                raise BadData(
                    f"input '{rate_spec.name}' takes text, no rate",
                    fix=f"name another in {SETTINGS}",
                )
            shape, dtype = (1,) * len(rate_spec.shape or ()), parse_dtype(rate_spec.dtype)
            extras[rate_spec.name] = Column.from_array(np.full(shape, rate, dtype))
        for at, chunk in enumerate(_cut_chunks(wav, rate, settings, spec, note)):
            values = chunk if features is None else features.compute(chunk[0])[None]
            columns = {spec.name: Column.from_array(values), **extras}
            yield NamedArrays(f"{shown} chunk {at}", columns)


def _read_settings(
    path: Path, specs: Mapping[str, TensorSpec], note: Note
) -> tuple[Sound, TensorSpec]:
    keys = preprocess.read_preprocess_keys(path)
    try:
        settings = codec.build_dataclass(Sound, keys)
    except BadSettings as error:
        raise BadData(f"{path}: {error.what}", fix=error.fix) from None
    signal_inputs = [name for name in specs if name != settings.rate_input]
    name = settings.input or (signal_inputs[0] if len(signal_inputs) == 1 else "")
    for field, input_name in (("input", name), ("rate_input", settings.rate_input or name)):
        if input_name not in specs:
            raise BadData(
                f"sound for the input '{input_name}': the model's are {', '.join(specs)}",
                fix=f'name one of them in {path}: {field} = "..."',
            )
    spec = specs[name]
    if spec.dtype in checks.TEXT or parse_dtype(spec.dtype).kind not in "fiu":
        raise BadData(
            f"input '{name}' takes {spec.dtype}, not sound", fix=f"name another in {path}"
        )
    note(f"sound ({SETTINGS if keys else f'no {SETTINGS}, so by default'}): {settings}")
    return settings, spec


def _cut_chunks(
    wav: Wav, rate: int, settings: Sound, spec: TensorSpec, note: Note
) -> Iterator[NDArray[Any]]:
    """Yield the chunks of a file in the input's shape."""
    fixed = spec.shape[-1] if spec.shape else None
    length = settings.length or (fixed if isinstance(fixed, int) else 0)
    if not wav.frames:
        raise BadData(f"{wav.path} holds no sound", fix="remove it")
    step = settings.step or length
    if wav.rate != rate:
        resampled_frames = math.ceil(wav.frames * rate / wav.rate)
        sizes.require_memory(
            8 * wav.channels * (wav.frames + resampled_frames), f"{wav.path} at {rate} Hz"
        )
        if parse_dtype(spec.dtype).kind != "f":
            raise BadData(
                f"{wav.path} cannot be resampled for input '{spec.name}' of {spec.dtype}",
                fix=f"convert it to {rate} Hz",
            )
        signal = _mix_channels(wav, 0, wav.frames, settings, spec, note)
        resampled = _import_library("soxr").resample(signal.T, wav.rate, rate)
        whole = np.asarray(resampled, np.float32).T
        for start, stop in _list_chunk_bounds(whole.shape[1], length, step, settings.tail):
            yield _pad_chunk(whole[:, start:stop], stop - start, spec)
        return
    for start, stop in _list_chunk_bounds(wav.frames, length, step, settings.tail):
        width = (stop - start) * wav.channels * 8
        sizes.require_memory(width, f"a chunk of {wav.path}", f"write a length into {SETTINGS}")
        yield _pad_chunk(_mix_channels(wav, start, stop, settings, spec, note), stop - start, spec)


def _list_chunk_bounds(
    frames: int, length: int, step: int, tail: str
) -> Iterator[tuple[int, int]]:
    """Yield where chunks begin and end; one that is padded ends behind the last frame."""
    if not length:
        yield 0, frames
        return
    for start in range(0, frames, step):
        if start + length > frames and tail == "drop":
            return
        yield start, start + length
        if start + length >= frames:
            return


def _mix_channels(
    wav: Wav, start: int, stop: int, settings: Sound, spec: TensorSpec, note: Note
) -> NDArray[Any]:
    """Return frames [channels, n] in the input's type: floats between -1 and 1, or as stored."""
    dtype = parse_dtype(spec.dtype)
    if dtype.kind == "f" or dtype.isbuiltin == 2:
        values = wav.read(start, stop)
    elif _STORED[wav.kind] == spec.dtype:
        values = wav.read(start, stop, spec.dtype)
    else:
        raise BadData(
            f"{wav.path} holds {_STORED[wav.kind]}, and input '{spec.name}' takes {spec.dtype}",
            fix=f"convert it to {8 * dtype.itemsize} bit PCM",
        )
    input_channels = spec.shape[1] if spec.shape is not None and len(spec.shape) == 3 else 0
    mode = settings.channels or ("each" if input_channels == wav.channels > 1 else "mean")
    if mode == "first":
        values = values[:, :1]
    elif mode == "mean" and wav.channels > 1:
        note(f"{format_count(wav.channels, 'channel')} of sound are averaged to one")
        mean = values.mean(axis=1, dtype=np.float64, keepdims=True)
        values = (np.rint(mean) if values.dtype.kind in "iu" else mean).astype(values.dtype)
    return values.T.astype(dtype)


def _pad_chunk(values: NDArray[Any], length: int, spec: TensorSpec) -> NDArray[Any]:
    """Fill a chunk [channels, n] up with silence, and give it the input's rank."""
    silence = 128 if values.dtype == np.uint8 else 0
    missing = length - values.shape[1]
    filled = np.pad(values, ((0, 0), (0, missing)), constant_values=silence)
    rank = 2 if spec.shape is None else len(spec.shape)
    if rank > 2:
        return filled.reshape((1,) * (rank - 2) + filled.shape)
    return filled[0] if rank == 1 and len(filled) == 1 else filled
