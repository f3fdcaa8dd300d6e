"""The engine runs what it was given, says what is wrong with its inputs, and cleans up."""

from pathlib import Path

import numpy as np
import pytest
from tests.unit.studies import MODEL, write_model

from ortune.bundle.engine.load import load_engine
from ortune.core.errors import BadData, BadModel, BadSettings, OrtuneError

X = np.array([[-5, 0, 1, 2]], np.float32)
Y = np.array([[0, 2, 4, 6]], np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "toy.onnx", MODEL)


def test_plain_model(model: Path) -> None:
    with load_engine(model, on="cpu(threads=1)") as engine:
        np.testing.assert_array_equal(engine(x=X)["y"], Y)
        assert str(engine.backend) == "cpu(threads=1)"
        assert [spec.name for spec in engine.signature.inputs] == ["x"]
        assert engine.fallback == ""


def test_a_closed_engine_says_so(model: Path) -> None:
    engine = load_engine(model)
    engine.close()
    engine.close()
    with pytest.raises(OrtuneError, match="closed"):
        engine(x=X)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"z": X}, ("no input 'z'", "'x' is missing", "Got: z", "expected: x")),
        ({}, ("'x' is missing", "Got: none")),
        ({"x": X.astype(np.float64)}, ("Got float64[1, 4]", "expected float32[N, 4]")),
        ({"x": X[0]}, ("Got float32[4]", "expected float32[N, 4]", "2 dimensions")),
        ({"x": X[:, :3]}, ("Got float32[1, 3]", "expected float32[N, 4]")),
        ({"x": X.tolist()}, ("Got a list", "expected float32[N, 4]", "asarray")),
        ({"x": X.astype(">f4")}, ("Got >f4[1, 4]", "expected float32")),
    ],
)
def test_wrong_inputs(model: Path, given: dict[str, np.ndarray], words: tuple[str, ...]) -> None:
    with load_engine(model) as engine, pytest.raises(BadData) as caught:
        engine(**given)
    assert all(word in str(caught.value) for word in words), caught.value
    assert len(str(caught.value).splitlines()) == 2


def test_what_the_runtime_refuses_is_a_readable_error(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N] a, float[M] b) => (float[K] c) { c = Add(a, b) }"""
    with load_engine(write_model(tmp_path / "add.onnx", text)) as engine:
        three, two = np.ones(3, np.float32), np.ones(2, np.float32)
        with pytest.raises(BadData, match="refused a \\(3,\\), b \\(2,\\)"):
            engine(a=three, b=two)


def test_names_that_are_no_identifiers_and_text(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (string[N] "self", float "input.1") => (string[N] s, float f) {
        s = Identity("self")
        f = Identity("input.1")
    }"""
    path = write_model(tmp_path / "odd.onnx", text)
    with load_engine(path) as engine:
        given = {"self": np.array(["a", "b"], object), "input.1": np.array(2, np.float32)}
        answer = engine(**given)
    assert list(answer["s"]) == ["a", "b"] and answer["f"] == 2


def test_initializers_listed_as_inputs_need_not_be_given(tmp_path: Path) -> None:
    text = MODEL.replace("(float[N,4] x)", "(float[N,4] x, float[4] w)").replace(
        "ir_version: 8", "ir_version: 3"
    )
    with load_engine(write_model(tmp_path / "old.onnx", text)) as engine:
        np.testing.assert_array_equal(engine(x=X)["y"], Y)


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_not_a_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(BadModel):
        load_engine(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="cannot open"):
        load_engine(tmp_path / "none.onnx")


def test_one_model_has_no_other_names(model: Path) -> None:
    with load_engine(model) as engine:
        assert engine.models == ("",)
        np.testing.assert_array_equal(engine[""](x=X)["y"], Y)
        with pytest.raises(BadSettings, match="no model 'decoder'"):
            engine["decoder"]
