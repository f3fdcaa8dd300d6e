"""The models that both servers have, and the repository that Triton reads them from."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx

from tests.tensors import TYPES
from tests.unit import studies

BATCH = 8
"""Rows that are joined at most: what ours takes where nothing is said."""
ECHOES = {name: kind for name, kind in TYPES.items() if name != "BF16"}
"""BF16 has no form in the Python that stands in for Triton's backend."""
_HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
MODELS = {
    "sum": """g (float[N,4] a, float[N,4] b) => (float[N,4] sum, float[N,4] difference) {
        sum = Add(a, b)
        difference = Sub(a, b)
    }""",
    "free": "g (float[N,L] x) => (float[N,L] y) { y = Relu(x) }",
    "whole": "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }",
    **{
        f"echo-{name}": f"g ({kind}[N,3] x) => ({kind}[N,3] y) {{ y = Identity(x) }}"
        for name, kind in ECHOES.items()
    },
}
_TYPES = {name.upper(): f"TYPE_{datatype}" for datatype, name in ECHOES.items()} | {
    "BYTES": "TYPE_STRING",
    "STRING": "TYPE_STRING",
}


def write(folder: Path) -> list[Path]:
    """Write every model as a file of its own, as ours takes them."""
    return [studies.write_model(folder / f"{n}.onnx", _HEAD + t) for n, t in MODELS.items()]


def repository(models: list[Path], folder: Path) -> Path:
    """Write the same models as a repository of Triton."""
    for model in models:
        version = folder / model.stem / "1"
        version.mkdir(parents=True)
        shutil.copy(model, version / "model.onnx")
        (version.parent / "config.pbtxt").write_text(_config(model))
    return folder


def _config(model: Path) -> str:
    """Return the configuration: what is free in front of every tensor is the batch."""
    graph = onnx.load(model).graph
    batched = all(
        value.type.tensor_type.shape.dim[0].dim_param for value in (*graph.input, *graph.output)
    )
    lines = [
        f'name: "{model.stem}"',
        'backend: "onnxruntime"',
        'default_model_filename: "model.onnx"',
        f"max_batch_size: {BATCH if batched else 0}",
        "instance_group [{ count: 1 kind: KIND_CPU }]",
    ]
    if batched:
        lines.append("dynamic_batching { }")
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            tensor = value.type.tensor_type
            dims = [dim.dim_value or -1 for dim in tensor.shape.dim[batched:]]
            name = _TYPES[onnx.TensorProto.DataType.Name(tensor.elem_type)]
            lines.append(f'{kind} [{{ name: "{value.name}" data_type: {name} dims: {dims} }}]')
    return "\n".join(lines) + "\n"
