"""Modules become files that answer like them; what does not is told, exporter by exporter."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import zygote

import ortune as ot
from ortune.backends.runtimes.torch.module import load_folder
from ortune.cli.main import main
from ortune.core.errors import BadModel, BadSettings
from ortune.exporters.export import ExportedModel

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("torch_workers")

MODULES = """
import os
import time
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(30, 4), nn.Linear(4, 3)

    def forward(self, image, ids):
        return {"seen": self.out(image), "read": self.out(self.words(ids)).sum(1)}

class Branch(nn.Module):
    '''Tracing keeps one side of the branch alone.'''
    def forward(self, x):
        return x * 2 if x.shape[0] < 3 else x * 3

class Example(nn.Module):
    example_inputs = (torch.ones(2, 5),)
    def forward(self, x):
        return x.cumsum(1)

class Dies(nn.Module):
    def forward(self, x):
        if torch.compiler.is_exporting() or torch.jit.is_tracing():
            os._exit(9)
        return x

class Newer(nn.Module):
    def forward(self, x):
        if torch.compiler.is_exporting():
            os._exit(9)
        return x + 1

class Hangs(nn.Module):
    def forward(self, x):
        if torch.compiler.is_exporting() or torch.jit.is_tracing():
            time.sleep(600)
        return x
"""
TWO = {
    "inputs": ["image=2x4", "ids=2x7:i64"],
    "ranges": ["ids:0..29"],
    "dynamic": "image:0=batch,ids:0=batch,ids:1=length",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "export_modules.py").write_text(MODULES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "export_modules", raising=False)
    return tmp_path


def export(name: str, **more: Any) -> ExportedModel:
    return ot.export(f"export_modules:{name}", out="m.onnx", **more)


def test_the_first_exporter_that_agrees_is_kept(folder: Path) -> None:
    found = export("Two", **TWO)
    assert found.path == Path("m.onnx")
    assert [one.exporter for one in found.attempts] == ["dynamo"]
    assert found.attempts[0].kept and found.attempts[0].sizes == 3 and found.attempts[0].nodes
    assert found.outputs == ("seen", "read")
    assert [dict(one) for one in found.sizes] == [
        {"batch": 2, "length": 7},
        {"batch": 3, "length": 8},
        {"batch": 5, "length": 15},
    ]
    specs = ot.inspect("m.onnx").facts.inputs
    assert [one.shape for one in specs] == [("batch", 4), ("batch", "length")]
    feeds = {"image": np.ones((9, 4), np.float32), "ids": np.zeros((9, 2), np.int64)}
    with ot.load("m.onnx") as engine:
        assert engine(**feeds)["seen"].shape == (9, 3)


def test_an_exporter_that_fails_is_told_and_the_next_one_tried(folder: Path) -> None:
    found = export("Newer", inputs="x=2x4", dynamic="x:0=batch")
    first, second = found.attempts
    assert (first.exporter, first.kept) == ("dynamo", False) and "exit code 9" in first.why
    assert (second.exporter, second.kept) == (found.exporter, True) == ("torchscript", True)


def test_a_file_that_is_right_at_one_size_alone_is_refused(folder: Path) -> None:
    with pytest.raises(BadModel) as error:
        export("Branch", inputs="x=2x4", dynamic="x:0=batch", exporter="torchscript")
    assert "torchscript: batch=3" in error.value.what
    assert "off by" in error.value.what
    assert not Path("m.onnx").exists()


def test_weights_come_from_a_checkpoint(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = {
        "net.words.weight": torch.zeros(30, 4),
        "net.out.weight": torch.zeros(3, 4),
        "net.out.bias": torch.tensor([1.0, 2.0, 3.0]),
    }
    torch.save({"ema": state, "raw": {"net.x": torch.ones(1)}}, "w.pt")
    words = ["export", "export_modules:Two", "--weights", "w.pt", "--state-dict-key", "ema"]
    words += ["--input", "image=2x4", "--input", "ids=2x7:i64", "--range", "ids:0..29"]
    words += ["--exporter", "torchscript", "-o", "m.onnx", "--json"]
    assert main(words) == 0, "the prefix that all names have is taken off"
    told = json.loads(capfd.readouterr().out)
    assert told["exporter"] == "torchscript" and told["sizes"] == [{}]
    feeds = {"image": np.ones((2, 4), np.float32), "ids": np.zeros((2, 7), np.int64)}
    with ot.load("m.onnx") as engine:
        np.testing.assert_allclose(engine(**feeds)["seen"], [[1, 2, 3]] * 2)
    assert main([*words, "--strip-prefix", "net."]) == 2
    assert "exists" in capfd.readouterr().err


def test_an_exporter_that_dies_or_hangs_is_a_reason(folder: Path) -> None:
    with pytest.raises(BadModel, match="exit code 9"):
        export("Dies", inputs="x=2x4", exporter="torchscript")
    with pytest.raises(BadModel, match="no answer"):
        export("Hangs", inputs="x=2x4", exporter="torchscript", timeout="10s")


def test_inputs_of_the_module_itself(folder: Path) -> None:
    found = export("Example", exporter="torchscript", dynamic="x:1=length")
    assert found.inputs[0].shape == (2, "length")


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("Two", {}, "image, ids"),
        ("Two", {"inputs": ["image=2x5", "ids=2x7:i64"]}, "does not run"),
        ("gone", {"inputs": "x=1x2"}, "no function 'gone'"),
        ("Two", {"inputs": "x=1x2", "exporter": "transformers"}, "folders of transformers"),
    ],
)
def test_what_cannot_be_exported_is_said(
    folder: Path, name: str, more: dict[str, Any], said: str
) -> None:
    with pytest.raises((BadModel, BadSettings), match=said):
        export(name, **more)


def test_a_folder_of_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=24,
    )
    transformers.BertForSequenceClassification(config).save_pretrained("bert")
    with zygote.importing("torch", "transformers", "transformers.models.bert.modeling_bert"):
        found = ot.export("bert", out="m.onnx", exporter="transformers")
    assert [one.name for one in found.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert found.outputs == ("logits",)
    assert [one["sequence"] for one in found.sizes] == [16, 17, 15], "24 positions, no more"
    assert found.refused
    assert ot.inspect("m.onnx").facts.inputs[0].shape == ("batch", "sequence")


def test_pickled_weights_alone_are_refused_with_what_converts_them(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=9,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    module = transformers.BertModel(config, add_pooling_layer=False)
    config.save_pretrained("bert")
    torch.save(module.state_dict(), "bert/pytorch_model.bin")
    with pytest.raises(BadModel, match="pickled and may run code") as error:
        load_folder("bert")
    python, option, code = shlex.split(error.value.fix)
    assert (python, option) == ("python", "-c")
    exec(code, {})
    loaded = load_folder("bert").state_dict()
    for name, values in module.state_dict().items():
        assert torch.equal(loaded[name], values)
