"""Altered copies of calibration samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ortune.core.errors import BadData, OrtuneError
from ortune.core.facts import TensorSpec
from ortune.data import augment, feeds
from ortune.data.augmentations.flip import Flip
from ortune.data.augmentations.noise import Noise
from ortune.data.augmentations.scale import Scale
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream


def _feeds(folder: Path, samples: list[dict[str, np.ndarray]]) -> Feeds:
    inputs = [
        TensorSpec(name, array.dtype.name, (None, *array.shape[1:]))
        for name, array in samples[0].items()
    ]
    return feeds.load_feeds(lambda: iter(samples), inputs, folder / "in")


def _images(count: int = 3, shape: tuple[int, ...] = (1, 3, 4, 6)) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def test_each_way_adds_a_copy_behind_the_originals(tmp_path: Path) -> None:
    samples = _images()
    made = augment.augment_samples(
        _feeds(tmp_path, samples),
        [0, 2],
        augment.parse_augmentations("noise(db=20),flip,scale(low=2,high=2)"),
        tmp_path / "out",
    )
    stream = Stream(made.stream)
    assert made.count == len(stream) == 8
    for place, index in enumerate((0, 2)):
        x = samples[index]["x"]
        assert np.array_equal(stream[place]["x"], x)
        noise = stream[2 + place]["x"] - x
        ratio = float(np.mean(x**2) / np.mean(noise**2))
        assert 10 * np.log10(ratio) == pytest.approx(20, abs=1.5)
        assert np.array_equal(stream[4 + place]["x"], x[..., ::-1])
        assert np.allclose(stream[6 + place]["x"], 2 * x)


def test_copies_belong_to_their_originals_group(tmp_path: Path) -> None:
    fed = _feeds(tmp_path, _images())
    made = augment.augment_samples(
        fed, [0, 1, 2], augment.parse_augmentations("flip"), tmp_path / "out"
    )
    assert made.groups == (*fed.digests, *fed.digests)
    assert len(set(made.digests)) == 6
    assert made.labels is None


def test_equal_arguments_make_equal_samples_and_another_seed_others(tmp_path: Path) -> None:
    fed, ways = _feeds(tmp_path, _images()), augment.parse_augmentations("noise,scale")
    made = [
        augment.augment_samples(fed, [0, 1], ways, tmp_path / f"{k}", seed=k // 2)
        for k in range(3)
    ]
    assert made[0].digests == made[1].digests != made[2].digests


def test_the_layout_is_told_by_the_shape() -> None:
    wide = np.arange(48, dtype=np.float32).reshape(1, 4, 4, 3)
    rng = np.random.default_rng(0)
    with pytest.raises(BadData, match=r"1x4x4x3 leaves the layout open"):
        Flip().takes(wide)
    assert np.array_equal(Flip(layout="NHWC").alter(wide, rng), wide[:, :, ::-1])
    nhwc = np.arange(90, dtype=np.float32).reshape(1, 5, 6, 3)
    assert np.array_equal(Flip().alter(nhwc, rng), nhwc[:, :, ::-1])
    assert not Flip().takes(np.zeros((1, 128), np.float32))


def test_sigma_is_a_share_of_the_root_mean_square() -> None:
    x = np.full((1, 10_000), 5.0, np.float32)
    altered = Noise(sigma=0.1).alter(x, np.random.default_rng(0))
    assert float(np.std(altered - x)) == pytest.approx(0.5, rel=0.05)
    assert Noise(db=20).share == pytest.approx(0.1)
    assert altered.dtype == np.float32


def test_integers_stay(tmp_path: Path) -> None:
    samples = [{"ids": np.array([[1, 2]]), "x": np.ones((1, 2), np.float32)} for _ in range(2)]
    samples[1]["x"] = samples[1]["x"] * 3
    made = augment.augment_samples(
        _feeds(tmp_path, samples), [0, 1], augment.parse_augmentations("noise"), tmp_path / "out"
    )
    stream = Stream(made.stream)
    assert np.array_equal(stream[2]["ids"], samples[0]["ids"])
    assert not np.array_equal(stream[2]["x"], samples[0]["x"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("noise", "no input is float"),
        ("flip", "no input is float"),
        ("noise(inputs=[ids])", "'ids' is int64"),
        ("noise(inputs=[x])", "no input 'x'"),
    ],
)
def test_integer_only_inputs_are_an_error(tmp_path: Path, text: str, says: str) -> None:
    fed = _feeds(tmp_path, [{"ids": np.array([[1, 2]])}])
    with pytest.raises(BadData, match=says):
        augment.augment_samples(fed, [0], augment.parse_augmentations(text), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_flip_without_an_image_is_an_error(tmp_path: Path) -> None:
    fed = _feeds(tmp_path, [{"x": np.ones((1, 16), np.float32)}])
    with pytest.raises(BadData, match=r"flip has nothing to alter in x \[1, 16\]"):
        augment.augment_samples(fed, [0], [Flip()], tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("noise(db=30, sigma=0.1)", "both db and sigma"),
        ("noise(sigma=0)", "noise of 0 times"),
        ("scale(low=2, high=1)", "not a range of factors"),
        ("scale(low=0)", "not a range of factors"),
        ("blur", "no augmentation 'blur'"),
        ("noise(db=30", "noise"),
        ("", "a name expected"),
        ("flip(layout=CHW)", "CHW"),
    ],
)
def test_wrong_words_are_refused(text: str, error: str) -> None:
    with pytest.raises(OrtuneError, match=error):
        augment.parse_augmentations(text)


def test_a_factor_is_drawn_for_each_sample() -> None:
    x = np.ones((1, 4), np.float32)
    drawn = [Scale().alter(x, np.random.default_rng([0, k]))[0, 0] for k in range(50)]
    assert min(drawn) >= 0.9
    assert max(drawn) <= 1.1
    assert len(set(drawn)) > 40
