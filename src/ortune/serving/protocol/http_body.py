"""Bodies of infer requests and answers over HTTP: JSON, then binary tensors."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ortune.core import wording
from ortune.serving.protocol import inference
from ortune.serving.protocol.datatypes import (
    MOST_TENSORS,
    RAW_ONLY,
    count_elements,
    decode_texts,
    find_dtype,
    from_raw,
    make_json_refusal,
    to_raw,
)
from ortune.serving.protocol.refusals import RequestRefused

_MOST_CONTAINERS = 1_000_000
"""Lists and objects of a body's JSON: each takes 56 bytes and more for its two characters."""
_TYPES: Mapping[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
_DIGITS = 18
"""Of a length at most: Python takes long over thousands."""
_HEADER = "Inference-Header-Content-Length"


def declare_body(
    body: bytes | bytearray | memoryview, header_length: int | None, model: str = ""
) -> inference.DeclaredRequest:
    """Read what the body of an infer request declares; its JSON is parsed, its tensors are not.

    The body is inflated. Tensors that lie aligned in it become views of it, others copies: where
    the JSON ends at a multiple of 8 bytes in memory, none is copied. `header_length` is that of
    the JSON at its head (``Inference-Header-Content-Length``); None where the body is JSON alone.
    Raises RequestRefused: it is no request.
    """
    view = memoryview(body)
    if header_length is None:
        header_length = len(view)
    if not 0 < header_length <= len(view):
        raise RequestRefused(
            f"inference header size should be in range (0, {len(view)}), got: {header_length}"
        )
    content = _require_object(_load_json(view[:header_length]), "the request")
    parameters = dict(_require_object(content.get("parameters", {}), "'parameters'"))
    binary = _require_flag(parameters.pop("binary_data_output", False), "binary_data_output")
    arrays: dict[str, NDArray[Any]] = {}
    datatypes: dict[str, str] = {}
    readers: dict[str, Callable[[], NDArray[Any]]] = {}
    data, at, parsed_bytes = view[header_length:], 0, 0  # binary data lies in a row
    for entry in _require_tensors(content.get("inputs"), "inputs"):
        name = _require_text(_require_object(entry, "an input").get("name"), "name")
        if name in arrays:
            raise RequestRefused(f"input '{name}' already exists in request")
        datatype, shape = _require_text(entry.get("datatype"), "datatype"), entry.get("shape")
        size = _read_binary_size(entry, name)
        arrays[name] = inference.declare_tensor(name, datatype, shape)
        datatypes[name] = datatype
        if size is None:
            readers[name] = partial(_from_json, name, datatype, shape, entry["data"])
        else:
            if size > len(data) - at:
                raise RequestRefused(
                    f"unexpected size for input '{name}', expecting {size - (len(data) - at)} "
                    f"additional bytes for model '{model}'"
                )
            raw = data[at : at + size]
            readers[name] = partial(from_raw, name, datatype, shape, raw, model)
            parsed_bytes += size if datatype == "BYTES" else 0
            at += size
    if at != len(data):
        raise RequestRefused(f"unexpected additional input data for model '{model}'")
    request = inference.InferRequest(
        inputs=arrays,
        outputs=_read_outputs(content.get("outputs", []), binary),
        id=_require_text(content.get("id", ""), "id"),
        binary=binary,
        timeout_us=inference.validate_timeout(parameters.pop("timeout", 0)),
        parameters=inference.validate_parameters(parameters),
        datatypes=datatypes,
    )
    return inference.DeclaredRequest(request, readers, parsed_bytes)


def _read_binary_size(entry: Mapping[str, Any], name: str) -> int | None:
    """Return the bytes of an input's binary data; None where it has JSON data."""
    if not isinstance(entry.get("shape"), list):
        raise RequestRefused(f"Unable to parse 'shape' of input '{name}': a list is wanted")
    parameters = _require_object(entry.get("parameters", {}), "'parameters'")
    inference.refuse_shared_memory(parameters, f"input '{name}'")
    size = parameters.get("binary_data_size")
    if (size is None) == ("data" not in entry):
        raise RequestRefused(
            f"input '{name}' must set one of 'data' and 'binary_data_size' in 'parameters'"
        )
    if size is not None and (type(size) is not int or size < 0):
        raise RequestRefused(f"Unable to parse 'binary_data_size' of input '{name}'")
    return size


def encode_response(
    response: inference.InferResponse, request: inference.InferRequest
) -> tuple[list[bytes | memoryview], int | None]:
    """Return the body of an answer in chunks, and the length of its JSON.

    The length is None where no output is binary: then the body is JSON alone. NaN and infinities
    are ``null`` in JSON, which has no word for them. Raises RequestRefused: an output that JSON
    cannot carry is asked for in JSON.
    """
    binary = {output_request.name: output_request.binary for output_request in request.outputs}
    chunks: list[bytes | memoryview] = []
    outputs = []
    for output in response.outputs:
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": output.array.shape,
        }
        if binary.get(output.name, request.binary):
            raw = to_raw(output.array)
            entry["parameters"] = {"binary_data_size": len(raw)}
            chunks.append(raw)
        else:
            entry["data"] = _make_json_data(output)
        outputs.append(entry)
    content: dict[str, Any] = {"id": response.id} if response.id else {}
    content |= {"model_name": response.model, "model_version": response.version}
    if response.parameters:
        content["parameters"] = dict(response.parameters)
    content["outputs"] = outputs
    head = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return [head, *chunks], len(head) if chunks else None


def parse_header_length(text: str | None) -> int | None:
    """Read ``Inference-Header-Content-Length``, if any; RequestRefused if no whole number."""
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS:
        raise RequestRefused(f"Unable to parse {_HEADER}, got: {text}")
    return int(text)


def _load_json(head: memoryview) -> Any:
    if len(head) > 2 * _MOST_CONTAINERS:
        octets = np.frombuffer(head, np.uint8)
        brackets = sum(int(np.count_nonzero(octets == ord(bracket))) for bracket in "[{")
        if brackets > _MOST_CONTAINERS:
            raise RequestRefused(
                f"the request's JSON has {brackets} brackets, at most {_MOST_CONTAINERS} may be",
                fix="give 'data' as one flat list, or binary",
            )
    try:
        return orjson.loads(head)
    except orjson.JSONDecodeError as error:
        raise RequestRefused(f"failed to parse the request JSON buffer: {error}") from None


def _from_json(name: str, datatype: str, shape: list[Any], data: Any) -> NDArray[Any]:
    """Read data that is nested as the shape, or in any other way: the order counts."""
    kind, count = find_dtype(datatype), count_elements(name, shape)
    if datatype in RAW_ONLY:
        raise RequestRefused(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data "
            f"format for input {name}"
        )
    if not isinstance(data, list):
        raise RequestRefused(f"Unable to parse 'data' of input '{name}': a list is wanted")
    kinds = set(map(type, data))
    while kinds == {list}:
        data = list(chain.from_iterable(data))
        kinds = set(map(type, data))
    if not kinds <= _TYPES.get(kind.kind, {str}):
        raise RequestRefused(
            f"Unable to parse 'data' of input '{name}': an element is no {datatype}"
        )
    if len(data) != count:
        raise RequestRefused(
            f"Unable to parse 'data': Shape does not match true shape of 'data' field: input "
            f"'{name}' has {wording.format_count(len(data), 'element')} for {shape}"
        )
    if kind.kind == "O":
        return np.array([text.encode() for text in data], object).reshape(shape)
    try:
        with np.errstate(over="ignore"):
            return np.array(data, kind).reshape(shape)
    except OverflowError:
        raise RequestRefused(
            f"Unable to parse 'data' of input '{name}': a number is out of the range of {datatype}"
        ) from None


def _read_outputs(entries: Any, binary: bool) -> tuple[inference.OutputRequest, ...]:
    output_requests: dict[str, inference.OutputRequest] = {}
    for entry in _require_tensors(entries, "outputs"):
        name = _require_text(_require_object(entry, "an output").get("name"), "name")
        parameters = _require_object(entry.get("parameters", {}), "'parameters'")
        inference.refuse_shared_memory(parameters, f"output '{name}'")
        is_binary = _require_flag(parameters.get("binary_data", binary), "binary_data")
        most = inference.validate_class_count(parameters.get("classification", 0), name)
        output_requests.setdefault(name, inference.OutputRequest(name, is_binary, most))
    return tuple(output_requests.values())


def _make_json_data(output: inference.Output) -> Any:
    if output.datatype == "BYTES":
        fix = "ask for it with binary_data: JSON cannot carry them"
        return decode_texts(output.array, f"output '{output.name}'", fix)
    if output.datatype in RAW_ONLY:
        raise make_json_refusal(output.name, output.datatype)
    return np.ascontiguousarray(output.array).reshape(-1)


def _require_tensors(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST_TENSORS:
        raise RequestRefused(
            f"Unable to parse '{key}': a list of {MOST_TENSORS} at most is wanted"
        )
    return value


def _require_object(value: Any, subject: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RequestRefused(f"Unable to parse {subject}: a JSON object is wanted")
    return value


def _require_text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise RequestRefused(f"Unable to parse '{key}': a string is wanted")
    return value


def _require_flag(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise RequestRefused(f"Unable to parse '{key}': true or false is wanted")
    return value
