"""A model that takes plain pictures answers as NumPy, Pillow and the model before did."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from PIL import Image
from tests.unit.quantizing import model_of as weighted
from tests.unit.rewriting import model_of, ops, run

import ortune as ot
from ortune.cli.main import main
from ortune.core import preprocess
from ortune.core.errors import BadData, BadModel, BadSettings, OrtuneError
from ortune.core.step import Recipe
from ortune.data import feeds, synthetic
from ortune.data.stream import Stream
from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file
from ortune.graph.io.wellformed import list_problems
from ortune.graph.ir import edit
from ortune.search.recipe.build import build
from ortune.transforms.fold_preprocess import FoldPreprocess

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)


def conv(pads: int = 0, sides: str = "8,10", bias: bool = True) -> ir.Model:
    rng = np.random.default_rng(3)
    held = {"w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32)}
    if bias:
        held["b"] = rng.standard_normal(4).astype(np.float32)
    text = f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[n,3,{sides}] x) => (float[n,4,oh,ow] y) {{
        y = Conv<pads = [{pads},{pads},{pads},{pads}]>(x, w{", b" if bias else ""}) }}"""
    return weighted(text, held)


def photo(height: int, width: int, channels: int = 3, count: int = 1) -> np.ndarray:
    """Smooth, with noise: neighbouring pixels are alike."""
    rng = np.random.default_rng(height + width)
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / (5 + c)) + np.cos(columns / (7 - c)) for c in range(channels)]
    values = np.stack(waves, -1) * 60 + 128 + rng.normal(0, 8, (count, height, width, channels))
    return np.clip(values, 0, 255).astype(np.uint8)


def wanted(model: ir.Model, pictures: np.ndarray, settings: preprocess.Preprocess) -> np.ndarray:
    rows = []
    for picture in pictures:
        image = Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture)
        pixels = preprocess.resize_and_crop(image, settings, "picture")
        rows.append(preprocess.normalize_pixels(pixels, settings))
    return run(model, {"x": np.stack(rows)})[0]


def folded(model: ir.Model, step: FoldPreprocess) -> ir.Model:
    after = model.clone()
    assert step.apply(after) > 0 and not list_problems(after)
    return after


def snr(one: np.ndarray, two: np.ndarray) -> float:
    assert one.shape == two.shape
    noise = float(np.square(one - two, dtype=np.float64).sum())
    return 10 * float(np.log10(np.square(one, dtype=np.float64).sum() / max(noise, 1e-30)))


@pytest.mark.parametrize("pads", [0, 1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_the_first_convolution_takes_scale_and_order(pads: int, bias: bool, channels: Any) -> None:
    before = conv(pads, bias=bias)
    step = FoldPreprocess(mean=MEAN, std=STD, channels=channels, size=(8, 10))
    after = folded(before, step)
    assert "Mul" not in ops(after) and "Gather" not in ops(after) and "Resize" not in ops(after)
    assert ops(after).get("Add", 0) == (1 if pads else 0)
    pictures = photo(8, 10, count=2)
    settings = preprocess.Preprocess(mean=MEAN, std=STD, channels=channels)
    found = run(after, {"x": pictures})[0]
    assert snr(wanted(before, pictures, settings), found) > 100


RESIZES: list[tuple[dict[str, Any], str]] = [
    ({"resize": (8, 10)}, "8,10"),
    ({"resize": (8, 10), "interpolation": "bicubic"}, "8,10"),
    ({"resize": 12, "crop": (8, 10)}, "8,10"),
    ({"resize": 11, "crop": (8, 10), "interpolation": "bicubic"}, "8,10"),
    ({"resize": 13}, "h,w"),
    ({"crop": (9, 7)}, "h,w"),
]


@pytest.mark.parametrize(("fields", "sides"), RESIZES)
@pytest.mark.parametrize("fixed", [True, False])
def test_pictures_are_resized_as_pillow_does(
    fields: dict[str, Any], sides: str, fixed: bool
) -> None:
    before = conv(sides=sides)
    for height, width in ((40, 31), (9, 57), (16, 16), (33, 48)):
        size = (height, width) if fixed else None
        after = folded(before, FoldPreprocess(mean=MEAN, std=STD, size=size, **fields))
        settings = preprocess.Preprocess(mean=MEAN, std=STD, **fields)
        pictures = photo(height, width)
        found = run(after, {"x": pictures})[0]
        assert snr(wanted(before, pictures, settings), found) > (35 if "resize" in fields else 100)


def test_bytes_differ_from_pillow_by_two_steps_at_most() -> None:
    source = """<ir_version: 8, opset_import: ["": 18]>
        g (float[n,h,w,3] x) => (float[n,h,w,3] y) { y = Identity(x) }"""
    for method in ("nearest", "bilinear", "bicubic"):
        fields: dict[str, Any] = {"resize": (20, 24), "interpolation": method, "scale": 1.0}
        after = folded(model_of(source), FoldPreprocess(layout="NHWC", **fields))
        for height, width in ((63, 51), (15, 9), (20, 24)):
            picture = photo(height, width)
            found = run(after, {"x": picture})[0][0]
            image = Image.fromarray(picture[0])
            told = preprocess.resize_and_crop(image, preprocess.Preprocess(**fields), "picture")
            assert np.abs(found - told).max() <= (0 if method == "nearest" else 2)
            assert np.abs(found - told).mean() < 0.05


def test_a_picture_smaller_than_the_crop_fails_and_does_not_go_on() -> None:
    after = folded(conv(sides="h,w"), FoldPreprocess(crop=(20, 20)))
    with pytest.raises(Exception, match="Reshape"):
        run(after, {"x": photo(16, 40)})


LAYOUTS = {
    "gray": ("float[n,1,8,10] x", {"x": (8, 10, 1)}, {}),
    "NHWC": ("float[n,8,10,3] x", {"x": (8, 10, 3)}, {}),
    "one picture": ("float[3,8,10] x", {"x": (8, 10, 3)}, {}),
    "bgr without a convolution": ("float[n,3,8,10] x", {"x": (8, 10, 3)}, {"channels": "bgr"}),
    "bytes": ("uint8[n,3,8,10] x", {"x": (8, 10, 3)}, {}),
    "half": ("float16[n,3,8,10] x", {"x": (8, 10, 3)}, {}),
}


@pytest.mark.parametrize("case", LAYOUTS)
@pytest.mark.parametrize("pixels", [(8, 10), (21, 17)])
def test_layouts_and_types(case: str, pixels: tuple[int, int]) -> None:
    declared, shapes, fields = LAYOUTS[case]
    kind = declared.partition("[")[0]
    dims = declared[len(kind) : declared.index("]") + 1]
    before = model_of(f"g ({declared}) => ({kind}{dims} y) {{ y = Identity(x) }}")
    mean = 0.0 if kind == "uint8" else 0.25
    after = folded(before, FoldPreprocess(mean=mean, **fields))  # type: ignore[arg-type]
    (taken,) = edit.list_inputs(after)
    depth = shapes["x"][2]
    assert taken.dtype == "uint8" and taken.shape is not None and taken.shape[-1] == depth
    pictures = photo(*pixels, channels=depth)
    settings = preprocess.Preprocess(
        resize=(8, 10),
        channels="gray" if depth == 1 else fields.get("channels", "rgb"),  # type: ignore[arg-type]
        mean=mean,
        scale=1.0 if kind == "uint8" else 1 / 255,
        layout="NHWC" if case == "NHWC" else "NCHW",
    )
    image = Image.fromarray(pictures[0][..., 0] if depth == 1 else pictures[0])
    told = preprocess.normalize_pixels(
        preprocess.resize_and_crop(image, settings, "picture"), settings
    )
    found = run(after, {"x": pictures[0] if case == "one picture" else pictures})[0]
    found = found if case == "one picture" else found[0]
    assert str(found.dtype) == {"float": "float32"}.get(kind, kind)
    limit = 2.1 if kind == "uint8" else 2.1 / 255
    assert np.abs(found.astype(np.float32) - told).max() <= limit
    if pixels == (8, 10):
        np.testing.assert_allclose(found.astype(np.float32), told, atol=2e-3)


WRONG: list[tuple[FoldPreprocess, str, str, str]] = [
    (FoldPreprocess(channels="gray"), "float[n,3,8,10] x", "takes 3 channels", 'channels = "rgb"'),
    (FoldPreprocess(), "float[n,4,8,10] x", "takes 4 channels", "name another input"),
    (FoldPreprocess(input="z"), "float[n,3,8,10] x", "no input 'z'", "x"),
    (FoldPreprocess(), "float[n,3,8,10] x, float[2] s", "2 inputs", "x, s"),
    (FoldPreprocess(), "float[n,10] x", "takes no pictures", "shape"),
    (FoldPreprocess(), "int64[n,3,8,10] x", "is int64", "floats or bytes"),
    (FoldPreprocess(interpolation="lanczos"), "float[n,3,8,10] x", "no lanczos", "nearest"),
    (FoldPreprocess(resize=(9, 9)), "float[n,3,8,10] x", "pictures become 9x9", r"\[8, 10\]"),
    (FoldPreprocess(resize=9), "float[n,3,8,10] x", "pictures become 9x9", r"\[8, 10\]"),
    (FoldPreprocess(resize=(8, 8), crop=10), "float[n,3,h,w] x", "crop of 10x10", "more first"),
    (FoldPreprocess(scale=0.0), "float[n,3,8,10] x", "scale 0", "factor"),
    (
        FoldPreprocess(mean=(1.0, 2.0)),
        "float[n,3,8,10] x",
        "is of length 2, channels: 3",
        "one a channel",
    ),
]


@pytest.mark.parametrize(("step", "inputs", "what", "fix"), WRONG)
def test_what_does_not_fit_is_refused(
    step: FoldPreprocess, inputs: str, what: str, fix: str
) -> None:
    model = model_of(
        f"g ({inputs}) => (float[a,b,c,d] y) {{ t = Cast<to = 1>(x) y = Identity(t) }}"
    )
    with pytest.raises(OrtuneError, match=what) as raised:
        step.apply(model)
    assert isinstance(raised.value, (BadModel, BadSettings, BadData))
    with pytest.raises(OrtuneError, match=fix):
        step.apply(model)


def test_it_is_built_compared_packed_and_fed(tmp_path: Path) -> None:
    """The file that fed the samples is the one folded; then pictures of any size are samples."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for index, (height, width) in enumerate(((30, 20), (17, 40))):
        Image.fromarray(photo(height, width)[0]).save(photos / f"{index}.png")
    toml = photos / "preprocess.toml"
    toml.write_text(
        "resize = 12\ncrop = [8, 10]\nmean = [0.5, 0.4, 0.3]\nstd = [0.2, 0.25, 0.5]\n"
    )
    source = file.save(conv(), tmp_path / "m.onnx")
    out = tmp_path / "folded.onnx"
    given = [str(source), "--data", str(photos), "--fold-preprocess", str(toml), "-o", str(out)]
    assert main(["apply", *given]) == 0
    (taken,) = read_facts(file.load(out)).inputs
    assert taken.dtype == "uint8"
    assert taken.shape == ("n", "picture_height", "picture_width", 3)
    before = feeds.load_feeds(photos, read_facts(file.load(source)).inputs, tmp_path / "a")
    after = feeds.load_feeds(photos, (taken,), tmp_path / "b")
    assert any("is ignored" in note for note in after.notes)
    old, new = ot.load(source), ot.load(out)
    for one, two in zip(Stream(before.stream), Stream(after.stream), strict=True):
        assert two["x"].dtype == np.uint8 and two["x"].shape[1:3] in ((30, 20), (17, 40))
        assert snr(old(**one)["y"], new(**two)["y"]) > 35
    assert main(["verify", str(out), str(out), "--data", str(photos)]) == 0


def test_the_build_goes_on_with_pictures(tmp_path: Path) -> None:
    """Steps behind it are compared, and calibrated, on pictures made back from the tensors."""
    source = file.save(conv(pads=1), tmp_path / "m.onnx")
    inputs = read_facts(file.load(source)).inputs
    made = synthetic.generate_feeds(inputs, tmp_path, shapes={}, ranges={}, count=2)
    steps = (FoldPreprocess(mean=MEAN, std=STD, size=(16, 20)), _simplify())
    built = build(source, Recipe("r", steps), tmp_path / "out.onnx", feeds=made)
    assert [edit.kept for edit in built.edits] == [True, True]
    assert float(built.edits[0].note.partition(" dB")[0]) > 30


def _simplify() -> Any:
    from ortune.transforms.simplify import Simplify

    return Simplify()


CLI = [
    (["--fold-preprocess", "none.toml"], "no file none.toml", "preprocess.toml"),
    (["--fold-preprocess", "key.toml"], "key 'menn'", "its keys are: channels, crop"),
    (["--fold-preprocess", "type.toml"], "type.toml: fold-preprocess(layout=...)", "use one of"),
    (["--fold-preprocess", "cut.toml"], "cannot read", "write TOML"),
    (
        ["--picture-size", "3x4"],
        "--picture-size needs --fold-preprocess",
        "add --fold-preprocess FILE.toml",
    ),
    (
        ["--fold-preprocess", "ok.toml", "--picture-size", "3"],
        "--picture-size: cannot read the size '3'",
        "480x640",
    ),
    (["--fold-postprocess", "topk"], "'topk' is not allowed", "uint8, argmax, top-k"),
    (["--fold-postprocess", "top-k(k=x)"], "'x' is not an integer", "give an integer"),
    (["--fold-postprocess", "top-k(k=9, output=z)"], "no output 'z'", "set output to one of: y"),
    ([], "no STEP is given", "simplify"),
]


@pytest.mark.parametrize(("words", "what", "fix"), CLI)
def test_two_lines_on_the_command_line(
    words: list[str],
    what: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    file.save(conv(), tmp_path / "m.onnx")
    for name, text in {"key": "menn = 1", "type": 'layout = "HW"', "cut": "a =", "ok": ""}.items():
        (tmp_path / f"{name}.toml").write_text(text)
    assert main(["apply", "m.onnx", *words, "-o", "out.onnx"]) == 2
    lines = [one for one in capsys.readouterr().err.splitlines() if not one.startswith("made up")]
    assert len(lines) == 2 and what in lines[0] and fix in lines[1]
    assert not (tmp_path / "out.onnx").exists()
