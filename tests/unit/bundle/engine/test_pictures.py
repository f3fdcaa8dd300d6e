"""A bundle with preprocess.toml takes pictures; settings from elsewhere are bounded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.unit import studies
from tests.unit.packaged import forge

from ortune.bundle.engine.call import read_pictures
from ortune.bundle.engine.load import load_engine
from ortune.bundle.engine.manifest import Signature
from ortune.bundle.pack import pack
from ortune.cli.main import main
from ortune.core.errors import BadData, BadModel
from ortune.core.facts import TensorSpec
from ortune.core.study import Study
from ortune.data import stream
from ortune.search.experiment import golden

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,3,4,6] image) => (float[N,3] mean) {
  mean = ReduceMean<axes = [2, 3], keepdims = 0>(image)
}
"""
TOML = "resize = [4, 6]\nmean = [0.5, 0.25, 0.0]\nstd = 2\n"
IMAGE = TensorSpec("image", "float32", ("N", 3, 4, 6))
TOKENS = TensorSpec("ids", "int64", ("N", "length"))
PIXELS = np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(np.uint8)


def signature(*specs: TensorSpec) -> Signature:
    return Signature(specs, ())


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    def write_golden(made: Study, trial: Any, model: Path, name: str = "") -> None:
        import onnxruntime as ort

        root, sample = Path(made.root), {"image": np.ones((1, 3, 4, 6), np.float32)}
        stream.write_stream(golden.inputs_path(root, name), [sample])
        outputs = {"mean": ort.InferenceSession(str(model)).run(["mean"], sample)[0]}
        stream.write_stream(golden.outputs_path(root, name, trial), [outputs])

    monkeypatch.setattr(studies, "MODEL", MODEL)
    monkeypatch.setattr(studies, "write_golden", write_golden)
    return studies.study(tmp_path, tuned=MODEL)


@pytest.fixture
def bundle(study: Study, tmp_path: Path) -> Path:
    (tmp_path / "p.toml").write_text(TOML)
    return pack(study, tmp_path / "toy.ortune", preprocess=tmp_path / "p.toml")


def expected(pixels: np.ndarray = PIXELS) -> np.ndarray:
    sized = Image.fromarray(pixels).resize((6, 4), Image.Resampling.BILINEAR)
    values = np.asarray(sized, np.float32) / 255
    return ((values - [0.5, 0.25, 0.0]) / 2).mean((0, 1), dtype=np.float32)[None]


def test_paths_images_and_pixels(bundle: Path, tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    with load_engine(bundle) as engine:
        for given in (
            tmp_path / "a.png",
            str(tmp_path / "a.png"),
            Image.fromarray(PIXELS),
            PIXELS,
        ):
            np.testing.assert_allclose(engine(image=given)["mean"], expected(), rtol=1e-4)
        both = engine(image=[PIXELS, PIXELS[::-1]])["mean"]
        np.testing.assert_allclose(both[1:], expected(PIXELS[::-1]), rtol=1e-4)
        one, two = engine.batch([{"image": PIXELS}, {"image": PIXELS[::-1]}])
        np.testing.assert_allclose([one["mean"][0], two["mean"][0]], both, rtol=1e-5)


def test_tensors_are_taken_as_ever(bundle: Path) -> None:
    with load_engine(bundle) as engine:
        tensor = np.ones((2, 3, 4, 6), np.float32)
        np.testing.assert_allclose(engine(image=tensor)["mean"], np.ones((2, 3)), rtol=1e-6)
        for wrong in (tensor.astype(np.float64), tensor[0], [], [1, 2], None):
            with pytest.raises(BadData, match="Got"):
                engine(image=wrong)
        with pytest.raises(BadData, match=r"cannot read .*none\.png"):
            engine(image="none.png")


def test_without_settings_a_picture_is_no_tensor(study: Study, tmp_path: Path) -> None:
    said = pytest.raises(BadData, match=r"Got uint8\[9, 7, 3\], expected float32")
    with load_engine(pack(study, tmp_path / "toy.ortune")) as engine, said:
        engine(image=PIXELS)


def test_the_run_of_images_keeps_its_settings(study: Study, tmp_path: Path) -> None:
    (Path(study.root) / "preprocess.toml").write_text(TOML)
    with load_engine(pack(study, tmp_path / "toy.ortune")) as engine:
        np.testing.assert_allclose(engine(image=PIXELS)["mean"], expected(), rtol=1e-4)


def test_run_reads_pictures_by_the_bundles_settings(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.fromarray(PIXELS).save(folder / "a.png")
    assert main(["run", str(bundle), str(folder), "-o", str(tmp_path / "out.npz")]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["mean"], expected(), rtol=1e-4)


def test_evaluate_reads_them_too(bundle: Path, tmp_path: Path) -> None:
    label = int(expected().argmax())
    for index in (label, (label + 1) % 3):
        (tmp_path / "photos" / str(index)).mkdir(parents=True)
        Image.fromarray(PIXELS).save(tmp_path / "photos" / str(index) / "a.png")
    with load_engine(bundle) as engine:
        assert engine.evaluate(tmp_path / "photos").value == 0.5
        assert engine.evaluate([{"image": PIXELS}], [label]).value == 1.0


MODELS = {"eye": signature(IMAGE), "text": signature(TOKENS)}


class TestSeveralModels:
    def test_a_table_a_model(self) -> None:
        found = read_pictures(b"[eye]\nscale = 1.0\n", "p", MODELS)
        assert list(found) == ["eye"] and found["eye"].settings.scale == 1

    def test_keys_are_for_the_models_that_have_the_input(self) -> None:
        found = read_pictures(b'input = "image"\n', "p", MODELS)
        assert list(found) == ["eye"]

    @pytest.mark.parametrize("text", ["[ear]\nscale=1", 'input = "sound"'])
    def test_what_fits_none(self, text: str) -> None:
        with pytest.raises(BadModel, match="no model"):
            read_pictures(text.encode(), "p", MODELS)


@pytest.mark.parametrize(
    "text",
    [
        "resize = 100000",
        "resize = [1, 2, 3]",
        "resize = 0",
        "crop = -1",
        "scale = nan",
        "std = 0",
        "mean = [1, 2]",
        "mean = [inf, 0, 0]",
        'dtype = "object"',
        'interpolation = "__class__"',
        'channels = "cmyk"',
        'input = "other"',
        'path = "/etc/passwd"',
        "resize = [4, 6",
        "a = " + "[" * 5000,
        "\x00",
        "[image]\nscale = 1",
    ],
)
def test_hostile_settings(bundle: Path, text: str, tmp_path: Path) -> None:
    with pytest.raises(BadModel) as caught:
        read_pictures(text.encode(), "p", {"": signature(IMAGE)})
    assert len(str(caught.value).splitlines()) == 2
    forge(bundle, {"preprocess.toml": text.encode()})
    with pytest.raises(BadModel):
        load_engine(bundle)


def test_pack_refuses_what_load_would(study: Study, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("resize = 100000")
    with pytest.raises(BadModel, match="resize"):
        pack(study, tmp_path / "toy.ortune", preprocess=tmp_path / "p.toml")
    with pytest.raises(BadData, match="cannot read"):
        pack(study, tmp_path / "toy.ortune", preprocess=tmp_path / "none.toml")
    assert not (tmp_path / "toy.ortune").exists()
