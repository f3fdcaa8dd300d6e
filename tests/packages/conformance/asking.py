"""Requests as functions of where the servers are, and answers as plain values, field by field."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2

Answer = dict[str, Any]
SERVICE = "/inference.GRPCInferenceService/"
HEADER = "Inference-Header-Content-Length"
_LIMIT_S = 30


@dataclass(frozen=True)
class Addresses:
    """Where one server listens."""

    http: str
    grpc: str


Case = Callable[[Addresses], Answer]


def http_case(
    method: str,
    path: str,
    body: bytes | str | Mapping[str, Any] | Sequence[Any] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    chunked: bool = False,
) -> Case:
    """Return a case that sends exactly these bytes; there is no content type unless it is said.

    Args:
        body: JSON where it is no bytes and no text.
        chunked: Send it in pieces of 10 bytes, without its length.
    """
    data = body if isinstance(body, bytes | str | None) else json.dumps(body)
    data = data.encode() if isinstance(data, str) else data

    def ask(where: Addresses) -> Answer:
        connection = http.client.HTTPConnection(where.http, timeout=_LIMIT_S)
        try:
            more = dict(headers or {})
            if chunked and data is not None:
                more["Transfer-Encoding"] = "chunked"
                connection.request(method, path, _pieces(data), more, encode_chunked=True)
            else:
                connection.request(method, path, data, more)
            return _read(connection.getresponse(), method)
        except (OSError, http.client.HTTPException) as error:
            return {"status": "no answer", "error": repr(error)}
        finally:
            connection.close()

    return ask


def binary_case(
    head: Mapping[str, Any],
    *blobs: bytes,
    model: str = "sum",
    length: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Case:
    """Return a case with tensors behind the JSON.

    Args:
        length: What the header says of the JSON; the truth without it.
    """
    text = json.dumps(head).encode()
    said = {HEADER: str(len(text)) if length is None else length, **(headers or {})}
    return http_case("POST", f"/v2/models/{model}/infer", text + b"".join(blobs), said)


def rpc(method: str, request: Any, *, seconds: float = _LIMIT_S) -> Case:
    """Return a case of one call."""

    def ask(where: Addresses) -> Answer:
        with grpc.insecure_channel(where.grpc) as channel:
            call = channel.unary_unary(
                SERVICE + method,
                request_serializer=type(request).SerializeToString,
                response_deserializer=_response(method).FromString,
            )
            try:
                return {"code": "OK", "message": message(call(request, timeout=seconds))}
            except grpc.RpcError as error:
                return {"code": error.code().name, "error": error.details()}

    return ask


def stream(requests: Iterable[Any]) -> Case:
    """Return a case of one stream: its answers in the order in which they come."""
    sent = list(requests)

    def ask(where: Addresses) -> Answer:
        with grpc.insecure_channel(where.grpc) as channel:
            call = channel.stream_stream(
                SERVICE + "ModelStreamInfer",
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
            )
            try:
                answers = [_streamed(one) for one in call(iter(sent), timeout=_LIMIT_S)]
                return {"code": "OK", "answers": answers}
            except grpc.RpcError as error:
                return {"code": error.code().name, "error": error.details()}

    return ask


def message(found: Any) -> Answer:
    """Return a message as a plain value; raw contents as hexadecimal."""
    plain: Answer = json_format.MessageToDict(
        found, preserving_proto_field_name=True, always_print_fields_with_no_presence=False
    )
    if isinstance(found, service_pb2.ModelInferResponse):
        plain["raw_output_contents"] = [one.hex() for one in found.raw_output_contents]
    return plain


def fields(answer: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of every leaf with its value; places in lists are numbers."""
    if isinstance(answer, Mapping):
        for key, value in answer.items():
            yield from fields(value, f"{name}.{key}" if name else str(key))
    elif isinstance(answer, list) and answer:
        for place, value in enumerate(_ordered(name, answer)):
            yield from fields(value, f"{name}.{place}")
    else:
        yield name, answer


def _ordered(name: str, values: list[Any]) -> list[Any]:
    """Return a list in its order where that says something: extensions and models are sets."""
    models = all(isinstance(one, Mapping) and "state" in one for one in values)
    return sorted(values, key=str) if models or name.endswith("extensions") else values


def _streamed(found: Any) -> Answer:
    if found.error_message:
        return {"error": found.error_message}
    return message(found.infer_response)


def _response(method: str) -> Any:
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    return getattr(service_pb2, service.methods_by_name[method].output_type.name)


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), 10):
        yield data[start : start + 10]


def _read(response: http.client.HTTPResponse, method: str) -> Answer:
    """Return status, content type and body; tensors behind JSON as hexadecimal."""
    body = response.read()
    found: Answer = {"status": response.status}
    if method == "HEAD":
        return found
    length = response.getheader(HEADER)
    kind = (response.getheader("Content-Type") or "").partition(";")[0]
    text = body if length is None else body[: int(length)]
    found["type" if response.status == 200 and text else "type of no answer"] = kind
    try:
        found["json"] = json.loads(text) if text else ""
    except ValueError:
        found["text"] = text.decode(errors="replace")
    if length is not None:
        found["tensors"] = list(_tensors(found["json"], body[int(length) :]))
    return found


def _tensors(head: Any, rest: bytes) -> Iterator[str]:
    for output in head["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is not None:
            yield rest[:size].hex()
            rest = rest[size:]
    if rest:
        yield f"left over: {rest.hex()}"
