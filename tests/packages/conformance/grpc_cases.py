"""Requests over gRPC."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tests.packages.conformance.asking import Case, rpc, stream

RAW = np.array([1, 2, 3, 4], np.float32).tobytes()


def request(
    raw: Sequence[bytes] = (RAW, RAW),
    *,
    names: Sequence[str] = ("a", "b"),
    shape: Sequence[int] = (1, 4),
    datatype: str = "FP32",
    model: str = "sum",
    outputs: Sequence[str] = (),
    **more: Any,
) -> Any:
    """Return a request with raw contents; every input has the same shape and datatype."""
    found = pb.ModelInferRequest(model_name=model, raw_input_contents=raw, **more)
    for name in names:
        found.inputs.add(name=name, datatype=datatype, shape=shape)
    for name in outputs:
        found.outputs.add(name=name)
    return found


def typed(field: str, values: Sequence[Any], datatype: str, *more: Sequence[Any]) -> Any:
    """Return a request to an echo with typed contents."""
    found = request((), names=["x"], shape=(1, 3), datatype=datatype, model=f"echo-{datatype}")
    getattr(found.inputs[0].contents, field).extend(values)
    return found


def classes(count: int) -> Any:
    found = request(outputs=["sum"])
    found.outputs[0].parameters["classification"].int64_param = count
    return found


def timed(microseconds: int) -> Any:
    found = request()
    found.parameters["timeout"].int64_param = microseconds
    return found


def infer(*args: Any, **changes: Any) -> Case:
    return rpc("ModelInfer", request(*args, **changes))


def _calls() -> dict[str, Case]:
    requests = {
        "ServerLive": pb.ServerLiveRequest(),
        "ServerReady": pb.ServerReadyRequest(),
        "ServerMetadata": pb.ServerMetadataRequest(),
        "ModelReady": pb.ModelReadyRequest(name="sum"),
        "ModelReady, a version": pb.ModelReadyRequest(name="sum", version="1"),
        "ModelReady, another version": pb.ModelReadyRequest(name="sum", version="9"),
        "ModelReady, a version that is no number": pb.ModelReadyRequest(name="sum", version="x"),
        "ModelReady, none": pb.ModelReadyRequest(name="none"),
        "ModelMetadata": pb.ModelMetadataRequest(name="sum"),
        "ModelMetadata, no batch": pb.ModelMetadataRequest(name="whole"),
        "ModelMetadata, text": pb.ModelMetadataRequest(name="echo-BYTES"),
        "ModelMetadata, none": pb.ModelMetadataRequest(name="none"),
        "ModelConfig": pb.ModelConfigRequest(name="sum"),
        "ModelConfig, none": pb.ModelConfigRequest(name="none"),
        "ModelStatistics, none": pb.ModelStatisticsRequest(name="none"),
        "ModelStatistics, another version": pb.ModelStatisticsRequest(name="sum", version="9"),
        "RepositoryIndex": pb.RepositoryIndexRequest(),
        "RepositoryIndex, ready": pb.RepositoryIndexRequest(ready=True),
        "RepositoryModelLoad": pb.RepositoryModelLoadRequest(model_name="sum"),
        "RepositoryModelUnload": pb.RepositoryModelUnloadRequest(model_name="sum"),
        "SystemSharedMemoryStatus": pb.SystemSharedMemoryStatusRequest(),
        "SystemSharedMemoryStatus, none": pb.SystemSharedMemoryStatusRequest(name="none"),
        "SystemSharedMemoryRegister": pb.SystemSharedMemoryRegisterRequest(
            name="r", key="/not-there", byte_size=4
        ),
        "SystemSharedMemoryUnregister": pb.SystemSharedMemoryUnregisterRequest(),
        "CudaSharedMemoryStatus": pb.CudaSharedMemoryStatusRequest(),
        "CudaSharedMemoryRegister": pb.CudaSharedMemoryRegisterRequest(name="r", byte_size=4),
        "CudaSharedMemoryUnregister": pb.CudaSharedMemoryUnregisterRequest(),
        "TraceSetting": pb.TraceSettingRequest(),
        "LogSettings": pb.LogSettingsRequest(),
    }
    return {name: rpc(name.partition(",")[0], one) for name, one in requests.items()}


def _right() -> dict[str, Case]:
    text = b"".join(struct.pack("<I", len(one)) + one for one in (b"", b"ab", b"c" * 300))
    return {
        "raw": infer(),
        "raw, an id": infer(id="a b/1"),
        "raw, a version": infer(model_version="1"),
        "raw, one output": infer(outputs=["difference"]),
        "raw, outputs in another order": infer(outputs=["difference", "sum"]),
        "raw, batch 8": infer((RAW * 8, RAW * 8), shape=(8, 4)),
        "raw, a free dimension": infer([RAW], names=["x"], shape=(2, 2), model="free"),
        "raw, no batch dimension": infer(
            [RAW + RAW[:8]], names=["x"], shape=(2, 3), model="whole"
        ),
        "raw BYTES": infer(
            [text], names=["x"], shape=(1, 3), datatype="BYTES", model="echo-BYTES"
        ),
        "classes": rpc("ModelInfer", classes(2)),
        "more classes than there are": rpc("ModelInfer", classes(9)),
        "time enough": rpc("ModelInfer", timed(5_000_000)),
        "a stream": stream([request(id="1"), request(id="2", outputs=["sum"]), request(id="3")]),
        "a stream with one that is wrong": stream(
            [request(id="1"), request(id="2", shape=(1, 3)), request(id="3")]
        ),
        "a stream of no requests": stream([]),
        "a stream to a model that is not there": stream([request(id="1", model="none")]),
    } | {f"typed {name}": rpc("ModelInfer", typed(*one, name)) for name, one in _TYPED.items()}


_TYPED: dict[str, tuple[str, list[Any]]] = {
    "BOOL": ("bool_contents", [True, False, True]),
    "UINT8": ("uint_contents", [0, 1, 255]),
    "UINT16": ("uint_contents", [0, 1, 65535]),
    "UINT32": ("uint_contents", [0, 1, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 1, 2**64 - 1]),
    "INT8": ("int_contents", [0, 1, -128]),
    "INT16": ("int_contents", [0, 1, -32768]),
    "INT32": ("int_contents", [0, 1, -(2**31)]),
    "INT64": ("int64_contents", [0, 1, -(2**63)]),
    "FP32": ("fp32_contents", [0.1, 1, -3e38]),
    "FP64": ("fp64_contents", [0.1, 1, -1e300]),
    "BYTES": ("bytes_contents", [b"", b"ab", "grüße".encode()]),
}


def _wrong() -> dict[str, Case]:
    both = request()
    both.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
    return {
        "raw and typed": rpc("ModelInfer", both),
        "neither raw nor typed": infer(()),
        "raw, one missing": infer((RAW,)),
        "raw, one too many": infer((RAW, RAW, RAW)),
        "raw, too short": infer((RAW[:12], RAW)),
        "raw, too long": infer((RAW + RAW, RAW)),
        "no inputs": infer((), names=()),
        "an input missing": infer((RAW,), names=["a"]),
        "an input too many": infer((RAW,) * 3, names=["a", "b", "c"]),
        "an input twice": infer(names=["a", "a"]),
        "an input of another name": infer(names=["a", "c"]),
        "an output that is not there": infer(outputs=["none"]),
        "a model that is not there": infer(model="none"),
        "no model": infer(model=""),
        "a version that is not there": infer(model_version="9"),
        "a version that is no number": infer(model_version="x"),
        "a wrong dimension": infer((RAW[:12], RAW[:12]), shape=(1, 3)),
        "rank 1": infer(shape=(4,)),
        "rank 0": infer((RAW[:4], RAW[:4]), shape=()),
        "a negative dimension": infer(shape=(-1, 4)),
        "a product beyond 64 bits": infer(shape=(2**40, 2**40)),
        "batch 0": infer((b"", b""), shape=(0, 4)),
        "batch 9 of 8": infer((RAW * 9, RAW * 9), shape=(9, 4)),
        "another datatype": infer(datatype="INT32"),
        "an unknown datatype": infer(datatype="FLOAT"),
        "typed contents of another type": rpc(
            "ModelInfer", typed("int_contents", [1, 2, 3], "FP32")
        ),
        "typed contents too short": rpc("ModelInfer", typed("fp32_contents", [1, 2], "FP32")),
        "typed contents too long": rpc("ModelInfer", typed("fp32_contents", [1] * 4, "FP32")),
        "typed UINT8, too large": rpc("ModelInfer", typed("uint_contents", [0, 1, 300], "UINT8")),
        "typed INT8, too small": rpc("ModelInfer", typed("int_contents", [0, 1, -129], "INT8")),
        "typed FP16": rpc("ModelInfer", typed("fp32_contents", [1, 2, 3], "FP16")),
        "raw BYTES, one missing": infer(
            [b"\1\0\0\0a"], names=["x"], shape=(1, 3), datatype="BYTES", model="echo-BYTES"
        ),
        "raw BYTES, a length too large": infer(
            [b"\xff\0\0\0a" * 3], names=["x"], shape=(1, 3), datatype="BYTES", model="echo-BYTES"
        ),
    }


def cases() -> dict[str, Case]:
    """Return every case by its name."""
    found = _calls() | _right() | _wrong()
    return {f"gRPC: {name}": case for name, case in found.items()}
