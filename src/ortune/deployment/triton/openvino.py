"""Plans for OpenVINO on Triton's ``openvino`` backend, which knows a few properties only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ortune.backends.openvino import Openvino
from ortune.bundle.source import Source
from ortune.core.errors import BadModel
from ortune.deployment import openvino_ir
from ortune.deployment.threads import threads
from ortune.deployment.triton import config as triton
from ortune.deployment.triton.options import ServerOptions
from ortune.engine.manifest import Signature

MODEL = "model.xml"

_SAID = ("threads", "precision", "hint", "streams")
"""Fields of an OpenVINO plan that a configuration can say."""


def is_for(source: Source) -> bool:
    """Say whether a plan was measured on OpenVINO."""
    return isinstance(source.backend, Openvino)


def refusal(source: Source, options: ServerOptions) -> str:
    """Return why Triton's openvino backend cannot run a plan as measured; empty if it can.

    It asks for bfloat16 or says nothing of precision, and then OpenVINO takes bfloat16 where the
    CPU has it.
    """
    backend = source.backend
    assert isinstance(backend, Openvino)
    if options.numbers:
        return "Triton's openvino backend serves on the CPU alone"
    if options.offline:
        return "offline=true is about onnxruntime's graph"
    if not options.carried.openvino:
        return f"which openvino Triton {options.release} carries is not known here"
    plain = Openvino()
    lost = [
        one.name
        for one in fields(backend)
        if one.name not in _SAID and getattr(backend, one.name) != getattr(plain, one.name)
    ]
    if lost:
        return f"Triton's openvino backend has no setting for {', '.join(lost)}; ovms has"
    if backend.precision == "f16":
        return "Triton's openvino backend cannot ask for f16; ovms can"
    if backend.precision == "f32" and _has_bf16(source):
        return (
            "Triton's openvino backend cannot ask for f32, and OpenVINO computes in bf16 on CPUs "
            "like that of the measurement; ovms can"
        )
    return next(triton.unfit(source, options.batch), "")


def config(
    label: str, source: Source, signature: Signature, options: ServerOptions
) -> dict[str, Any]:
    """Return the configuration of an OpenVINO plan's model."""
    backend = source.backend
    assert isinstance(backend, Openvino)
    held = triton.common(label, "openvino", MODEL, signature, options)
    parameters = {
        "INFERENCE_NUM_THREADS": str(threads(source)),
        "PERFORMANCE_HINT": backend.hint.upper(),
    }
    if backend.precision == "bf16":
        parameters["HINT_BF16"] = "YES"
    if backend.streams:
        parameters["NUM_STREAMS"] = str(backend.streams)
    return held | {"parameters": triton.pairs(parameters)}


def configured(source: Source, read: Mapping[str, list[Any]]) -> Openvino:
    """Return the settings that a configuration says, which are those that were tuned.

    Raises:
        BadModel: They are others.
    """
    tuned = source.backend
    assert isinstance(tuned, Openvino)
    given = triton.parameters(read)
    try:
        said = Openvino(
            threads=int(given.get("INFERENCE_NUM_THREADS", "0")),
            precision="bf16" if given.get("HINT_BF16") == "YES" else "f32",
            hint="throughput" if given.get("PERFORMANCE_HINT") == "THROUGHPUT" else "latency",
            streams=int(given.get("NUM_STREAMS", "0")),
        )
    except ValueError as error:
        raise BadModel(f"config.pbtxt is wrong: {error}", fix="pack again") from None
    wanted = replace(tuned, threads=threads(source))
    if said != wanted:
        raise BadModel(
            f"config.pbtxt says {said}, and the plan was tuned as {wanted}", fix="pack again"
        )
    return said


def write(source: Source, name: str, home: Path, environment: str) -> None:
    """Write one model in OpenVINO's own format, by the release's OpenVINO where it is here."""
    openvino_ir.write(source, {name: home / MODEL}, environment)


def _has_bf16(source: Source) -> bool:
    sets = source.manifest.machine.get("instruction sets", "").split()
    return not sets or any(one.endswith("bf16") for one in sets)
