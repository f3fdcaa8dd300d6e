"""Stands in for Triton's onnxruntime backend: a Python backend of that name.

The server takes the very config.pbtxt that is meant for the C++ backend, batches and queues by it,
and hands the calls to this.
"""

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as triton

LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}


class TritonPythonModel:
    """One instance of a model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open a session as the configuration says."""
        config = json.loads(args["model_config"])
        said = {key: value["string_value"] for key, value in config["parameters"].items()}
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(said["intra_op_thread_count"])
        options.enable_cpu_mem_arena = said["enable_mem_arena"] == "1"
        options.enable_mem_pattern = said["enable_mem_pattern"] == "1"
        level = config["optimization"].get("graph", {}).get("level", 0)
        if level in LEVELS:
            options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
        file = Path(args["model_repository"], args["model_version"])
        self.session = ort.InferenceSession(file / config["default_model_filename"], options)
        self.inputs = [one.name for one in self.session.get_inputs()]
        self.outputs = [one.name for one in self.session.get_outputs()]

    def execute(self, requests: list) -> list:
        """Run each call; stacked calls come together.

        DLPack, as the server is built for NumPy 1: arrays of NumPy 2 have no strides for it.
        """
        answers = []
        for request in requests:
            feeds = {
                name: np.asarray(np.from_dlpack(triton.get_input_tensor_by_name(request, name)))
                for name in self.inputs
            }
            found = zip(self.outputs, self.session.run(self.outputs, feeds), strict=True)
            tensors = [triton.Tensor.from_dlpack(name, value) for name, value in found]
            answers.append(triton.InferenceResponse(output_tensors=tensors))
        return answers
