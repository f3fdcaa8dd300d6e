"""Models that a GPU is measured on without a network, made where they are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ortune.graph.analysis.facts import read_facts
from ortune.graph.io import file

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels and stride of each stage of ResNet-18 (He et al., arXiv:1512.03385, table 1)."""
_SAMPLES, _BATCH = 8, 8


def write_residual(folder: Path) -> Path:
    """Write ResNet-18 with an open batch, and samples of one picture; return the file."""
    path = folder / "residual.onnx"
    onnx.save(residual(), path)
    (folder / "pictures").mkdir()
    rng = np.random.default_rng(0)
    for place in range(_SAMPLES):
        image = rng.standard_normal((1, 3, 224, 224)).astype(np.float32)
        np.savez(folder / "pictures" / f"{place}.npz", image=image)
    return path


def samples(model: Path) -> list[dict[str, NDArray[Any]]]:
    """Return normal random inputs; open dimensions have 8 entries."""
    rng = np.random.default_rng(0)
    inputs = read_facts(file.load(model)).inputs
    return [
        {
            one.name: rng.standard_normal(
                [dim if isinstance(dim, int) else _BATCH for dim in one.shape or ()]
            ).astype(np.float32)
            for one in inputs
        }
        for _ in range(_SAMPLES)
    ]


def residual(side: int = 224) -> onnx.ModelProto:
    """Return ResNet-18's graph with normalisations folded and random weights.

    Args:
        side: Height and width of the picture; the batch is open.
    """
    made = _Graph()
    x = made.conv("image", 3, 64, 7, 2, relu=True)
    x = made.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    held = 64
    for channels, stride in _STAGES:
        for step in (stride, 1):
            inner = made.conv(x, held, channels, 3, step, relu=True)
            inner = made.conv(inner, channels, channels, 3, 1, scale=0.3)
            skip = x if step == 1 and held == channels else made.conv(x, held, channels, 1, step)
            x, held = made.node("Relu", made.node("Add", inner, skip)), channels
    x = made.node("Flatten", made.node("GlobalAveragePool", x))
    made.node("Gemm", x, made.weight((held, 1000), held), outputs=["scores"])
    shape: list[int | str | None] = ["rows", 3, side, side]
    scores: list[int | str | None] = ["rows", 1000]
    graph = helper.make_graph(
        made.nodes,
        "residual",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, scores)],
        made.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class _Graph:
    """Nodes and weights in the making; weights are He's (arXiv:1502.01852), seed 0."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    def node(self, kind: str, *inputs: str, outputs: list[str] | None = None, **more: Any) -> str:
        """Add a node and return the name of its first output."""
        outputs = outputs or [f"{kind.lower()}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, **more))
        return outputs[0]

    def weight(self, shape: tuple[int, ...], fan_in: int, scale: float = 1.0) -> str:
        """Add a weight and return its name."""
        name = f"w_{len(self.weights)}"
        values = self._rng.standard_normal(shape) * scale * (2 / fan_in) ** 0.5
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def conv(
        self,
        x: str,
        held: int,
        made: int,
        side: int,
        stride: int,
        *,
        scale: float = 1.0,
        relu: bool = False,
    ) -> str:
        """Add a convolution with its bias and return the name of its output."""
        kernel = self.weight((made, held, side, side), held * side * side, scale)
        bias = self.weight((made,), 2, 0.01)
        pads = [side // 2] * 4
        found = self.node("Conv", x, kernel, bias, strides=[stride, stride], pads=pads)
        return self.node("Relu", found) if relu else found
