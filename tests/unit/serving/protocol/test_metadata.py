"""What a server says of itself is what clients read, and fits the messages of gRPC."""

import pytest

from ortune.core.facts import TensorSpec
from ortune.core.hardware.instances import InstanceGroup
from ortune.serving.protocol import metadata
from ortune.serving.protocol.refusals import RequestRefused

INPUTS = (
    TensorSpec("x", "float32", ("N", 3, None)),
    TensorSpec("s", "str", ("N",)),
    TensorSpec("b", "bfloat16", ("N", 1)),
)
OUTPUTS = (TensorSpec("y", "int64", ("N",)),)


def test_free_dimensions_are_minus_one() -> None:
    told = metadata.model_metadata("m", ["1", "2"], "onnxruntime_onnx", INPUTS, OUTPUTS)
    assert told["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 3, -1]},
        {"name": "s", "datatype": "BYTES", "shape": [-1]},
        {"name": "b", "datatype": "BF16", "shape": [-1, 1]},
    ]
    made = metadata.as_message("ModelMetadataResponse", told)
    assert made.versions == ["1", "2"] and list(made.inputs[0].shape) == [-1, 3, -1]


@pytest.mark.parametrize("max_batch", [0, 8])
def test_the_batch_is_no_dimension_of_the_configuration(max_batch: int) -> None:
    told = metadata.model_config(
        "m",
        "onnxruntime_onnx",
        INPUTS,
        OUTPUTS,
        max_batch=max_batch,
        instances=(InstanceGroup(2), InstanceGroup(3, "gpu", 1)),
        delay_us=500,
        preferred=(4, 8),
    )
    first = [-1] if not max_batch else []
    assert [one["dims"] for one in told["input"]] == [[*first, 3, -1], first, [*first, 1]]
    types = [one["data_type"] for one in told["input"]]
    assert types == ["TYPE_FP32", "TYPE_STRING", "TYPE_BF16"]
    assert ("dynamic_batching" in told) == bool(max_batch)
    made = metadata.as_message("ModelConfigResponse", {"config": told}).config
    assert made.max_batch_size == max_batch and made.instance_group[0].count == 2
    on_gpu = made.instance_group[1]
    assert (on_gpu.count, list(on_gpu.gpus), on_gpu.name) == (3, [1], "m_1")
    if max_batch:
        assert list(made.dynamic_batching.preferred_batch_size) == [4, 8]
        assert made.dynamic_batching.max_queue_delay_microseconds == 500


def test_the_server() -> None:
    made = metadata.as_message("ServerMetadataResponse", metadata.server_metadata())
    assert made.name == "ortune" and "binary_tensor_data" in made.extensions


def test_what_the_protocol_cannot_say_is_refused() -> None:
    for spec in (TensorSpec("x", "float32", None), TensorSpec("x", "int4", (1,))):
        with pytest.raises(RequestRefused):
            metadata.model_metadata("m", ["1"], "p", [spec], [])
        with pytest.raises(RequestRefused):
            metadata.model_config("m", "p", [], [spec], max_batch=0)
