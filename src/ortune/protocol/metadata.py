"""What a server and its models say of themselves: the protocol's JSON, and gRPC's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ortune.core.facts import TensorSpec


def server_metadata() -> dict[str, Any]:
    """Return what the server says of itself."""
    raise NotImplementedError


def model_metadata(
    name: str,
    versions: Sequence[str],
    platform: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> dict[str, Any]:
    """Return what a model says of itself; free dimensions are -1, the batch too.

    Raises:
        Refused: An input or output has a type or rank that the protocol cannot say.
    """
    raise NotImplementedError


def model_config(
    name: str,
    platform: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    max_batch: int,
    instances: int = 1,
    delay_us: int = 0,
    preferred: Sequence[int] = (),
    kind: str = "KIND_CPU",
) -> dict[str, Any]:
    """Return a model's configuration as Triton tells it, its defaults included.

    Args:
        max_batch: 0 where the first dimension is no batch; else dims are without it.
        kind: ``KIND_CPU`` or ``KIND_GPU``.
    """
    raise NotImplementedError


def duration(count: int, ns: int) -> dict[str, int]:
    """Return a count and the nanoseconds of all of them together."""
    return {"count": count, "ns": ns}


def statistics(
    name: str,
    version: str,
    *,
    last_inference_ms: int,
    inferences: int,
    executions: int,
    durations: Mapping[str, tuple[int, int]],
    batches: Mapping[int, Mapping[str, tuple[int, int]]],
) -> dict[str, Any]:
    """Return one entry of ``model_stats``.

    Args:
        last_inference_ms: Milliseconds since the epoch; 0 before the first.
        inferences: Rows that were answered.
        executions: Runs of the model.
        durations: success, fail, queue, compute_input, compute_infer, compute_output, cache_hit,
            cache_miss -> count and nanoseconds; those that are absent are zero.
        batches: Rows -> compute_input, compute_infer, compute_output of runs of so many.
    """
    raise NotImplementedError


def as_message(name: str, content: Mapping[str, Any]) -> Any:
    """Return a message of the protocol with a content in its JSON form.

    Args:
        name: Such as ``ModelMetadataResponse``.
    """
    raise NotImplementedError
