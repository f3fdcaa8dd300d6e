"""Engines of a bundle's plans: which TensorRT can take, ranges of inputs, the build itself."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx_ir as ir

from ortune.backends.tensorrt_engine import TensorrtEngine
from ortune.bundle.source import Source
from ortune.core.errors import BadModel
from ortune.measurement.job import WorkerJob
from ortune.measurement.process import Worker, WorkerFailed
from ortune.model.graph.edit import const_array, every_node
from ortune.model.io import file
from ortune.runtimes.tensorrt import profiles

_BUILD_S = 7200
"""TensorRT times every kernel it may take: minutes, more at level 5."""
_STANDARD = ("", "ai.onnx")
_ELSEWHERE = ("bucketed", "torch", "simulated")
"""Backends that do more, or other, than run the file."""
_DYNAMIC = ("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger")
_FUSED = ("QLinearConv", "QLinearMatMul")
"""Operators of 8-bit integers without pairs, which NVIDIA's list for its ONNX parser lacks."""


def refusal(source: Source, plugins: Sequence[str]) -> str:
    """Say why TensorRT would not take a plan's files; empty where nothing is known against it.

    Rules: operators of other domains are plug-ins or nothing; explicit quantization is int8 with
    zero point 0 (NVIDIA, TensorRT developer guide, explicit quantization; its parser says "TRT
    only supports symmetric quantization - zeroPt must be all zeros").
    """
    if source.backend.name() in _ELSEWHERE:
        return f"'{source.backend.name()}' does more than run the model's file"
    if source.plan.custom_ops:
        return "it needs libraries of custom operators, which are onnxruntime's"
    for path in source.models.values():
        for node in every_node(file.load(path)):
            if why := _refused(node, bool(plugins)):
                return f"{node.op_type} '{node.name}': {why}"
    return ""


def _refused(node: ir.Node, plugged: bool) -> str:
    if node.domain not in _STANDARD:
        return "" if plugged else f"an operator of {node.domain}, and no plug-in is given for it"
    if node.op_type in _DYNAMIC:
        return "TensorRT has no integers with ranges taken at run time; quantize statically"
    if node.op_type in _FUSED:
        return "TensorRT takes Q/DQ pairs; quantize with int8-static"
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or len(node.inputs) < 3:
        return "" if node.op_type != "QuantizeLinear" or plugged else _default_zero(node)
    zero = const_array(node.inputs[2])
    if zero is None:
        return ""
    if zero.dtype == np.uint8 or np.any(zero.astype(np.float32)):
        return "TensorRT takes int8 with zero point 0; quantize with int8-static(target=tensorrt)"
    return ""


def _default_zero(node: ir.Node) -> str:
    """Judge a QuantizeLinear without a zero point: it gives uint8 unless it says another type."""
    if "output_dtype" in node.attributes:
        return ""
    return "without a zero point it gives uint8; quantize with int8-static(target=tensorrt)"


def ranges(source: Source, name: str, spelled: Sequence[str]) -> tuple[str, ...]:
    """Return the spelled ranges of a model's inputs, or those of its golden samples."""
    inputs = source.manifest.signatures[name].inputs
    names = {spec.name for spec in inputs}
    given = [text for text in spelled if _named(text) in names]
    known = {_named(text) for text in given}
    declared = {spec.name: spec.shape or () for spec in inputs if spec.name not in known}
    seen = [{key: array.shape for key, array in feed.items()} for feed, _ in source.feeds(name)]
    return (*given, *map(str, profiles.observed(seen, declared)))


def _named(text: str) -> str:
    return next(iter(profiles.parse((text,))[0]))


def build(model: Path, backend: TensorrtEngine, environment: str) -> None:
    """Let a worker build the engine and list its layers, in files beside the model.

    Raises:
        BadModel: TensorRT builds none, or takes its process down.
    """
    out = str(model.with_suffix(".engine").resolve())
    with TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True) as folder:
        root = Path(folder).resolve()
        job = WorkerJob({"": model.resolve()}, backend, {}, root, environment=environment)
        try:
            with Worker(job, timeout_s=_BUILD_S) as worker:
                worker.ask("optimize", out=out)
        except WorkerFailed as error:
            raise BadModel(
                f"no engine: {error.failure.reason}",
                fix=error.failure.fix or "pack another trial (--trial KEY)",
            ) from None


def trtexec(backend: TensorrtEngine, label: str, plugins: Sequence[Path]) -> str:
    """Return the line that builds the same engine with NVIDIA's own program.

    Options were read in NVIDIA's documentation for 10 and 11; the line was never run here.
    """
    words = [
        "trtexec",
        f"--onnx={label}.onnx",
        f"--saveEngine={label}.engine",
        "--stronglyTyped",  # 11 is strongly typed with and without it
        *profiles.trtexec(profiles.parse(backend.profiles)),
        f"--builderOptimizationLevel={backend.builder_level}",
        "--profilingVerbosity=detailed",
        f"--exportLayerInfo={label}.layers.json",
        "--skipInference",
    ]
    if not backend.tf32:
        words.append("--noTF32")
    if backend.workspace:
        words.append(f"--memPoolSize=workspace:{backend.workspace}M")
    if backend.timing_cache:
        words.append("--timingCacheFile=timing.cache")
    words += [f"--dynamicPlugins={path.as_posix()}" for path in plugins]
    return shlex.join(words)
