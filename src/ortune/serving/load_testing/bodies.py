"""Requests as bytes, made before anything is timed; answers read back, and compared."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortune.bundle.engine.engine import Engine
from ortune.bundle.engine.golden import TOLERANCE_DB, snr_db
from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.session import Tensors
from ortune.serving.load_testing.requests import ServerUrl
from ortune.serving.load_testing.server import model_path
from ortune.serving.protocol import datatypes
from ortune.serving.protocol.refusals import RequestRefused


def input_specs(metadata: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """Return what a model says it takes, free dimensions None; BadData where it does not say."""
    specs = []
    try:
        for tensor in metadata["inputs"]:
            dtype = datatypes.find_dtype(tensor["datatype"])
            shape = (int(dim) for dim in tensor.get("shape", ()))  # JSON of protobuf: texts
            specs.append(
                TensorSpec(
                    str(tensor["name"]),
                    "str" if dtype.hasobject else dtype.name,
                    tuple(None if dim < 0 else dim for dim in shape),
                )
            )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadData(
            f"what the server says of the model cannot be read: {type(error).__name__} {error}",
            fix="give the address of a server of the Open Inference Protocol v2",
        ) from None
    return tuple(specs)


def stack_batches(samples: Sequence[Tensors], batch: int) -> list[Tensors]:
    """Join consecutive samples, over and over; BadData where they do not fit together."""
    if batch <= 1:
        return list(samples)
    requests: list[Tensors] = []
    for first in range(0, len(samples), batch):
        rows = [samples[(first + k) % len(samples)] for k in range(batch)]
        try:
            requests.append(
                {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
            )
        except ValueError as error:
            raise BadData(
                f"samples cannot be joined to a batch: {error}", fix="pad them to one shape"
            ) from None
    return requests


def http_request(
    url: ServerUrl, model: str, version: str, sample: Tensors, token: str = ""
) -> bytes:
    """Return a whole request, its tensors in binary."""
    raw = [datatypes.to_raw(array) for array in sample.values()]
    tensors = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": datatypes.find_datatype(array.dtype),
            "parameters": {"binary_data_size": len(data)},
        }
        for (name, array), data in zip(sample.items(), raw, strict=True)
    ]
    head = json.dumps(
        {"inputs": tensors, "parameters": {"binary_data_output": True}}, separators=(",", ":")
    ).encode()
    head += b" " * (-len(head) % 8)  # so that the tensors behind it can lie aligned
    lines = [
        f"POST {model_path(model, version)}/infer HTTP/1.1",
        f"Host: {url.netloc}",
        "Content-Type: application/octet-stream",
        f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(head) + sum(map(len, raw))}",
        *([f"Authorization: Bearer {token}"] if token else []),
    ]
    return b"".join(["\r\n".join([*lines, "", ""]).encode(), head, *raw])


def grpc_request(model: str, version: str, sample: Tensors) -> bytes:
    """Return a serialized ``ModelInferRequest`` with raw contents."""
    from ortune.serving.protocol import messages  # protobuf is an extra

    request = messages.find_message_class("ModelInferRequest")(
        model_name=model, model_version=version
    )
    for name, array in sample.items():
        datatype = datatypes.find_datatype(array.dtype)
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(bytes(datatypes.to_raw(array)))
    serialized: bytes = request.SerializeToString()
    return serialized


def read_answer(protocol: str, body: bytes, head: int = -1) -> dict[str, NDArray[Any]]:
    """Read the outputs of a right answer, of HTTP or a ``ModelInferResponse``, else BadData.

    `head` is the length of its JSON over HTTP; -1 where all of it is.
    """
    outputs = {}
    try:
        if protocol == "grpc":
            from ortune.serving.protocol import messages

            answer = messages.find_message_class("ModelInferResponse").FromString(body)
            for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
                outputs[output.name] = _from_raw(output.name, output.datatype, output.shape, raw)
            return outputs
        at = max(0, head)
        for output in json.loads(body if head < 0 else body[:head])["outputs"]:
            name, datatype, shape = output["name"], output["datatype"], output["shape"]
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                outputs[name] = np.array(output["data"], datatypes.find_dtype(datatype)).reshape(
                    shape
                )
            else:
                outputs[name] = _from_raw(name, datatype, shape, body[at : at + size])
                at += size
    except (RequestRefused, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadData(f"an answer cannot be read: {error}", fix="check the server") from None
    return outputs


def _from_raw(name: str, datatype: str, shape: Sequence[int], raw: bytes) -> NDArray[Any]:
    """Read an output from its bytes; texts become texts."""
    array = datatypes.from_raw(name, datatype, shape, raw)
    if not array.dtype.hasobject:
        return array
    texts = [item.decode(errors="replace") for item in array.flat]
    return np.array(texts, object).reshape(array.shape)


@dataclass(frozen=True)
class CheckedAnswers:
    """How many right answers were compared, wrong, and not compared, of too many kinds.

    Wrong ones are further from the model's own than the limit; the worst signal-to-noise ratio is
    infinite where all are equal.
    """

    answers: int
    wrong: int
    worst_db: float
    limit_db: float
    unread: int

    def __str__(self) -> str:
        worst = "equal" if self.worst_db == float("inf") else f"worst {self.worst_db:.0f} dB"
        unread = f"; {self.unread:,} were not compared" if self.unread else ""
        return (
            f"answers compared with the model's own: {self.answers:,}, {worst}, "
            f"{self.wrong:,} wrong (below {self.limit_db:.0f} dB){unread}"
        )


def check_answers(
    answers: Mapping[tuple[int, int, bytes], int],
    unread: int,
    samples: Sequence[Tensors],
    engine: Engine,
    protocol: str,
) -> CheckedAnswers:
    """Compare answers with the engine's; BadData where one cannot be read.

    `answers` counts equal ones by (sample, bytes of JSON at the head or -1, body); `unread` were
    not kept.
    """
    expected: dict[int, Tensors] = {}
    wrong, worst = 0, float("inf")
    for (sample, head, body), times in answers.items():
        if sample not in expected:
            expected[sample] = engine(**samples[sample])
        ratio = snr_db(expected[sample], read_answer(protocol, body, head))
        wrong += times if ratio < TOLERANCE_DB else 0
        worst = min(worst, ratio)
    return CheckedAnswers(sum(answers.values()), wrong, worst, TOLERANCE_DB, unread)
