"""What a server and its models say of themselves: the protocol's JSON, and gRPC's messages."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from google.protobuf import json_format

from ortune.core.facts import TensorSpec
from ortune.core.hardware.instances import InstanceGroup
from ortune.core.version import __version__
from ortune.serving.protocol.datatypes import find_datatype
from ortune.serving.protocol.messages import find_message_class
from ortune.serving.protocol.refusals import RefusalKind, RequestRefused

EXTENSIONS = (
    *("binary_tensor_data", "classification", "model_configuration", "model_repository"),
    *("parameters", "statistics"),
)
TRACE_SETTINGS: Mapping[str, Any] = {
    "trace_file": "",
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_mode": "triton",
}
LOG_SETTINGS: Mapping[str, Any] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
"""What clients read of Triton's settings; those of this server are chosen where it is started."""


def check_unchanged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Raise RequestRefused where a setting is to change; a value None asks for no change."""
    for name, value in changes.items():
        if name not in settings or value not in (None, settings[name]):
            raise RequestRefused(
                f"settings of a running server do not change: '{name}'",
                RefusalKind.UNSUPPORTED,
                "choose them at its start: `ortune serve --trace`, `ortune serve --log-json`",
            )


def refuse_region(kind: str, name: str) -> NoReturn:
    """Raise RequestRefused: there are no regions of ``system`` or ``cuda`` shared memory."""
    raise RequestRefused(
        f"Unable to find {kind} shared memory region: '{name}'", RefusalKind.NOT_FOUND
    )


def refuse_registration(name: str) -> NoReturn:
    """Refuse to register a region of shared memory. Raises RequestRefused: always."""
    raise RequestRefused(
        f"failed to register shared memory region '{name}': not supported",
        RefusalKind.UNSUPPORTED,
        "send tensors in the request itself",
    )


def server_metadata() -> dict[str, Any]:
    """Return what the server says of itself."""
    return {"name": "ortune", "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(
    name: str,
    versions: Sequence[str],
    platform: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> dict[str, Any]:
    """Return what a model says of itself, free dimensions and the batch -1.

    Raises RequestRefused: an input or output has a type or rank that the protocol cannot say.
    """

    def describe_tensors(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        return [
            {"name": spec.name, "datatype": find_datatype(spec.dtype), "shape": _list_dims(spec)}
            for spec in specs
        ]

    return {
        "name": name,
        "versions": list(versions),
        "platform": platform,
        "inputs": describe_tensors(inputs),
        "outputs": describe_tensors(outputs),
    }


def model_config(
    name: str,
    platform: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    max_batch: int,
    instances: Sequence[InstanceGroup] = (InstanceGroup(1),),
    delay_us: int = 0,
    preferred: Sequence[int] = (),
    optional: Collection[str] = (),
) -> dict[str, Any]:
    """Return a model's configuration as Triton tells it, with the defaults that clients read.

    `max_batch` is 0 where the first dimension is no batch; else dims are without it. A request may
    leave `optional` inputs out. Raises RequestRefused: an input or output has a type or rank that
    the protocol cannot say.
    """

    def describe_tensor(spec: TensorSpec, **more: Any) -> dict[str, Any]:
        dims = _list_dims(spec)[1 if max_batch else 0 :]
        kind = find_datatype(spec.dtype).replace("BYTES", "STRING")
        kinds = {"data_type": f"TYPE_{kind}", "dims": dims, "is_shape_tensor": False}
        return {"name": spec.name, **kinds, **more}

    common = {"format": "FORMAT_NONE", "allow_ragged_batch": False}
    config: dict[str, Any] = {
        "name": name,
        "platform": platform,
        "backend": platform.partition("_")[0],
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": max_batch,
        "input": [
            describe_tensor(spec, **common, optional=spec.name in optional) for spec in inputs
        ],
        "output": [describe_tensor(spec, label_filename="") for spec in outputs],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [
            {
                "name": f"{name}_{place}",
                "kind": "KIND_GPU" if group.kind == "gpu" else "KIND_CPU",
                "count": group.count,
                "gpus": [group.index] if group.kind == "gpu" else [],
                "passive": False,
            }
            for place, group in enumerate(instances)
        ],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
        "model_transaction_policy": {"decoupled": False},
    }
    if max_batch:
        config["dynamic_batching"] = {
            "preferred_batch_size": list(preferred),
            "max_queue_delay_microseconds": delay_us,
            "preserve_ordering": False,
        }
    return config


def as_message(name: str, content: Mapping[str, Any]) -> Any:
    """Return a message such as ``ModelMetadataResponse`` with a content in its JSON form."""
    return json_format.ParseDict(dict(content), find_message_class(name)())


def _list_dims(spec: TensorSpec) -> list[int]:
    if spec.shape is None:
        raise RequestRefused(
            f"the rank of '{spec.name}' is not known, so the protocol cannot tell its shape",
            RefusalKind.UNSUPPORTED,
            "export the model with the shapes of its inputs and outputs",
        )
    return [dim if isinstance(dim, int) else -1 for dim in spec.shape]
