"""The protocol's gRPC messages, from a private descriptor pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ortune.protocol.inference import InferRequest, InferResponse

SERVICE = "inference.GRPCInferenceService"


@dataclass(frozen=True, slots=True)
class Addressed:
    """A request with the model that it is for.

    Attributes:
        version: Empty for the default one.
    """

    model: str
    version: str
    request: InferRequest


def message(name: str) -> type[Any]:
    """Return the class of a message, such as ``ModelInferRequest``."""
    raise NotImplementedError


def methods() -> Mapping[str, Any]:
    """Return the service's methods by name: protobuf's MethodDescriptors."""
    raise NotImplementedError


def parse(given: Any) -> InferRequest:
    """Read a ``ModelInferRequest``.

    Raises:
        Refused: Its data does not fit its shapes.
    """
    raise NotImplementedError


def write(response: InferResponse) -> Any:
    """Return a ``ModelInferResponse`` with raw contents."""
    raise NotImplementedError


def deserialized(body: bytes) -> Addressed:
    """Read a serialized ``ModelInferRequest``: as `parse`, but large tensors are not copied.

    Raises:
        Refused: It is no such message, or its data does not fit its shapes.
    """
    raise NotImplementedError


def serialized(response: InferResponse) -> bytes:
    """Return a serialized ``ModelInferResponse``: as `write`, but tensors are copied once."""
    raise NotImplementedError
