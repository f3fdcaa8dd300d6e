"""A small labelled classification task: real enough for a whole search in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES, FEATURES, HIDDEN = 10, 64, 256


def digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 handwritten digits of 8 x 8 pixels with labels, from the packaged sample."""
    from ortune.data.zoo import digit_cnn

    archive = np.load(Path(digit_cnn.__file__).parent / "digits.npz")
    images, labels = archive[archive.files[0]], archive[archive.files[1]]
    small = images.reshape(len(images), 28, 28)[:, 2:26, 2:26]
    small = small.reshape(len(images), 8, 3, 8, 3).mean((2, 4)).reshape(len(images), FEATURES)
    return (small / 255).astype(np.float32), labels


def write_classifier(folder: Path, samples: int = 400) -> tuple[Path, Path]:
    """Write a trained two-layer classifier and labelled samples; return model and data folder."""
    features, labels = digits()
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((FEATURES, HIDDEN)).astype(np.float32) / 4
    bias = rng.standard_normal(HIDDEN).astype(np.float32)
    active = np.maximum(features @ hidden + bias, 0)
    wanted = np.eye(CLASSES, dtype=np.float32)[labels]
    out = np.linalg.solve(active.T @ active + np.eye(HIDDEN), active.T @ wanted).astype(np.float32)
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("MatMul", ["same", "w1"], ["h0"]),
        helper.make_node("Add", ["h0", "b1"], ["h1"]),
        helper.make_node("Relu", ["h1"], ["h2"]),
        helper.make_node("MatMul", ["h2", "w2"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [
            numpy_helper.from_array(hidden, "w1"),
            numpy_helper.from_array(bias, "b1"),
            numpy_helper.from_array(out, "w2"),
        ],
    )
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "classifier.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model
    )
    data = folder / "data"
    data.mkdir(exist_ok=True)
    np.savez(data / "all.npz", x=features[:samples], label=labels[:samples])
    return model, data
