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

from ortune.serving.protocol.datatypes import (
    MOST_TENSORS,
    count_elements,
    find_dtype,
    from_raw,
    to_raw,
)
from ortune.serving.protocol.inference import (
    InferRequest,
    InferResponse,
    OutputRequest,
    refuse_shared_memory,
    validate_class_count,
    validate_parameters,
    validate_timeout,
)
from ortune.serving.protocol.status import RequestRefused

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
class AddressedRequest:
    """A request with the model that it is for.

    Attributes:
        version: Empty for the default one.
    """

    model: str
    version: str
    request: InferRequest


@cache
def _load_pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    encoded = resources.files("ortune.serving.protocol").joinpath("open_inference.pb").read_bytes()
    for file in FileDescriptorSet.FromString(encoded).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


@cache
def find_message_class(name: str) -> type[Any]:
    """Return the class of a message, such as ``ModelInferRequest``."""
    message_class: type[Any] = message_factory.GetMessageClass(
        _load_pool().FindMessageTypeByName(f"inference.{name}")
    )
    return message_class


@cache
def list_methods() -> Mapping[str, Any]:
    """Return the service's methods by name: protobuf's MethodDescriptors."""
    return dict(_load_pool().FindServiceByName(SERVICE).methods_by_name)


def parse_message(infer_message: Any) -> InferRequest:
    """Read a ``ModelInferRequest``.

    Raises:
        RequestRefused: Its data does not fit its shapes.
    """
    return _read_message(infer_message, infer_message.raw_input_contents)


def deserialize_request(body: bytes) -> AddressedRequest:
    """Read a serialized ``ModelInferRequest``: as `parse_message`, but large tensors are copied
    once.

    Raises:
        RequestRefused: It is no such message, or its data does not fit its shapes.
    """
    raw: Sequence[bytes | memoryview] | None = None
    if len(body) > _SMALL:
        body, raw = split_raw(body)
    try:
        infer_message = find_message_class("ModelInferRequest").FromString(body)
    except DecodeError as error:
        raise RequestRefused(f"failed to parse the request: {error}") from None
    request = _read_message(
        infer_message, infer_message.raw_input_contents if raw is None else raw
    )
    return AddressedRequest(infer_message.model_name, infer_message.model_version, request)


def build_message(response: InferResponse) -> Any:
    """Return a ``ModelInferResponse`` with raw contents."""
    infer_message = _describe_response(response)
    infer_message.raw_output_contents.extend(
        bytes(to_raw(output.array)) for output in response.outputs
    )
    return infer_message


def serialize_response(response: InferResponse, *, streamed: bool = False) -> bytes:
    """Return a serialized ``ModelInferResponse``: as `build_message`, but tensors are copied once.

    Args:
        streamed: Put into a ``ModelStreamInferResponse``.
    """
    parts: list[bytes | memoryview] = [_describe_response(response).SerializeToString()]
    for output in response.outputs:
        raw = to_raw(output.array)
        parts += [encode_field_key(_RAW_OUTPUT, len(raw)), raw]
    if streamed:
        parts.insert(0, encode_field_key(_STREAMED, sum(map(len, parts))))
    return b"".join(parts)


def _describe_response(response: InferResponse) -> Any:
    """Return the answer without its tensors' contents."""
    infer_message = find_message_class("ModelInferResponse")(
        model_name=response.model, model_version=response.version, id=response.id
    )
    for name, value in response.parameters.items():
        setattr(infer_message.parameters[name], _choose_field(value), value)
    for output in response.outputs:
        infer_message.outputs.add(
            name=output.name, datatype=output.datatype, shape=output.array.shape
        )
    return infer_message


def _choose_field(value: Any) -> str:
    match value:
        case bool():
            return "bool_param"
        case int():
            return "int64_param"
        case float():
            return "double_param"
        case _:
            return "string_param"


def _read_message(infer_message: Any, raw: Sequence[bytes | memoryview]) -> InferRequest:
    model = infer_message.model_name
    if len(raw) > len(infer_message.inputs):
        raise RequestRefused(f"unexpected additional input data for model '{model}'")
    inputs: dict[str, NDArray[Any]] = {}
    datatypes: dict[str, str] = {}
    for place, tensor in enumerate(infer_message.inputs):
        name, datatype = tensor.name, tensor.datatype
        if name in inputs:
            raise RequestRefused(f"input '{name}' already exists in request")
        if tensor.parameters:
            refuse_shared_memory(_read_parameters(tensor.parameters), f"input '{name}'")
        if tensor.HasField("contents"):
            if len(raw):
                raise RequestRefused(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{name}' for model '{model}'"
                )
            inputs[name] = _read_contents(name, datatype, tensor.shape, tensor.contents, model)
        elif place < len(raw):
            inputs[name] = from_raw(name, datatype, tensor.shape, raw[place], model)
        else:
            raise RequestRefused(
                f"unable to find data for input tensor '{name}' for model '{model}' in request."
            )
        datatypes[name] = datatype
    parameters = _read_parameters(infer_message.parameters)
    return InferRequest(
        inputs=inputs,
        outputs=_read_outputs(infer_message.outputs),
        id=infer_message.id,
        binary=True,
        timeout_us=validate_timeout(parameters.pop("timeout", 0)),
        parameters=validate_parameters(parameters, _KNOWN),
        datatypes=datatypes,
    )


def _read_parameters(parameters: Any) -> dict[str, Any]:
    """Return an ``InferParameter`` map as values; None for one that holds none."""
    values: dict[str, Any] = {}
    for name, value in parameters.items():
        choice = value.WhichOneof("parameter_choice")
        values[name] = None if choice is None else getattr(value, choice)
    return values


def _read_outputs(tensors: Any) -> tuple[OutputRequest, ...]:
    output_requests: dict[str, OutputRequest] = {}
    for tensor in tensors:
        most = 0
        if tensor.parameters:
            parameters = _read_parameters(tensor.parameters)
            refuse_shared_memory(parameters, f"output '{tensor.name}'")
            most = validate_class_count(parameters.get("classification", 0), tensor.name)
        output_requests.setdefault(tensor.name, OutputRequest(tensor.name, True, most))
    return tuple(output_requests.values())


def _read_contents(
    name: str, datatype: str, shape: Sequence[int], contents: Any, model: str
) -> NDArray[Any]:
    """Read an input from the typed field of its datatype."""
    kind, count = find_dtype(datatype), count_elements(name, shape)
    expected = _CONTENTS.get(datatype, "")
    for descriptor, _ in contents.ListFields():
        if descriptor.name != expected:
            raise RequestRefused(
                f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' "
                f"in {descriptor.name}, expected datatype '{datatype}'"
            )
    values = getattr(contents, expected) if expected else ()
    if len(values) != count:
        raise RequestRefused(
            f"unexpected number of elements {len(values)} for inference input '{name}' for model "
            f"'{model}', expecting {count}"
        )
    try:
        return np.array(list(values), kind).reshape(tuple(shape))
    except OverflowError:
        raise RequestRefused(
            f"a number of input '{name}' is out of the range of {datatype}"
        ) from None


_RAW_INPUT = 7 << 3 | 2
"""Key of ``ModelInferRequest.raw_input_contents``."""
_MOST_FIELDS = 4 * MOST_TENSORS
"""Of one request. An empty one of two bytes makes protobuf allocate a hundred."""
_FIXED = {1: 8, 5: 4}
"""Wire type -> bytes."""


def split_raw(body: bytes) -> tuple[bytes, list[memoryview]]:
    """Take the raw contents out of a ``ModelInferRequest``.

    Returns:
        The request without them, and views of them in order.

    Raises:
        RequestRefused: It is no protobuf message, or has more fields than a request may.
    """
    view, at, end = memoryview(body), 0, len(body)
    other_fields: list[memoryview] = []
    raw: list[memoryview] = []
    while at < end:
        if len(other_fields) + len(raw) >= _MOST_FIELDS:
            raise RequestRefused(f"the request has more than {_MOST_FIELDS} fields")
        key, start = _read_varint(body, at)
        match key & 7:
            case 0:
                _, stop = _read_varint(body, start)
            case 2:
                size, start = _read_varint(body, start)
                stop = start + size
            case wire if wire in _FIXED:
                stop = start + _FIXED[wire]
            case wire:
                raise RequestRefused(f"failed to parse the request: wire type {wire} at byte {at}")
        if stop > end:
            raise RequestRefused(
                f"failed to parse the request: it ends within the field at byte {at}"
            )
        if key == _RAW_INPUT:
            raw.append(view[start:stop])
        else:
            other_fields.append(view[at:stop])
        at = stop
    return b"".join(other_fields), raw


def encode_field_key(number: int, size: int) -> bytes:
    """Return what stands before the content of a field of bytes."""
    out = bytearray((number << 3 | 2,))
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a number and the place behind it."""
    value = shift = 0
    for place in range(at, min(at + 10, len(body))):
        octet = body[place]
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, place + 1
        shift += 7
    raise RequestRefused(f"failed to parse the request: no number at byte {at}")
