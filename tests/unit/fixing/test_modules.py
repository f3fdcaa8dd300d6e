"""Fixes about modules of PyTorch and their weights are followed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ortune as ot
from ortune.backends.runtimes.torch.module import fill_module, read_checkpoint
from tests import zygote
from tests.unit.fixing.kit import SITUATIONS, Pair, check_situation, follow, save_text
from tests.unit.following import Room

MODULES = """
import torch

class Narrow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.out(x)

class Branch(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] < 3 else x * 3
"""


@contextmanager
def write_modules(room: Room) -> Iterator[Any]:
    """Write modules where they are found, and yield PyTorch."""
    torch = pytest.importorskip("torch")
    save_text(room.folder / "modules_to_follow.py", MODULES)
    room.patch.chdir(room.folder)
    with zygote.importing("torch"):
        yield torch


def export(name: str = "Branch", **more: Any) -> None:
    asked = {"exporter": "torchscript", "dynamic": "x:0=batch", "inputs": "x=2x4"} | more
    ot.export(f"modules_to_follow:{name}", out="new.onnx", **asked)


@follow("exporters/export:_Run.export_module", "--dynamic", "--tolerance")
def a_file_that_is_right_at_one_size_alone(room: Room) -> Iterator[Pair]:
    with write_modules(room):
        yield export, lambda: export(dynamic=())


@follow("exporters/export:_Run.export_module", "--tolerance")
def a_file_that_is_nearly_right(room: Room) -> Iterator[Pair]:
    with write_modules(room):
        yield export, lambda: export(tolerance=1.0)


@follow("exporters/export:_Run._read_inputs", "--input")
def a_module_that_does_not_say_what_it_takes(room: Room) -> Iterator[Pair]:
    with write_modules(room):
        yield lambda: export(inputs=(), dynamic=()), lambda: export(dynamic=())


@follow("measurement/worker/exports:answer_module", "--input", "--range")
def a_module_that_takes_something_else(room: Room) -> Iterator[Pair]:
    with write_modules(room):
        yield lambda: export("Narrow", inputs="x=2x5"), lambda: export("Narrow")


@follow("backends/runtimes/torch/module:_load_content", "--unsafe-pickle")
def weights_beside_an_object(room: Room) -> Iterator[Pair]:
    with write_modules(room) as torch:
        path, state = room.folder / "w.pt", {"weight": torch.ones(2)}
        torch.save({"state_dict": state, "more": Path("x")}, path)
        yield lambda: read_checkpoint(path), lambda: read_checkpoint(path, unsafe=True)


@follow("backends/runtimes/torch/module:_find_state_dict", "--state-dict-key")
def several_state_dicts(room: Room) -> Iterator[Pair]:
    with write_modules(room) as torch:
        path, state = room.folder / "w.pt", {"weight": torch.ones(2)}
        torch.save({"raw": state, "ema": state}, path)
        yield lambda: read_checkpoint(path), lambda: read_checkpoint(path, "ema")


@follow("backends/runtimes/torch/module:_find_state_dict#2", "--state-dict-key")
def a_state_dict_that_lies_deeper(room: Room) -> Iterator[Pair]:
    with write_modules(room) as torch:
        path, state = room.folder / "w.pt", {"weight": torch.ones(2)}
        torch.save({"training": {"models": {"raw": state, "ema": state}}}, path)
        yield lambda: read_checkpoint(path), lambda: read_checkpoint(path, "training.models.ema")


@follow("backends/runtimes/torch/module:fill_module", "--state-dict-key")
def a_state_dict_of_another_module(room: Room) -> Iterator[Pair]:
    with write_modules(room) as torch:
        path, filled = room.folder / "w.pt", torch.nn.Linear(3, 2)
        torch.save({"raw": filled.state_dict(), "other": {"x": torch.ones(1)}}, path)

        def fill(key: str) -> None:
            fill_module(filled, path, read_checkpoint(path, key))

        yield lambda: fill("other"), lambda: fill("raw")


@pytest.mark.parametrize("name", SITUATIONS[__name__])
def test_what_a_fix_says_helps(name: str, room: Room) -> None:
    check_situation(SITUATIONS[__name__][name], room)
