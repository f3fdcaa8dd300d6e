"""Stands in for Triton's onnxruntime backend: a Python backend of that name.

The server takes the very config.pbtxt that is meant for the C++ backend, batches and queues by it,
and hands the calls to this.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as triton

NUMPY_1 = np.__version__.startswith("1.")
LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}


class TritonPythonModel:
    """One instance of a model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open a session as the configuration says."""
        config = json.loads(args["model_config"])
        said = {key: value["string_value"] for key, value in config["parameters"].items()}
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(said.get("intra_op_thread_count", 1))
        options.enable_cpu_mem_arena = said.get("enable_mem_arena", "1") == "1"
        options.enable_mem_pattern = said.get("enable_mem_pattern", "1") == "1"
        level = config["optimization"].get("graph", {}).get("level", 0)
        if level in LEVELS:
            options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
        file = Path(args["model_repository"], args["model_version"])
        self.session = ort.InferenceSession(file / config["default_model_filename"], options)
        self.inputs = [one.name for one in self.session.get_inputs()]
        self.outputs = [one.name for one in self.session.get_outputs()]

    def execute(self, requests: list) -> list:
        """Run each call; stacked calls come together."""
        answers = []
        for request in requests:
            feeds = {
                name: _array(triton.get_input_tensor_by_name(request, name))
                for name in self.inputs
            }
            found = zip(self.outputs, self.session.run(self.outputs, feeds), strict=True)
            tensors = [_tensor(name, value) for name, value in found]
            answers.append(triton.InferenceResponse(output_tensors=tensors))
        return answers


def _array(tensor: triton.Tensor) -> np.ndarray:
    """Return the array of an input.

    DLPack, as the server is built for NumPy 1: arrays of NumPy 2 have no strides for it.
    """
    if not NUMPY_1:
        return np.asarray(np.from_dlpack(tensor))
    array = tensor.as_numpy()
    if array.dtype != object:
        return array
    return np.array([one.decode() for one in array.ravel()], object).reshape(array.shape)


def _tensor(name: str, value: np.ndarray) -> triton.Tensor:
    if not NUMPY_1:
        return triton.Tensor.from_dlpack(name, value)
    if value.dtype != object:
        return triton.Tensor(name, value)
    raw = np.array([one.encode() for one in value.ravel()], np.object_)
    return triton.Tensor(name, raw.reshape(value.shape))
