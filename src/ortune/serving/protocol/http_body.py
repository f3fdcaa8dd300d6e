"""Bodies of infer requests and answers over HTTP: JSON, then binary tensors."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ortune.core import wording
from ortune.serving.protocol.datatypes import (
    MOST_TENSORS,
    RAW_ONLY,
    decoded,
    dtype,
    elements,
    from_raw,
    json_unfit,
    to_raw,
)
from ortune.serving.protocol.inference import (
    Asked,
    InferRequest,
    InferResponse,
    Output,
    classes,
    no_shared_memory,
    plain,
    timeout,
)
from ortune.serving.protocol.status import Refused

_MOST_CONTAINERS = 1_000_000
"""Lists and objects of a body's JSON: each takes 56 bytes and more for its two characters."""
_TYPES: Mapping[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
_DIGITS = 18
"""Of a length at most: Python takes long over thousands."""
_HEADER = "Inference-Header-Content-Length"


def parse(
    body: bytes | bytearray | memoryview, header_length: int | None, model: str = ""
) -> InferRequest:
    """Read the body of an infer request.

    Args:
        body: All of it, inflated. Tensors that lie aligned in it become views of it, others
            copies: where the JSON ends at a multiple of 8 bytes in memory, none is copied.
        header_length: Bytes of the JSON at its head (``Inference-Header-Content-Length``); None
            where the body is JSON alone.
        model: Name, for messages.

    Raises:
        Refused: It is no request, or its data does not fit its shapes.
    """
    view = memoryview(body)
    if header_length is None:
        header_length = len(view)
    if not 0 < header_length <= len(view):
        raise Refused(
            f"inference header size should be in range (0, {len(view)}), got: {header_length}"
        )
    said = _object(_loaded(view[:header_length]), "the request")
    parameters = dict(_object(said.get("parameters", {}), "'parameters'"))
    binary = _flag(parameters.pop("binary_data_output", False), "binary_data_output")
    inputs, datatypes = _inputs(said.get("inputs"), view[header_length:], model)
    return InferRequest(
        inputs=inputs,
        outputs=_outputs(said.get("outputs", []), binary),
        id=_text(said.get("id", ""), "id"),
        binary=binary,
        timeout_us=timeout(parameters.pop("timeout", 0)),
        parameters=plain(parameters),
        datatypes=datatypes,
    )


def write(
    response: InferResponse, request: InferRequest
) -> tuple[list[bytes | memoryview], int | None]:
    """Return the body of an answer in chunks, and the length of its JSON.

    The length is None where no output is binary: then the body is JSON alone. NaN and infinities
    are ``null`` in JSON, which has no word for them.

    Raises:
        Refused: An output that JSON cannot carry is asked for in JSON.
    """
    binary = {asked.name: asked.binary for asked in request.outputs}
    chunks: list[bytes | memoryview] = []
    told = []
    for output in response.outputs:
        one: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": output.array.shape,
        }
        if binary.get(output.name, request.binary):
            raw = to_raw(output.array)
            one["parameters"] = {"binary_data_size": len(raw)}
            chunks.append(raw)
        else:
            one["data"] = _data(output)
        told.append(one)
    said: dict[str, Any] = {"id": response.id} if response.id else {}
    said |= {"model_name": response.model, "model_version": response.version}
    if response.parameters:
        said["parameters"] = dict(response.parameters)
    said["outputs"] = told
    head = orjson.dumps(said, option=orjson.OPT_SERIALIZE_NUMPY)
    return [head, *chunks], len(head) if chunks else None


def header_length(given: str | None) -> int | None:
    """Read the header ``Inference-Header-Content-Length``; None where there is none.

    Raises:
        Refused: It is no whole number.
    """
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > _DIGITS:
        raise Refused(f"Unable to parse {_HEADER}, got: {given}")
    return int(given)


def _loaded(head: memoryview) -> Any:
    if len(head) > 2 * _MOST_CONTAINERS:
        octets = np.frombuffer(head, np.uint8)
        held = sum(int(np.count_nonzero(octets == ord(one))) for one in "[{")
        if held > _MOST_CONTAINERS:
            raise Refused(
                f"the request's JSON has {held} brackets, at most {_MOST_CONTAINERS} may be",
                fix="give 'data' as one flat list, or binary",
            )
    try:
        return orjson.loads(head)
    except orjson.JSONDecodeError as error:
        raise Refused(f"failed to parse the request JSON buffer: {error}") from None


def _inputs(
    given: Any, data: memoryview, model: str
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read the inputs, whose binary data lies in a row."""
    inputs: dict[str, NDArray[Any]] = {}
    datatypes: dict[str, str] = {}
    at = 0
    for one in _tensors(given, "inputs"):
        name = _text(_object(one, "an input").get("name"), "name")
        if name in inputs:
            raise Refused(f"input '{name}' already exists in request")
        datatype, shape = _text(one.get("datatype"), "datatype"), one.get("shape")
        if not isinstance(shape, list):
            raise Refused(f"Unable to parse 'shape' of input '{name}': a list is wanted")
        # Return the bytes of an input's binary data; None where it has JSON data.
        parameters = _object(one.get("parameters", {}), "'parameters'")
        no_shared_memory(parameters, f"input '{name}'")
        size = parameters.get("binary_data_size")
        if (size is None) == ("data" not in one):
            raise Refused(
                f"input '{name}' must set one of 'data' and 'binary_data_size' in 'parameters'"
            )
        if size is not None and (type(size) is not int or size < 0):
            raise Refused(f"Unable to parse 'binary_data_size' of input '{name}'")
        if size is None:
            inputs[name] = _from_json(name, datatype, shape, one["data"])
        else:
            if size > len(data) - at:
                raise Refused(
                    f"unexpected size for input '{name}', expecting {size - (len(data) - at)} "
                    f"additional bytes for model '{model}'"
                )
            inputs[name] = from_raw(name, datatype, shape, data[at : at + size], model)
            at += size
        datatypes[name] = datatype
    if at != len(data):
        raise Refused(f"unexpected additional input data for model '{model}'")
    return inputs, datatypes


def _from_json(name: str, datatype: str, shape: list[Any], data: Any) -> NDArray[Any]:
    """Read data that is nested as the shape, or in any other way: the order counts."""
    kind, count = dtype(datatype), elements(name, shape)
    if datatype in RAW_ONLY:
        raise Refused(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data "
            f"format for input {name}"
        )
    if not isinstance(data, list):
        raise Refused(f"Unable to parse 'data' of input '{name}': a list is wanted")
    kinds = set(map(type, data))
    while kinds == {list}:
        data = list(chain.from_iterable(data))
        kinds = set(map(type, data))
    if not kinds <= _TYPES.get(kind.kind, {str}):
        raise Refused(f"Unable to parse 'data' of input '{name}': an element is no {datatype}")
    if len(data) != count:
        raise Refused(
            f"Unable to parse 'data': Shape does not match true shape of 'data' field: input "
            f"'{name}' has {wording.count(len(data), 'element')} for {shape}"
        )
    if kind.kind == "O":
        return np.array([one.encode() for one in data], object).reshape(shape)
    try:
        with np.errstate(over="ignore"):
            return np.array(data, kind).reshape(shape)
    except OverflowError:
        raise Refused(
            f"Unable to parse 'data' of input '{name}': a number is out of the range of {datatype}"
        ) from None


def _outputs(given: Any, binary: bool) -> tuple[Asked, ...]:
    asked: dict[str, Asked] = {}
    for one in _tensors(given, "outputs"):
        name = _text(_object(one, "an output").get("name"), "name")
        parameters = _object(one.get("parameters", {}), "'parameters'")
        no_shared_memory(parameters, f"output '{name}'")
        wanted = _flag(parameters.get("binary_data", binary), "binary_data")
        most = classes(parameters.get("classification", 0), name)
        asked.setdefault(name, Asked(name, wanted, most))
    return tuple(asked.values())


def _data(output: Output) -> Any:
    if output.datatype == "BYTES":
        fix = "ask for it with binary_data: JSON cannot carry them"
        return decoded(output.array, f"output '{output.name}'", fix)
    if output.datatype in RAW_ONLY:
        raise json_unfit(output.name, output.datatype)
    return np.ascontiguousarray(output.array).reshape(-1)


def _tensors(given: Any, key: str) -> list[Any]:
    if not isinstance(given, list) or len(given) > MOST_TENSORS:
        raise Refused(f"Unable to parse '{key}': a list of {MOST_TENSORS} at most is wanted")
    return given


def _object(given: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise Refused(f"Unable to parse {what}: a JSON object is wanted")
    return given


def _text(given: Any, key: str) -> str:
    if not isinstance(given, str):
        raise Refused(f"Unable to parse '{key}': a string is wanted")
    return given


def _flag(given: Any, key: str) -> bool:
    if not isinstance(given, bool):
        raise Refused(f"Unable to parse '{key}': true or false is wanted")
    return given
