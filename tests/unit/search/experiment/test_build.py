"""The models of a plan, each built by what the plan does to it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.unit.search.test_adaptive import FACTS
from tests.unit.studies import job, trial

from ortune.backends.cpu import Cpu
from ortune.core.event import ignore_event
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Plan
from ortune.search.experiment.context import Context
from ortune.search.experiment.golden import find_built_model
from ortune.search.experiment.measure import build_all
from ortune.search.recipe.built import Material


def write_product(path: Path, seed: int) -> Path:
    weight = np.random.default_rng(seed).normal(size=(32, 32)).astype(np.float32)
    value = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 32]) for name in ("x", "y")
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    graph = helper.make_graph(
        [node], "g", value[:1], value[1:], [numpy_helper.from_array(weight, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


@pytest.fixture
def context(tmp_path: Path) -> Context:
    models = {
        name: write_product(tmp_path / f"{name}.onnx", seed)
        for seed, name in enumerate(("encoder", "decoder"))
    }
    materials = dict.fromkeys(models, Material())
    root = tmp_path / "run"
    return Context(
        root, job(names=()), FACTS, models, {}, materials, {}, "score.py:score", timeout_s=1.0
    )


def list_ops(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_each_model_of_a_job_has_the_steps_that_are_for_it(context: Context) -> None:
    steps = [
        parse_plugin(Quantizer, f"only-models(names=[{name}], step={step})")
        for name, step in (("encoder", "int8-dynamic"), ("decoder", "int8-weights"))
    ]
    alone = Plan(Recipe("int8 for decoder", (steps[1],)), Cpu())
    files = build_all(context, alone, ignore_event)
    assert files.paths["encoder"] == context.models["encoder"]
    assert "DequantizeLinear" in list_ops(files.paths["decoder"])
    both = Plan(Recipe("both", tuple(steps)), Cpu())
    files = build_all(context, both, ignore_event)
    assert "DynamicQuantizeLinear" in list_ops(files.paths["encoder"])
    assert "DynamicQuantizeLinear" not in list_ops(files.paths["decoder"])
    found = replace(trial("t", both, 0.5), artefact=files.artefact)
    for name, source in context.models.items():
        built = find_built_model(context.root, found, source)
        assert built == files.paths[name] != source
    again = build_all(context, both, ignore_event)
    assert (again.content, again.paths) == (files.content, files.paths)
