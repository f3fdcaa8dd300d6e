"""The protocol's gRPC messages, from a private descriptor pool.

Private, as a process knows each message once in the pool that all share: tritonclient or kserve
in the same process would clash. ``open_inference.pb`` is the compiled form of NVIDIA's
``grpc_service.proto`` and ``model_config.proto`` (BSD 3-Clause, see ``open_inference.txt``), made
by ``tools/open_inference.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from ortune.serving.protocol.datatypes import MOST_TENSORS, dtype, elements, from_raw, to_raw
from ortune.serving.protocol.inference import (
    Asked,
    InferRequest,
    InferResponse,
    classes,
    no_shared_memory,
    plain,
    timeout,
)
from ortune.serving.protocol.status import Refused

SERVICE = "inference.GRPCInferenceService"
_KNOWN = frozenset({"triton_enable_empty_final_response"})
_RAW_OUTPUT, _STREAMED = 6, 2
"""Fields ``raw_output_contents`` and ``infer_response``."""
_SMALL = 32 << 10
"""Bytes of a message up to which protobuf's own copies cost less than looking for them."""
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


@dataclass(frozen=True, slots=True)
class Addressed:
    """A request with the model that it is for.

    Attributes:
        version: Empty for the default one.
    """

    model: str
    version: str
    request: InferRequest


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    held = resources.files("ortune.serving.protocol").joinpath("open_inference.pb").read_bytes()
    for file in FileDescriptorSet.FromString(held).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


@cache
def message(name: str) -> type[Any]:
    """Return the class of a message, such as ``ModelInferRequest``."""
    found: type[Any] = message_factory.GetMessageClass(
        _pool().FindMessageTypeByName(f"inference.{name}")
    )
    return found


@cache
def methods() -> Mapping[str, Any]:
    """Return the service's methods by name: protobuf's MethodDescriptors."""
    return dict(_pool().FindServiceByName(SERVICE).methods_by_name)


def parse(given: Any) -> InferRequest:
    """Read a ``ModelInferRequest``.

    Raises:
        Refused: Its data does not fit its shapes.
    """
    return _parsed(given, given.raw_input_contents)


def deserialized(body: bytes) -> Addressed:
    """Read a serialized ``ModelInferRequest``: as `parse`, but large tensors are copied once.

    Raises:
        Refused: It is no such message, or its data does not fit its shapes.
    """
    raw: Sequence[bytes | memoryview] | None = None
    if len(body) > _SMALL:
        body, raw = without_raw(body)
    try:
        given = message("ModelInferRequest").FromString(body)
    except DecodeError as error:
        raise Refused(f"failed to parse the request: {error}") from None
    request = _parsed(given, given.raw_input_contents if raw is None else raw)
    return Addressed(given.model_name, given.model_version, request)


def write(response: InferResponse) -> Any:
    """Return a ``ModelInferResponse`` with raw contents."""
    made = _described(response)
    made.raw_output_contents.extend(bytes(to_raw(output.array)) for output in response.outputs)
    return made


def serialized(response: InferResponse, *, streamed: bool = False) -> bytes:
    """Return a serialized ``ModelInferResponse``: as `write`, but tensors are copied once.

    Args:
        streamed: Put into a ``ModelStreamInferResponse``.
    """
    parts: list[bytes | memoryview] = [_described(response).SerializeToString()]
    for output in response.outputs:
        raw = to_raw(output.array)
        parts += [field(_RAW_OUTPUT, len(raw)), raw]
    if streamed:
        parts.insert(0, field(_STREAMED, sum(map(len, parts))))
    return b"".join(parts)


def _described(response: InferResponse) -> Any:
    """Return the answer without its tensors' contents."""
    made = message("ModelInferResponse")(
        model_name=response.model, model_version=response.version, id=response.id
    )
    for name, value in response.parameters.items():
        setattr(made.parameters[name], _choice(value), value)
    for output in response.outputs:
        made.outputs.add(name=output.name, datatype=output.datatype, shape=output.array.shape)
    return made


def _choice(value: Any) -> str:
    match value:
        case bool():
            return "bool_param"
        case int():
            return "int64_param"
        case float():
            return "double_param"
        case _:
            return "string_param"


def _parsed(given: Any, raw: Sequence[bytes | memoryview]) -> InferRequest:
    model = given.model_name
    if len(raw) > len(given.inputs):
        raise Refused(f"unexpected additional input data for model '{model}'")
    inputs: dict[str, NDArray[Any]] = {}
    datatypes: dict[str, str] = {}
    for place, one in enumerate(given.inputs):
        name, datatype = one.name, one.datatype
        if name in inputs:
            raise Refused(f"input '{name}' already exists in request")
        if one.parameters:
            no_shared_memory(_values(one.parameters), f"input '{name}'")
        if one.HasField("contents"):
            if len(raw):
                raise Refused(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{name}' for model '{model}'"
                )
            inputs[name] = _typed(name, datatype, one.shape, one.contents, model)
        elif place < len(raw):
            inputs[name] = from_raw(name, datatype, one.shape, raw[place], model)
        else:
            raise Refused(
                f"unable to find data for input tensor '{name}' for model '{model}' in request."
            )
        datatypes[name] = datatype
    parameters = _values(given.parameters)
    return InferRequest(
        inputs=inputs,
        outputs=_outputs(given.outputs),
        id=given.id,
        binary=True,
        timeout_us=timeout(parameters.pop("timeout", 0)),
        parameters=plain(parameters, _KNOWN),
        datatypes=datatypes,
    )


def _values(parameters: Any) -> dict[str, Any]:
    """Return an ``InferParameter`` map as values; None for one that holds none."""
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        choice = value.WhichOneof("parameter_choice")
        found[name] = None if choice is None else getattr(value, choice)
    return found


def _outputs(given: Any) -> tuple[Asked, ...]:
    asked: dict[str, Asked] = {}
    for one in given:
        most = 0
        if one.parameters:
            parameters = _values(one.parameters)
            no_shared_memory(parameters, f"output '{one.name}'")
            most = classes(parameters.get("classification", 0), one.name)
        asked.setdefault(one.name, Asked(one.name, True, most))
    return tuple(asked.values())


def _typed(
    name: str, datatype: str, shape: Sequence[int], contents: Any, model: str
) -> NDArray[Any]:
    """Read an input from the typed field of its datatype."""
    kind, count = dtype(datatype), elements(name, shape)
    wanted = _CONTENTS.get(datatype, "")
    for found, _ in contents.ListFields():
        if found.name != wanted:
            raise Refused(
                f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' "
                f"in {found.name}, expected datatype '{datatype}'"
            )
    values = getattr(contents, wanted) if wanted else ()
    if len(values) != count:
        raise Refused(
            f"unexpected number of elements {len(values)} for inference input '{name}' for model "
            f"'{model}', expecting {count}"
        )
    try:
        return np.array(list(values), kind).reshape(tuple(shape))
    except OverflowError:
        raise Refused(f"a number of input '{name}' is out of the range of {datatype}") from None


_RAW_INPUT = 7 << 3 | 2
"""Key of ``ModelInferRequest.raw_input_contents``."""
_MOST_FIELDS = 4 * MOST_TENSORS
"""Of one request. An empty one of two bytes makes protobuf allocate a hundred."""
_FIXED = {1: 8, 5: 4}
"""Wire type -> bytes."""


def without_raw(body: bytes) -> tuple[bytes, list[memoryview]]:
    """Take the raw contents out of a ``ModelInferRequest``.

    Returns:
        The request without them, and views of them in order.

    Raises:
        Refused: It is no protobuf message, or has more fields than a request may.
    """
    view, at, end = memoryview(body), 0, len(body)
    rest: list[memoryview] = []
    raw: list[memoryview] = []
    while at < end:
        if len(rest) + len(raw) >= _MOST_FIELDS:
            raise Refused(f"the request has more than {_MOST_FIELDS} fields")
        key, start = _varint(body, at)
        match key & 7:
            case 0:
                _, stop = _varint(body, start)
            case 2:
                size, start = _varint(body, start)
                stop = start + size
            case wire if wire in _FIXED:
                stop = start + _FIXED[wire]
            case wire:
                raise Refused(f"failed to parse the request: wire type {wire} at byte {at}")
        if stop > end:
            raise Refused(f"failed to parse the request: it ends within the field at byte {at}")
        if key == _RAW_INPUT:
            raw.append(view[start:stop])
        else:
            rest.append(view[at:stop])
        at = stop
    return b"".join(rest), raw


def field(number: int, size: int) -> bytes:
    """Return what stands before the content of a field of bytes."""
    out = bytearray((number << 3 | 2,))
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a number and the place behind it."""
    value = shift = 0
    for place in range(at, min(at + 10, len(body))):
        octet = body[place]
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, place + 1
        shift += 7
    raise Refused(f"failed to parse the request: no number at byte {at}")
