"""Olive: its `auto-opt` command for int8 on the CPU, its static quantization pass, its search.

`auto-opt` is deprecated for `optimize`, which calibrates any int8 model with WikiText from the
network, images included.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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

SCORE = """
import sys
sys.path.insert(0, {tools!r})
from pathlib import Path
from judging import Judge
from olive.evaluator.metric_result import MetricResult, SubMetricResult
from olive.evaluator.olive_evaluator import OnnxEvaluator
from olive.evaluator.registry import Registry

JUDGE = Judge(Path({model!r}), Path({data!r}), {metric!r}, {drop!r})

@Registry.register("budget")
class Budget(OnnxEvaluator):
    def _evaluate_accuracy(self, model, *args, **kwargs):
        value = JUDGE.file(model.model_path)
        found = SubMetricResult(value=value, priority=2, higher_is_better=True)
        return MetricResult.model_validate({{"accuracy_score": found}})
"""
"""An evaluator of one's own: this release does not write down metrics of the type custom."""


def olive(*words: str) -> None:
    command = [sys.executable, "-m", "olive", *words]
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
    made = task.out.parent / "made"
    one = {"type": "OnnxStaticQuantization", "data_config": "calibration", "per_channel": True}
    config = workflow(task, one) | {"output_dir": str(made)}
    file = task.out.parent / "olive.json"
    file.write_text(json.dumps(config))
    olive("run", "--config", str(file))
    moved(made, task.out)


def search(task: Task) -> str:
    """Search `OnnxQuantization`'s own space for the fastest file that scores enough."""
    from olive import run

    goal, least = task.goal, task.judge().least
    script = task.out.parent / "score_for_olive.py"
    about = {name: goal[name] for name in ("data", "metric", "drop")}
    tools = str(Path(__file__).resolve().parent)
    script.write_text(SCORE.format(tools=tools, model=str(task.model), **about))
    score = {
        "name": "score",
        "type": "accuracy",
        "data_config": "calibration",
        "sub_types": [
            {
                "name": "accuracy_score",
                "priority": 2,
                "higher_is_better": True,
                "goal": {"type": "threshold", "value": least},
            }
        ],
    }
    latency = {
        "name": "latency",
        "type": "latency",
        "data_config": "calibration",
        "sub_types": [{"name": "p50", "priority": 1}],
    }
    found = run(
        workflow(task, {"type": "OnnxQuantization", "data_config": "calibration"})
        | {
            "evaluators": {
                "both": {
                    "type": "budget",
                    "user_script": str(script),
                    "metrics": [latency, score],
                }
            },
            "evaluator": "both",
            "search_strategy": {
                "execution_order": "joint",
                "sampler": "tpe",
                "max_time": int(goal["seconds"]),
            },
            "output_dir": str(task.out.parent / "found"),
        }
    )
    models = found.get_output_models()
    scores = [one.metrics_value["score-accuracy_score"]["value"] for one in models]
    best = next((k for k, value in enumerate(scores) if value >= least), 0)
    moved(Path(models[best].model_path).parent, task.out)
    return f"{len(models)} kept by the search, {scores[best]:.4g}"


def workflow(task: Task, one: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of one pass over the model with its calibration samples."""
    script = task.out.parent / "samples_for_olive.py"
    script.write_text(DATA)
    return {
        "input_model": {"type": "OnnxModel", "model_path": str(task.model)},
        "data_configs": [
            {
                "name": "calibration",
                "user_script": str(script),
                "load_dataset_config": {"type": "samples", "data_dir": str(task.samples)},
                "dataloader_config": {"type": "one_by_one"},
            }
        ],
        "passes": {"quantize": one},
        "cache_dir": str(task.out.parent / "cache"),
    }


def moved(made: Path, out: Path) -> None:
    """Move the one model of a folder, with its weights beside it."""
    (model,) = made.rglob("*.onnx")
    for path in model.parent.glob("*.data"):
        shutil.move(path, out.parent / path.name)
    shutil.move(model, out)


if __name__ == "__main__":
    asked = told()
    recipes = {"auto-opt, int8": auto_opt, "OnnxStaticQuantization": static, "search": search}
    tell("olive-ai", recipes[asked.recipe](asked) or "")
