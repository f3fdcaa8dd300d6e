"""The protocol's gRPC messages, from a private descriptor pool.

Private, as a process knows each message once in the pool that all share: tritonclient or kserve
in the same process would clash. ``open_inference.pb`` is the compiled form of NVIDIA's
``grpc_service.proto`` and ``model_config.proto`` (BSD 3-Clause, see ``open_inference.txt``), made
by ``tools/open_inference.py``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from typing import Any

import numpy as np
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from ortune.serving.protocol import inference
from ortune.serving.protocol.datatypes import (
    MOST_TENSORS,
    count_elements,
    find_dtype,
    from_raw,
    to_raw,
)
from ortune.serving.protocol.refusals import RequestRefused

SERVICE = "inference.GRPCInferenceService"
HEALTH = "/grpc.health.v1.Health/Check"
"""gRPC's own question, which Kubernetes asks."""
_KNOWN = frozenset({"triton_enable_empty_final_response"})
_PARAMETER_FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param"}
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
    """A request, declared, with the model that it is for; no version is the default one."""

    model: str
    version: str
    declared: inference.DeclaredRequest

    @property
    def request(self) -> inference.InferRequest:
        """The request with its data. Raises RequestRefused: it does not fit the shapes."""
        return self.declared.read()


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


def list_paths() -> Mapping[str, bool]:
    """Return the path of each method and of the health check -> whether it is a stream."""
    methods = list_methods().items()
    return {f"/{SERVICE}/{name}": method.server_streaming for name, method in methods} | {
        HEALTH: False
    }


def add_services(servicer: Any, server: Any) -> None:
    """Tell a proxy of Ray Serve the paths; messages stay bytes, and replicas answer them."""
    import grpc

    for path, is_stream in list_paths().items():
        service, name = path.strip("/").split("/")
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        handler = (stream if is_stream else unary)(servicer)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {name: handler}),)
        )


def deserialize_request(body: bytes) -> AddressedRequest:
    """Read what a ``ModelInferRequest`` declares; large data is copied once, and not parsed yet.

    Raises RequestRefused: it is no such message.
    """
    raw: Sequence[bytes | memoryview] | None = None
    contents: Sequence[memoryview | None] = ()
    if len(body) > _SMALL:
        body, raw, contents = split_raw(body)
    try:
        infer_message = find_message_class("ModelInferRequest").FromString(body)
    except DecodeError as error:
        raise RequestRefused(f"failed to parse the request: {error}") from None
    declared = _declare_message(
        infer_message, infer_message.raw_input_contents if raw is None else raw, contents
    )
    return AddressedRequest(infer_message.model_name, infer_message.model_version, declared)


def serialize_response(response: inference.InferResponse, *, streamed: bool = False) -> bytes:
    """Return a ``ModelInferResponse`` as bytes, of a stream too; tensors are copied once."""
    parts: list[bytes | memoryview] = [_describe_response(response).SerializeToString()]
    for output in response.outputs:
        raw = to_raw(output.array)
        parts += [encode_field_key(_RAW_OUTPUT, len(raw)), raw]
    if streamed:
        parts.insert(0, encode_field_key(_STREAMED, sum(map(len, parts))))
    return b"".join(parts)


def _describe_response(response: inference.InferResponse) -> Any:
    """Return the answer without its tensors' contents."""
    infer_message = find_message_class("ModelInferResponse")(
        model_name=response.model, model_version=response.version, id=response.id
    )
    for name, value in response.parameters.items():
        field = _PARAMETER_FIELDS.get(type(value), "string_param")
        setattr(infer_message.parameters[name], field, value)
    for output in response.outputs:
        infer_message.outputs.add(
            name=output.name, datatype=output.datatype, shape=output.array.shape
        )
    return infer_message


def _declare_message(
    infer_message: Any,
    raw: Sequence[bytes | memoryview],
    contents: Sequence[memoryview | None],
) -> inference.DeclaredRequest:
    """Read what a message declares; `contents`: typed ones that were taken out of it, by place."""
    model = infer_message.model_name
    if len(raw) > len(infer_message.inputs):
        raise RequestRefused(f"unexpected additional input data for model '{model}'")
    inputs: dict[str, NDArray[Any]] = {}
    datatypes: dict[str, str] = {}
    readers: dict[str, Callable[[], NDArray[Any]]] = {}
    parsed_bytes = 0
    for place, tensor in enumerate(infer_message.inputs):
        name, datatype, shape = tensor.name, tensor.datatype, tuple(tensor.shape)
        encoded = contents[place] if place < len(contents) else None
        if name in inputs:
            raise RequestRefused(f"input '{name}' already exists in request")
        if tensor.parameters:
            inference.refuse_shared_memory(_read_parameters(tensor.parameters), f"input '{name}'")
        if encoded is not None or tensor.HasField("contents"):
            if len(raw):
                raise RequestRefused(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{name}' for model '{model}'"
                )
            typed = tensor.contents if encoded is None else encoded
            parsed_bytes += 0 if encoded is None else len(encoded)
            readers[name] = partial(_read_contents, name, datatype, shape, typed, model)
        elif place < len(raw):
            parsed_bytes += len(raw[place]) if datatype == "BYTES" else 0
            readers[name] = partial(from_raw, name, datatype, shape, raw[place], model)
        else:
            raise RequestRefused(
                f"unable to find data for input tensor '{name}' for model '{model}' in request."
            )
        inputs[name] = inference.declare_tensor(name, datatype, shape)
        datatypes[name] = datatype
    parameters = _read_parameters(infer_message.parameters)
    request = inference.InferRequest(
        inputs=inputs,
        outputs=_read_outputs(infer_message.outputs),
        id=infer_message.id,
        binary=True,
        timeout_us=inference.validate_timeout(parameters.pop("timeout", 0)),
        parameters=inference.validate_parameters(parameters, _KNOWN),
        datatypes=datatypes,
    )
    return inference.DeclaredRequest(request, readers, parsed_bytes)


def _read_parameters(parameters: Any) -> dict[str, Any]:
    """Return an ``InferParameter`` map as values; None for one that holds none."""
    values: dict[str, Any] = {}
    for name, value in parameters.items():
        choice = value.WhichOneof("parameter_choice")
        values[name] = None if choice is None else getattr(value, choice)
    return values


def _read_outputs(tensors: Any) -> tuple[inference.OutputRequest, ...]:
    output_requests: dict[str, inference.OutputRequest] = {}
    for tensor in tensors:
        most = 0
        if tensor.parameters:
            parameters = _read_parameters(tensor.parameters)
            inference.refuse_shared_memory(parameters, f"output '{tensor.name}'")
            most = inference.validate_class_count(parameters.get("classification", 0), tensor.name)
        output_requests.setdefault(tensor.name, inference.OutputRequest(tensor.name, True, most))
    return tuple(output_requests.values())


def _read_contents(
    name: str, datatype: str, shape: Sequence[int], contents: Any, model: str
) -> NDArray[Any]:
    """Read an input from the typed field of its datatype, ``InferTensorContents`` or its bytes."""
    kind, count = find_dtype(datatype), count_elements(name, shape)
    if isinstance(contents, memoryview):
        contents = _parse_contents(name, count, contents)
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


def _parse_contents(name: str, count: int, encoded: memoryview) -> Any:
    """Parse typed contents; RequestRefused where they are none or hold more texts than `count`."""
    data = bytes(encoded)
    # A text takes two bytes on the wire and a hundred in memory: see how many there are first.
    if data.count(_TEXT_KEY) > count:
        texts = 0
        for key, *_ in _walk_fields(data, 0, len(data)):
            texts += key == _TEXT_KEY
            if texts > count:
                raise RequestRefused(
                    f"unexpected number of elements, more than {count}, for inference input "
                    f"'{name}'"
                )
    try:
        return find_message_class("InferTensorContents").FromString(data)
    except DecodeError as error:
        raise RequestRefused(f"failed to parse the request: {error}") from None


_TEXT_KEY = 8 << 3 | 2
"""Key of ``InferTensorContents.bytes_contents``."""
_INPUTS, _CONTENTS_KEY = 5 << 3 | 2, 5 << 3 | 2
"""Keys of ``ModelInferRequest.inputs``, and of ``contents`` in one of them."""
_RAW_INPUT = 7 << 3 | 2
"""Key of ``ModelInferRequest.raw_input_contents``."""
_MOST_FIELDS = 4 * MOST_TENSORS
"""Of one request. An empty one of two bytes makes protobuf allocate a hundred."""
_MOST_DECLARED, _TYPED = 1 << 20, 4 << 10
"""Bytes of a request beside the data of its tensors, which are parsed at once; and of an input
with typed contents that are parsed with them."""
_FIXED = {1: 8, 5: 4}
"""Wire type -> bytes."""


def split_raw(body: bytes) -> tuple[bytes, list[memoryview], list[memoryview | None]]:
    """Take the raw contents out of a ``ModelInferRequest``, and the typed ones of large inputs.

    Returns the request without them, views of the raw ones in order, and one of the typed ones for
    each input; None where these stay. Raises RequestRefused: it is no protobuf message, or has
    more fields than a request may.
    """
    view = memoryview(body)
    other_fields: list[bytes | memoryview] = []
    raw: list[memoryview] = []
    contents: list[memoryview | None] = []
    for key, at, start, stop in _walk_fields(body, 0, len(body)):
        if len(other_fields) + len(raw) >= _MOST_FIELDS:
            raise RequestRefused(f"the request has more than {_MOST_FIELDS} fields")
        if key == _RAW_INPUT:
            raw.append(view[start:stop])
            continue
        if key == _INPUTS:
            typed = None
            if stop - start > _TYPED:
                typed, stripped = _take_contents(body, start, stop)
                other_fields.append(encode_field_key(_INPUTS >> 3, len(stripped)) + stripped)
            else:
                other_fields.append(view[at:stop])
            contents.append(typed)
        else:
            other_fields.append(view[at:stop])
    declared = b"".join(other_fields)
    if len(declared) > _MOST_DECLARED:
        raise RequestRefused(f"the request has more than {_MOST_DECLARED} bytes beside its data")
    return declared, raw, contents


def _take_contents(body: bytes, start: int, stop: int) -> tuple[memoryview | None, bytes]:
    """Return the typed contents of an input, and its other fields."""
    view = memoryview(body)
    typed: memoryview | None = None
    stripped: list[memoryview] = []
    for key, at, content, end in _walk_fields(body, start, stop):
        if len(stripped) >= _MOST_FIELDS or (key == _CONTENTS_KEY and typed is not None):
            raise RequestRefused(
                f"an input has more than {_MOST_FIELDS} fields, or contents twice"
            )
        if key == _CONTENTS_KEY:
            typed = view[content:end]
        else:
            stripped.append(view[at:end])
    return typed, b"".join(stripped)


def _walk_fields(body: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield key, place, start and end of each field; RequestRefused where it is no message."""
    while at < end:
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
        yield key, at, start, stop
        at = stop


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
