"""Sound files as samples: every width, chunks, channels, rates, and what is refused."""

from __future__ import annotations

import json
import struct
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune.core import hub
from ortune.core.errors import BadData, BadModel
from ortune.core.facts import TensorSpec
from ortune.data import feeds
from ortune.data.formats.sounds import open_wav
from ortune.data.stream import Stream

MONO = TensorSpec("audio", "float32", ("batch", "samples"))
FIXED = TensorSpec("audio", "float32", (1, 400))
RATE = 16_000


def riff(
    data: bytes, *, kind: int = 1, channels: int = 1, rate: int = RATE, bits: int = 16
) -> bytes:
    """Return a file of one format; `data` as they are stored."""
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * frame, frame, bits)
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(form)) + form
    body += (
        b"LIST" + struct.pack("<I", 3) + b"abc\0" + b"data" + struct.pack("<I", len(data)) + data
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def write(path: Path, values: np.ndarray, rate: int = RATE) -> Path:
    """Write int16 [n] or [n, channels] by Python's own library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if values.ndim == 1 else values.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(values.astype("<i2").tobytes())
    return path


def tone(count: int, rate: int = RATE) -> np.ndarray:
    return (8000 * np.sin(2 * np.pi * 440 * np.arange(count) / rate)).astype(np.int16)


def load(
    source: Path, out: Path, *inputs: TensorSpec
) -> tuple[feeds.Feeds, list[dict[str, np.ndarray]]]:
    found = feeds.load_feeds(source, inputs or (MONO,), out)
    return found, [dict(one) for one in Stream(found.stream)]


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20),
    bits=st.sampled_from([8, 16, 24, 32]),
    channels=st.integers(1, 3),
)
def test_every_width_is_read_as_it_is_stored(
    tmp_path_factory: pytest.TempPathFactory, values: list[int], bits: int, channels: int
) -> None:
    path = tmp_path_factory.mktemp("w") / "a.wav"
    stored = np.repeat(np.array(values) >> (32 - bits), channels)
    shifted = stored + (128 if bits == 8 else 0)
    data = b"".join(
        int(one).to_bytes(bits // 8, "little", signed=bits > 8) for one in shifted.tolist()
    )
    path.write_bytes(riff(data, bits=bits, channels=channels))
    found = open_wav(path)
    assert (found.frames, found.channels, found.rate) == (len(values), channels, RATE)
    floats = found.read(0, found.frames)
    np.testing.assert_allclose(floats.reshape(-1), stored / 2.0 ** (bits - 1), atol=1e-7)
    np.testing.assert_array_equal(found.read(1, 3), floats[1:3])
    if bits != 24:
        whole = found.read(0, found.frames, {8: "uint8", 16: "int16", 32: "int32"}[bits])
        np.testing.assert_array_equal(whole.astype(np.int64).reshape(-1), shifted)


def test_floats_and_the_extensible_header(tmp_path: Path) -> None:
    values = np.array([0.5, -0.25, 1.5], np.float32)
    (tmp_path / "a.wav").write_bytes(riff(values.tobytes(), kind=3, bits=32))
    form = struct.pack("<HHIIHHHHIH", 0xFFFE, 1, RATE, RATE * 4, 4, 32, 22, 32, 0, 3)
    form += bytes.fromhex("000000001000800000aa00389b71")
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    body += b"data" + struct.pack("<I", 0xFFFFFFFF) + values.tobytes()
    (tmp_path / "b.wav").write_bytes(b"RIFF" + struct.pack("<I", 0xFFFFFFFF) + body)
    found, samples = load(tmp_path, tmp_path / "out")
    assert found.groups == ("a.wav", "b.wav")
    for one in samples:
        np.testing.assert_array_equal(one["audio"], values[None])


def test_a_file_is_cut_to_the_models_length_and_its_chunks_are_a_group(tmp_path: Path) -> None:
    write(tmp_path / "yes" / "a.wav", tone(1000))
    write(tmp_path / "no" / "b.wav", tone(400))
    found, samples = load(tmp_path, tmp_path / "out", FIXED)
    assert (found.count, found.groups) == (4, ("no/b.wav", *["yes/a.wav"] * 3))
    assert found.labels == (0, 1, 1, 1)
    whole = np.concatenate([one["audio"][0] for one in samples[1:]])
    np.testing.assert_allclose(whole[:1000], tone(1000) / 32768, atol=1e-7)
    assert not whole[1000:].any()


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("", [(1, 1000)]),
        ("length = 300", [(1, 300)] * 4),
        ('length = 300\ntail = "drop"', [(1, 300)] * 3),
        ("length = 300\nstep = 150", [(1, 300)] * 6),
        ("length = 2000", [(1, 2000)]),
        ('length = 2000\ntail = "drop"\nstep = 1', None),
    ],
)
def test_length_step_and_tail(
    tmp_path: Path, text: str, shapes: list[tuple[int, ...]] | None
) -> None:
    write(tmp_path / "d" / "a.wav", tone(1000))
    (tmp_path / "d" / "sound.toml").write_text(text)
    if shapes is None:
        with pytest.raises(BadData, match="no samples"):
            load(tmp_path / "d", tmp_path)
        return
    _, samples = load(tmp_path / "d", tmp_path)
    assert [one["audio"].shape for one in samples] == shapes


@pytest.mark.parametrize(
    ("text", "dims", "wanted"),
    [
        ("", ("batch", None), [[2, 6]]),
        ('channels = "first"', ("batch", None), [[1, 5]]),
        ("", ("batch", 2, None), [[[1, 5], [3, 7]]]),
        ('channels = "mean"', ("batch", 1, None), [[[2, 6]]]),
    ],
)
def test_channels(tmp_path: Path, text: str, dims: tuple[object, ...], wanted: object) -> None:
    write(tmp_path / "d" / "a.wav", np.array([[1, 3], [5, 7]]))
    (tmp_path / "d" / "sound.toml").write_text(text)
    found, samples = load(tmp_path / "d", tmp_path, TensorSpec("x", "int16", dims))
    np.testing.assert_array_equal(samples[0]["x"], wanted)
    noted = any("averaged" in note for note in found.notes)
    assert noted == ("first" not in text and 2 not in dims)


def test_the_rate_goes_to_an_input_and_must_be_the_models(tmp_path: Path) -> None:
    write(tmp_path / "d" / "a.wav", tone(800, 8000), 8000)
    rate = TensorSpec("sr", "int64", ())
    (tmp_path / "d" / "sound.toml").write_text('rate_input = "sr"')
    _, samples = load(tmp_path / "d", tmp_path, MONO, rate)
    assert samples[0]["sr"] == 8000
    (tmp_path / "d" / "sound.toml").write_text("rate = 16000")
    with pytest.raises(
        BadData, match=r"a.wav has 8000 Hz, the model's is 16000\n  fix: .*resample"
    ):
        load(tmp_path / "d", tmp_path)
    (tmp_path / "d" / "sound.toml").write_text("rate = 16000\nresample = true")
    found, samples = load(tmp_path / "d", tmp_path)
    assert "sound of 8000 Hz is resampled to 16000" in found.notes
    wanted = 8000 / 32768 * np.sin(2 * np.pi * 440 * np.arange(1600) / 16000)
    assert abs(samples[0]["audio"][0] - wanted)[100:-100].max() < 0.002
    (tmp_path / "d" / "sound.toml").write_text("rate = 9999999\nresample = true")
    with pytest.raises(BadData, match=r"8000 Hz, more than 256 times off 9999999\n  fix: "):
        load(tmp_path / "d", tmp_path)
    write(tmp_path / "d" / "b.wav", tone(800))
    (tmp_path / "d" / "sound.toml").write_text("")
    with pytest.raises(BadData, match=r"b.wav has 16000 Hz, that of the first file is 8000"):
        load(tmp_path / "d", tmp_path)


@pytest.mark.parametrize(
    ("own", "wanted"), [(8000, 16000), (16000, 8000), (44100, 16000), (48000, 44100), (3, 2)]
)
def test_resampling_keeps_what_is_below_both_rates_and_drops_the_rest(
    tmp_path: Path, own: int, wanted: int
) -> None:
    at = np.arange(4000)
    low, high = (np.sin(2 * np.pi * share * min(own, wanted) / own * at) for share in (0.1, 0.8))
    write(tmp_path / "a.wav", 8000 * (low + (high if own > 1.6 * wanted else 0)), own)
    (tmp_path / "sound.toml").write_text(f"rate = {wanted}\nresample = true")
    _, samples = load(tmp_path, tmp_path / "out")
    found = samples[0]["audio"][0]
    assert abs(len(found) - 4000 * wanted / own) < 1
    share = 0.1 * min(own, wanted) / wanted
    true = 8000 / 32768 * np.sin(2 * np.pi * share * np.arange(len(found)))
    assert abs(found - true)[200:-200].max() < 1e-4


@pytest.mark.parametrize("library", ["soundfile", "soxr"])
def test_without_a_library_two_lines_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    write(tmp_path / "d" / "a.wav", tone(800))
    (tmp_path / "d" / "sound.toml").write_text("rate = 8000\nresample = true")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(BadData, match=rf"needs {library}.*\n  fix: pip install {library}"):
        load(tmp_path / "d", tmp_path)


GOOD = riff(tone(100).tobytes())


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "no RIFF/WAVE file"),
        (b"hello world", "no RIFF/WAVE file"),
        (GOOD[:30], "promises 256 bytes, and there are 30"),
        (b"RIFF\0\0\0\0AVI " + GOOD[12:], "no RIFF/WAVE file"),
        (GOOD[:-20], "promises 256 bytes, and there are 236"),
        (riff(b"\0" * 8, kind=85), "Malformed"),
        (riff(b"\0" * 8, bits=64, kind=3), "DOUBLE is not read"),
        (riff(b"\0" * 8, channels=0), "Channel count is zero"),
        (riff(b"\0" * 8, rate=0), "incomplete"),
        (riff(b""), "holds no sound"),
        (riff(np.array([np.nan], np.float32).tobytes(), kind=3, bits=32), "nan"),
        (riff(b"")[:4] + b"\0" * 4 + GOOD[8:12] + GOOD[36:], "No .data. chunk"),
    ],
)
def test_what_is_no_sound_is_two_lines(tmp_path: Path, data: bytes, what: str) -> None:
    (tmp_path / "a.wav").write_bytes(data)
    with pytest.raises(BadData, match=rf"{what}.*\n  fix: "):
        load(tmp_path / "a.wav", tmp_path)


@pytest.mark.parametrize(
    ("text", "inputs", "what"),
    [
        ("", (MONO, TensorSpec("state", "float32", (2, 1, 8))), "for the input ''"),
        ('input = "y"', (MONO,), "for the input 'y'"),
        ('rate_input = "y"', (MONO,), "for the input 'y'"),
        ("length = -1", (MONO,), "length"),
        ("loud = 1", (MONO,), "no field 'loud'"),
        ("", (TensorSpec("x", "int32", (1, None)),), "holds int16, and input 'x' takes int32"),
        ("", (TensorSpec("x", "str", (1, None)),), "not sound"),
        ("x = [", (MONO,), "cannot read"),
    ],
)
def test_settings_that_do_not_fit(
    tmp_path: Path, text: str, inputs: tuple[TensorSpec, ...], what: str
) -> None:
    write(tmp_path / "d" / "a.wav", tone(10))
    (tmp_path / "d" / "sound.toml").write_text(text)
    with pytest.raises(BadData, match=rf"{what}.*\n  fix: "):
        load(tmp_path / "d", tmp_path, *inputs)


def test_a_model_that_spells_takes_whole_files_and_their_texts(tmp_path: Path) -> None:
    """Of mean 0 and variance 1, whatever the length; letters as the alphabet has them."""
    config = {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "vocab.json").write_text('{"<pad>": 0, "|": 1, "A": 2, "B": 3, "<unk>": 4}')
    extractor = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 8000}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(extractor))
    write(tmp_path / "s" / "x" / "a.wav", tone(900) + 5000, 8000)
    write(tmp_path / "s" / "y" / "b.wav", tone(400), 16000)
    labels = tmp_path / "texts.csv"
    labels.write_text("file_name,text\nb.wav,  b  A?\na.wav,ab\n")
    spec, folder = (
        TensorSpec("input_values", "float32", ("batch", None)),
        hub.find_folder(tmp_path),
    )

    def load_texts(texts: Path | None) -> tuple[feeds.Feeds, list[np.ndarray]]:
        loaded = feeds.load_feeds(
            tmp_path / "s", [spec], tmp_path / "out", labels=texts, settings=folder
        )
        return loaded, [one["input_values"] for one in Stream(loaded.stream)]

    found, (first, second) = load_texts(labels)
    assert found.labels == ([2, 3], [3, 1, 2, 4])
    assert first.shape == (1, 900) and second.shape == (1, 200), "of another rate"
    assert abs(first.mean()) < 1e-5 and first.std() == pytest.approx(1, abs=1e-4)
    assert load_texts(None)[0].labels is None, "folders are no texts"
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({**extractor, "do_normalize": False})
    )
    _, (first, _) = load_texts(None)
    np.testing.assert_allclose(first[0], (tone(900) + 5000) / 32768, atol=1e-4)


def test_a_speech_model_takes_features_of_whole_chunks(tmp_path: Path) -> None:
    """1000 Hz are 15 of the 45.2 mels that 40 bands share; silence is the same everywhere."""
    keys = {"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": 1}
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}')
    extractor = tmp_path / "preprocessor_config.json"
    extractor.write_text(json.dumps({**keys, "feature_size": 40}))
    pitch = 8000 * np.sin(2 * np.pi * 1000 * np.arange(24_000) / RATE)
    silence = np.zeros(8_000)
    path = write(tmp_path / "a" / "b.wav", np.concatenate([pitch, silence, silence]))
    spec = TensorSpec("input_features", "float32", ("batch", 40, 100))
    folder = hub.find_folder(tmp_path)
    found = feeds.load_feeds(path, [spec], tmp_path / "out", settings=folder)
    first, second, third = (one["input_features"] for one in Stream(found.stream))
    assert first.shape == (1, 40, 100) and found.groups == ("b.wav",) * 3
    assert set(first[0, :, 3:97].argmax(0)) == {round(15 / 45.245 * 41) - 1}
    assert np.all(second[0, :, 55:] == second.min()) and second.max() - second.min() == 2
    assert np.all(third == -1.5), "4 - 10, a quarter of it"
    extractor.write_text(json.dumps({**keys, "hop_length": 0}))
    with pytest.raises(BadModel, match="'hop_length': 0"):
        feeds.load_feeds(path, [spec], tmp_path / "bad", settings=hub.find_folder(tmp_path))
