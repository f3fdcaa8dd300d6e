"""What every reader of samples is told: the model's inputs, and what becomes them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ortune.core.errors import BadModel
from ortune.core.facts import TensorSpec
from ortune.core.hub import HubFolder
from ortune.data import checks
from ortune.data.checks import Note
from ortune.data.sentences import Sentences

_USUAL = {"sampling_rate": 16000, "chunk_length": 30, "feature_size": 80}
_USUAL |= {"hop_length": 160, "n_fft": 400}
"""Settings of an extractor, and Whisper's."""
_MOST = 1 << 17
_TOP_HZ, _LINEAR_HZ, _LINEAR_MELS, _STEP = 8000.0, 1000.0, 15.0, 27.0 / np.log(6.4)
"""Slaney's scale: 15 mels up to 1000 Hz, and then a logarithm."""


@dataclass(frozen=True)
class LogMel:
    """Logarithms of the energy in bands, frame by frame, as transformers gives them to Whisper."""

    rate: int  # of the sound, in Hz
    length: int  # samples of sound that make up one answer; what is shorter is filled with silence
    bands: int  # of each frame
    hop: int  # samples from frame to frame
    width: int  # samples of a frame

    def compute(self, signal: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [bands, frames] of a signal of `length` samples."""
        half = self.width // 2
        frames = sliding_window_view(np.pad(signal, half, mode="reflect"), self.width)[:: self.hop]
        window = np.hanning(self.width + 1)[:-1]
        power = np.abs(np.fft.rfft(frames[:-1] * window)) ** 2
        log = np.log10(np.maximum(self._make_filters() @ power.T, 1e-10))
        return np.asarray((np.maximum(log, log.max() - 8.0) + 4.0) / 4.0, np.float32)

    def _make_filters(self) -> NDArray[np.float64]:
        """Return triangles of equal area on Slaney's scale, [bands, frequencies]."""
        top = _LINEAR_MELS + np.log(_TOP_HZ / _LINEAR_HZ) * _STEP
        mels = np.linspace(0.0, top, self.bands + 2)
        edges = np.where(
            mels < _LINEAR_MELS,
            mels * _LINEAR_HZ / _LINEAR_MELS,
            _LINEAR_HZ * np.exp((mels - _LINEAR_MELS) / _STEP),
        )
        hertz = np.linspace(0.0, self.rate // 2, self.width // 2 + 1)
        rising = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        falling = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
        areas = 2.0 / (edges[2:] - edges[:-2])
        return np.asarray(np.maximum(0.0, np.minimum(rising, falling)) * areas[:, None])


@dataclass(frozen=True)
class Waveform:
    """Sound as it is, or of mean 0 and variance 1, as transformers gives it to wav2vec2."""

    rate: int  # of the sound, in Hz
    normalizes: bool  # mean and variance of every file are brought to 0 and 1
    length: int = 0  # samples of sound that make up one answer; 0 for any number

    def compute(self, signal: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [samples] of a signal."""
        if not self.normalizes:
            return signal
        return np.asarray((signal - signal.mean()) / np.sqrt(signal.var() + 1e-7), np.float32)


Features: TypeAlias = LogMel | Waveform
"""What models take in the place of sound."""


def read_features(settings: HubFolder | None) -> Features | None:
    """Return what a folder's feature extractor computes; None of another kind, or without one.

    Raises:
        BadModel: Its settings are out of bounds.
    """
    keys = {} if settings is None else settings.extractor
    kind = keys.get("feature_extractor_type")
    if kind not in ("WhisperFeatureExtractor", "Wav2Vec2FeatureExtractor"):
        return None
    values = [keys.get(name, usual) for name, usual in _USUAL.items()]
    if kind == "Wav2Vec2FeatureExtractor":  # it has a rate alone; what else stands there is unused
        values[1:] = list(_USUAL.values())[1:]
    if not all(type(value) is int and 0 < value <= _MOST for value in values):
        raise BadModel(
            f"the feature extractor has {dict(zip(_USUAL, values, strict=True))}",
            fix=f"give whole numbers up to {_MOST}, or download the folder again",
        )
    rate, seconds, bands, hop, width = values
    if kind == "Wav2Vec2FeatureExtractor":
        return Waveform(rate, keys.get("do_normalize", True) is True)
    return LogMel(rate, seconds * rate, bands, hop, width)


@dataclass(frozen=True)
class Reading:
    """How what a source holds becomes a model's inputs."""

    inputs: Sequence[TensorSpec]
    note: Note  # takes what a person should know
    # Keys of ``preprocess.toml`` in the place of those beside images.
    pictures: Mapping[str, Any] | None = None
    optional: Collection[str] = ()  # inputs that may be left out
    # The model's own, in the order of their numbers: folders are called by them.
    classes: Sequence[str] = ()
    # What tokenizes rows with texts; None where the model's folder has no tokenizer.
    sentences: Sentences | None = None
    features: Features | None = None  # what the model takes in the place of sound

    @property
    def needed(self) -> list[TensorSpec]:
        """Inputs that may not be left out."""
        return [spec for spec in self.inputs if spec.name not in self.optional]

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """The inputs by their names."""
        return checks.specs_by_name(self.inputs)
