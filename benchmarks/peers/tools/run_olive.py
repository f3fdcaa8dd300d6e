"""Olive: its `auto-opt` command for int8 on the CPU, and its static quantization pass.

`auto-opt` is deprecated for `optimize`, which calibrates any int8 model with WikiText from the
network, images included.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from task import Task, tell, told

DATA = """
import numpy as np
from olive.data.registry import Registry

class Samples:
    def __init__(self, folder):
        self.paths = sorted(__import__("pathlib").Path(folder).glob("*.npz"))
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        return dict(np.load(self.paths[index])), np.int64(0)

@Registry.register_dataloader()
def one_by_one(dataset, **kwargs):
    return [dataset[index] for index in range(len(dataset))]

@Registry.register_dataset()
def samples(data_dir=None, **kwargs):
    return Samples(data_dir)
"""


def olive(*words: str) -> None:
    command = [str(Path(sys.executable).with_name("olive")), *words]
    if code := subprocess.run(command, check=False).returncode:
        sys.exit(code)


def auto_opt(task: Task) -> None:
    made = task.out.parent / "made"
    olive(
        "auto-opt", "--model_name_or_path", str(task.model), "--precision", "int8",
        "--provider", "CPUExecutionProvider", "--device", "cpu", "--output_path", str(made),
    )  # fmt: skip
    moved(made, task.out)


def static(task: Task) -> None:
    script = task.out.parent / "samples_for_olive.py"
    script.write_text(DATA)
    made = task.out.parent / "made"
    config = {
        "input_model": {"type": "OnnxModel", "model_path": str(task.model)},
        "data_configs": [
            {
                "name": "calibration",
                "user_script": str(script),
                "load_dataset_config": {"type": "samples", "data_dir": str(task.samples)},
                "dataloader_config": {"type": "one_by_one"},
            }
        ],
        "passes": {
            "quantize": {
                "type": "OnnxStaticQuantization",
                "data_config": "calibration",
                "per_channel": True,
            }
        },
        "output_dir": str(made),
        "cache_dir": str(task.out.parent / "cache"),
    }
    file = task.out.parent / "olive.json"
    file.write_text(json.dumps(config))
    olive("run", "--config", str(file))
    moved(made, task.out)


def moved(made: Path, out: Path) -> None:
    """Move the one model of a folder, with its weights beside it."""
    (model,) = made.rglob("*.onnx")
    for path in model.parent.glob("*.data"):
        shutil.move(path, out.parent / path.name)
    shutil.move(model, out)


if __name__ == "__main__":
    asked = told()
    {"auto-opt, int8": auto_opt, "OnnxStaticQuantization": static}[asked.recipe](asked)
    tell("olive-ai")
