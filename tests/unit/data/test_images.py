import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.data.feeds import Feeds, load_feeds
from ortune.data.stream import Stream

NCHW = TensorSpec("image", "float32", ("batch", 3, 4, 6))
ANY = TensorSpec("image", "float32", ("batch", 3, None, None))


def picture(height: int = 4, width: int = 6) -> np.ndarray:
    red, green = np.mgrid[0:height, 0:width]
    blue = np.full((height, width), 100)
    return np.stack([red * 10, green * 20, blue], axis=-1).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "images"
    made.mkdir()
    Image.fromarray(picture()).save(made / "a.png")
    return made


def tensors(folder: Path, spec: TensorSpec, toml: str | None = None) -> tuple[np.ndarray, Feeds]:
    if toml is not None:
        (folder / "preprocess.toml").write_text(toml)
    feeds = load_feeds(folder, [spec], folder.parent / "out")
    return Stream(feeds.stream)[0][spec.name], feeds


def test_defaults_are_read_off_the_input_and_stated(folder: Path) -> None:
    found, feeds = tensors(folder, NCHW)
    np.testing.assert_allclose(found[0], picture().transpose(2, 0, 1) / 255, rtol=1e-6)
    assert found.dtype == np.float32
    (note,) = feeds.notes
    assert note == (
        "images (no preprocess.toml, so by default): resized to 4x6, bilinear, rgb, "
        "(pixel * 0.00392157 - 0) / 1, NCHW float32"
    )


def test_the_size_is_kept_where_the_model_takes_any(folder: Path) -> None:
    Image.fromarray(picture(5, 9)).save(folder / "a.png")
    assert tensors(folder, ANY)[0].shape == (1, 3, 5, 9)


def test_channels_last_bytes_keep_their_pixels(folder: Path) -> None:
    spec = TensorSpec("image", "uint8", (1, None, None, 3))
    found, feeds = tensors(folder, spec)
    np.testing.assert_array_equal(found[0], picture())
    assert "NHWC uint8" in feeds.notes[0]


def test_one_channel_is_gray(folder: Path) -> None:
    found, _ = tensors(folder, TensorSpec("image", "float32", ("n", 1, 4, 6)))
    expected = np.asarray(Image.fromarray(picture()).convert("L"), np.float32) / 255
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-6)


def test_mean_and_std_follow_the_channels_as_fed(folder: Path) -> None:
    toml = 'channels = "bgr"\nmean = [0.1, 0.2, 0.3]\nstd = [1, 2, 4]\n'
    found, feeds = tensors(folder, NCHW, toml)
    bgr = picture()[..., ::-1] / 255
    expected = ((bgr - [0.1, 0.2, 0.3]) / [1, 2, 4]).transpose(2, 0, 1)
    np.testing.assert_allclose(found[0], expected, atol=1e-6)
    assert feeds.notes[0].startswith("images (preprocess.toml): ")
    found, _ = tensors(folder, NCHW, "scale = 1\nmean = 127\nstd = 128.0\n")
    np.testing.assert_allclose(found[0], (picture().transpose(2, 0, 1) - 127.0) / 128)


def test_resize_of_the_shorter_side_then_centre_crop(folder: Path) -> None:
    Image.fromarray(picture(8, 12)).save(folder / "a.png")
    found, _ = tensors(folder, ANY, "resize = 8\ncrop = [4, 6]\n")
    expected = picture(8, 12)[2:6, 3:9].transpose(2, 0, 1) / 255
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    found, _ = tensors(folder, ANY, "resize = [3, 5]\ninterpolation = 'nearest'\n")
    assert found.shape == (1, 3, 3, 5)


def test_integers_are_rounded_and_held_in_range(folder: Path) -> None:
    spec = TensorSpec("image", "int8", (1, 3, 4, 6))
    found, _ = tensors(folder, spec, "scale = 1\nmean = 90\n")
    expected = np.clip(picture().transpose(2, 0, 1).astype(int) - 90, -128, 127)
    np.testing.assert_array_equal(found[0], expected)


def test_sub_folders_are_classes(tmp_path: Path) -> None:
    top = tmp_path / "images"
    for name in ("dog", "cat"):
        (top / name).mkdir(parents=True)
        Image.fromarray(picture()).save(top / name / f"{name}.png")
    (top / "preprocess.toml").write_text("mean = 0.5\n")
    feeds = load_feeds(top, [NCHW], tmp_path / "out")
    assert feeds.labels == (0, 1)
    numbered = "labels from sub-folder names, numbered by name, as there is no classes.txt: "
    assert f"{numbered}0 = cat, 1 = dog" in feeds.notes
    for old, new in (("cat", "10"), ("dog", "2")):
        (top / old).rename(top / new)
    assert load_feeds(top, [NCHW], tmp_path / "out").labels == (10, 2)
    assert load_feeds(top, [NCHW], tmp_path / "out", labels=["x", "y"]).labels == ("x", "y")


def test_one_sub_folder_is_no_class(tmp_path: Path) -> None:
    (tmp_path / "images" / "photos").mkdir(parents=True)
    Image.fromarray(picture()).save(tmp_path / "images" / "photos" / "a.png")
    assert load_feeds(tmp_path / "images", [NCHW], tmp_path / "out").labels is None


def test_one_image_with_settings_beside_it(folder: Path) -> None:
    (folder / "preprocess.toml").write_text("scale = 1\n")
    feeds = load_feeds(folder / "a.png", [NCHW], folder.parent / "out")
    np.testing.assert_array_equal(
        Stream(feeds.stream)[0]["image"][0], picture().transpose(2, 0, 1)
    )


def test_palette_and_alpha_become_rgb(folder: Path) -> None:
    Image.fromarray(picture()).quantize(256).save(folder / "a.png")
    assert tensors(folder, NCHW)[0].shape == (1, 3, 4, 6)
    Image.fromarray(picture()).convert("RGBA").save(folder / "a.png")
    np.testing.assert_allclose(
        tensors(folder, NCHW)[0][0], picture().transpose(2, 0, 1) / 255, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("toml", "what"),
    [
        ("colour = 1", "preprocess.toml: Preprocess has no field 'colour'"),
        ("resize = [1, 2, 3]", "[1, 2, 3] is of length 3"),
        ("layout = 'CHWN'", "'CHWN' is not allowed"),
        ("mean = [1.0, 2.0]", "mean is of length 2, channels: 3"),
        ("input = 'x'", "images for the input 'x'"),
        ("dtype = 'float99'", "no dtype 'float99'"),
        ("dtype = 'uint8'", "Got uint8, expected float32"),
        ("crop = 7", "a.png is 4x6, smaller than crop 7x7"),
        ("crop = 2", "Got [1, 3, 2, 2], expected [batch, 3, 4, 6]"),
        ("layout = 'NHWC'", "Got [1, 3, 4, 3], expected [batch, 3, 4, 6]"),
        ("std = 0", "input 'image' holds"),
        ("= 3", "cannot read"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_settings_that_do_not_fit(folder: Path, toml: str, what: str) -> None:
    with pytest.raises(BadData) as error:
        tensors(folder, NCHW, toml)
    assert what in error.value.what
    assert len(str(error.value).splitlines()) == 2


def test_the_documented_settings_are_read(folder: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    toml = text.partition("```toml\n")[2].partition("```")[0]
    found, feeds = tensors(folder, ANY, toml)
    assert found.shape == (1, 3, 224, 224)
    assert feeds.notes[0].startswith(
        "images (preprocess.toml): resized to 256 (shorter side), centre 224x224 cropped, "
        "bilinear, rgb, (pixel * 0.00392157 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]"
    )


def test_a_file_that_is_no_image(folder: Path) -> None:
    (folder / "b.jpg").write_text("not an image")
    with pytest.raises(BadData, match=r"cannot read .*b\.jpg"):
        tensors(folder, NCHW)


def test_several_inputs_need_a_name(folder: Path) -> None:
    with pytest.raises(BadData, match=r"the model's are image, size\n  fix: name one"):
        load_feeds(folder, [NCHW, TensorSpec("size", "int64", (1,))], folder.parent / "out")


def test_without_pillow_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "PIL":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadData, match="pip install pillow"):
        tensors(folder, NCHW)
