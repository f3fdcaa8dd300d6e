"""PyTorch in place of the file: the same answers under the file's names, and clear refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from ortune.backends.torch import Torch, compiler_missing
from ortune.cli.main import main
from ortune.core.backend import Backend
from ortune.core.errors import BackendMissing, BadModel, BadSettings
from ortune.core.plugins.spelling import parse_plugin
from ortune.graph.io import protobuf

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("torch_workers")

FILE = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,3] a, float[N,3] b) => (float[N,3] total, float[N,3] part)
  <float[3] w = {1,2,3}> {
  part = Mul(a, w)
  total = Sub(part, b)
}
"""
MODULE = """
import torch
from torch import nn

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.tensor([1.0, 2.0, 3.0]))
    def forward(self, b, a):
        part = a * self.w
        return {"part": part, "total": part - b}

class Positional(Pair):
    def forward(self, first, second):
        part = first * self.w
        return part - second, [part]

class Weighted(Positional):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))

class Short(Pair):
    def forward(self, b, a):
        return a - b

def nothing():
    return 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    onnx.save(onnx.parser.parse_model(FILE), tmp_path / "m.onnx")
    (tmp_path / "torch_modules.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "torch_modules", raising=False)
    return tmp_path


FEEDS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
    "a": np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5,
}


def answers(spec: str) -> dict[str, np.ndarray]:
    with parse_plugin(Backend, spec).open(Path("m.onnx")) as session:
        return session.run(FEEDS)


def same_as_the_file(spec: str) -> None:
    wanted, found = answers("cpu"), answers(spec)
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["Pair", "Positional"])
def test_a_factory_answers_like_the_file(folder: Path, name: str) -> None:
    same_as_the_file(f"torch(source=torch_modules:{name})")


def test_saved_programs_answer_like_the_file(folder: Path) -> None:
    import torch_modules

    a, b = (torch.from_numpy(FEEDS[name]) for name in ("a", "b"))
    module = torch_modules.Positional()
    torch.export.save(torch.export.export(module, (a, b)), "in_order.pt2")
    torch.export.save(torch.export.export(module, (a,), {"second": b}), "other_names.pt2")
    named = torch.export.export(torch_modules.Pair(), (), {"b": b, "a": a})
    torch.export.save(named, "named.pt2")
    torch.jit.save(torch.jit.trace(torch_modules.Pair(), (b, a), strict=False), "script.pt")
    for file in ("in_order.pt2", "named.pt2", "script.pt"):
        same_as_the_file(f'torch(source="{file}")')
    with pytest.raises(Exception, match=r"second|keyword|unpack|argument"):
        answers('torch(source="other_names.pt2")')


def test_weights_are_filled_in(folder: Path) -> None:
    with pytest.raises(AssertionError):
        same_as_the_file("torch(source=torch_modules:Weighted)")
    state = {"w": torch.tensor([1.0, 2.0, 3.0])}
    torch.save(state, "w.pt")
    torch.save({"state_dict": state}, "checkpoint.pt")
    for file in ("w.pt", "checkpoint.pt"):
        same_as_the_file(f'torch(source=torch_modules:Weighted, weights="{file}")')


def test_bf16_is_lossy_and_comes_back_as_float32(folder: Path) -> None:
    assert Torch(precision="bf16").lossy and not Torch(compile=True).lossy
    found = answers("torch(source=torch_modules:Pair, precision=bf16)")
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("torch", BadSettings, "no module"),
        ("torch(source=torch_modules:gone)", BadSettings, "gone"),
        ("torch(source=torch_modules:nothing)", BadModel, "returns an int"),
        ('torch(source="m.onnx")', BadSettings, "m.onnx"),
        ('torch(source="gone.pt2")', BadModel, "gone.pt2"),
        ('torch(source="torch_modules.pt")', BadModel, "does not load torch_modules.pt"),
        ('torch(source="x.pt", weights="w.pt")', BadSettings, "own weights"),
        ('torch(source=torch_modules:Pair, weights="gone.pt")', BadModel, "gone.pt"),
        ("torch(source=torch_modules:Short)", BadModel, "returns 1 tensor"),
    ],
)
def test_what_cannot_be_run_is_named(
    folder: Path, spec: str, error: type[Exception], said: str
) -> None:
    (folder / "torch_modules.pt").write_bytes(b"no program")
    with pytest.raises(error, match=said):
        answers(spec)


def test_verify_compares_the_file_with_the_module(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["verify", "m.onnx", "m.onnx", "--shape", "a:2x3", "--shape", "b:2x3", "--budget"]
    on = "torch(threads=1, source=torch_modules:{})"
    same = main([*command, "max-error<=0.00001", "--on", on.format("Pair")])
    assert same == 0, capfd.readouterr().err
    other = main([*command, "max-error<=0.00001", "--on", on.format("Weighted")])
    assert other == 1, capfd.readouterr().err


@pytest.mark.long  # a search beside PyTorch runs it compiled, too: tests/e2e/test_from_torch.py
@pytest.mark.skipif(
    compiler_missing() is not None, reason="torch.compile has no C++ compiler here"
)
def test_compiled_answers_like_the_file(folder: Path) -> None:
    same_as_the_file("torch(source=torch_modules:Pair, compile=true)")


def test_compiling_without_a_compiler_is_two_lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert Torch().missing() is None
    with pytest.raises(BackendMissing, match="no-such-compiler"):
        answers("torch(source=torch_modules:Pair, compile=true)")
    on = "cpu,torch(source=torch_modules:Pair, compile=true)"
    assert main(["bench", "m.onnx", "--on", on]) == 2
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and "no-such-compiler" in said[1]


def test_a_search_over_recipes_refuses_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    on = "cpu,torch(source=torch_modules:Pair)"
    assert main(["optimize", "m.onnx", "--on", on, "-o", "run"]) == 2
    said = capfd.readouterr().err.splitlines()
    assert "torch_modules:Pair" in said[-2] and "--baseline" in said[-1]
    assert not (folder / "run").exists()


def test_the_files_interface_is_read_without_its_weights(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(FILE)
    held = onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3])
    model.graph.input.append(held)  # as before IR 4: initializers were listed as inputs
    onnx.save(model, tmp_path / "old.onnx")
    assert protobuf.read_interface(tmp_path / "old.onnx") == (["a", "b"], ["total", "part"])
