"""Requests as bytes, made before anything is timed, and answers read back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.session import Tensors
from ortune.load_testing.admin import path
from ortune.load_testing.url import ServerUrl
from ortune.protocol import datatypes


def inputs(metadata: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """Return what a model takes, from what it says of itself; free dimensions are None.

    Raises:
        BadData: It says nothing of the kind.
    """
    try:
        return tuple(
            TensorSpec(
                str(one["name"]),
                _spelled(datatypes.dtype(one["datatype"])),
                tuple(None if int(dim) < 0 else int(dim) for dim in one["shape"]),
            )
            for one in metadata["inputs"]
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadData(
            f"what the server says of the model cannot be read: {type(error).__name__} {error}",
            fix="give the address of a server of the Open Inference Protocol v2",
        ) from None


def _spelled(dtype: np.dtype[Any]) -> str:
    return "str" if dtype.hasobject else dtype.name


def stacked(samples: Sequence[Tensors], batch: int) -> list[Tensors]:
    """Join consecutive samples along their first dimension; begin again at the end.

    Raises:
        BadData: They do not fit together.
    """
    if batch <= 1:
        return list(samples)
    made: list[Tensors] = []
    for first in range(0, len(samples), batch):
        rows = [samples[(first + k) % len(samples)] for k in range(batch)]
        try:
            made.append({name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
        except ValueError as error:
            raise BadData(
                f"samples cannot be joined to a batch: {error}", fix="pad them to one shape"
            ) from None
    return made


def over_http(
    address: ServerUrl, model: str, version: str, sample: Tensors, token: str = ""
) -> bytes:
    """Return a whole request with its tensors in binary."""
    entries, raw = [], []
    for name, array in sample.items():
        data = _bytes(array)
        raw.append(data)
        entries.append(
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": datatypes.datatype(array.dtype),
                "parameters": {"binary_data_size": len(data)},
            }
        )
    said = json.dumps(
        {"inputs": entries, "parameters": {"binary_data_output": True}}, separators=(",", ":")
    ).encode()
    said += b" " * (-len(said) % 8)  # so that the tensors behind it can lie aligned
    lines = [
        f"POST {path(model, version)}/infer HTTP/1.1",
        f"Host: {address.netloc}",
        "Content-Type: application/octet-stream",
        f"Inference-Header-Content-Length: {len(said)}",
        f"Content-Length: {len(said) + sum(map(len, raw))}",
        *([f"Authorization: Bearer {token}"] if token else []),
    ]
    return b"".join(["\r\n".join([*lines, "", ""]).encode(), said, *raw])


def over_grpc(model: str, version: str, sample: Tensors) -> bytes:
    """Return a serialized ``ModelInferRequest`` with raw contents."""
    from ortune.protocol import messages  # protobuf is an extra

    kind = messages.message("ModelInferRequest")
    made = kind(model_name=model, model_version=version)
    for name, array in sample.items():
        made.inputs.add(name=name, datatype=datatypes.datatype(array.dtype), shape=array.shape)
        made.raw_input_contents.append(_bytes(array))
    found: bytes = made.SerializeToString()
    return found


def _bytes(array: NDArray[Any]) -> bytes:
    if array.dtype.kind not in "OSUT":
        return np.ascontiguousarray(array).tobytes()
    texts = (one if isinstance(one, bytes) else str(one).encode() for one in array.flat)
    return b"".join(len(one).to_bytes(4, "little") + one for one in texts)


def answer_over_http(body: bytes, head: int) -> dict[str, NDArray[Any]]:
    """Read a right answer's body; `head` is the length of its JSON, -1 where all of it is.

    Raises:
        BadData: It is none.
    """
    try:
        said = json.loads(body if head < 0 else body[:head])
        at, found = max(0, head), {}
        for one in said["outputs"]:
            size = one.get("parameters", {}).get("binary_data_size")
            if size is None:
                flat = np.array(one["data"], datatypes.dtype(one["datatype"]))
                found[one["name"]] = flat.reshape(one["shape"])
            else:
                found[one["name"]] = _array(body[at : at + size], one["datatype"], one["shape"])
                at += size
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadData(f"an answer cannot be read: {error}", fix="check the server") from None
    return found


def answer_over_grpc(body: bytes) -> dict[str, NDArray[Any]]:
    """Read a serialized ``ModelInferResponse``.

    Raises:
        BadData: Its contents do not fit its outputs.
    """
    from ortune.protocol import messages

    answer = messages.message("ModelInferResponse").FromString(body)
    try:
        pairs = zip(answer.outputs, answer.raw_output_contents, strict=True)
        return {one.name: _array(raw, one.datatype, one.shape) for one, raw in pairs}
    except ValueError as error:
        raise BadData(f"an answer cannot be read: {error}", fix="check the server") from None


def _array(raw: bytes, datatype: str, shape: Iterable[int]) -> NDArray[Any]:
    kind = datatypes.dtype(datatype)
    if not kind.hasobject:
        return np.frombuffer(raw, kind).reshape(tuple(shape))
    texts, at = [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "little")
        texts.append(raw[at + 4 : at + 4 + size].decode(errors="replace"))
        at += 4 + size
    return np.array(texts, object).reshape(tuple(shape))
