"""What a careful person would try by hand, without ortune: each a file and a backend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16

from benchmarks.speed.budgets import Shape
from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend
from ortune.core.hardware.cpus import instruction_sets

SIGNED, UNSIGNED = QuantType.QInt8, QuantType.QUInt8
TRANSFORMERS = ("bert", "minilm", "gpt2", "gptkv", "queries", "conformer", "vit")
_NNCF = ("default", "hinted", "8-bit weights")


@dataclass(frozen=True)
class Contestant:
    """One entry; `error` says why its file could not be made."""

    name: str
    model: Path
    backend: Backend
    error: str = ""


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, folder: Path) -> None:
        self._samples = self._read(folder)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)

    @staticmethod
    def _read(folder: Path) -> Iterator[dict[str, np.ndarray]]:
        for path in sorted(folder.glob("*.npz")):
            arrays = dict(np.load(path))
            yield {k: v for k, v in arrays.items() if k not in ("label", "group")}


def contestants(shape: Shape, made: Path, folder: Path, threads: int) -> list[Contestant]:
    """Make the files and return the entries; the first is the original.

    Args:
        made: Folder with ``model.onnx`` and ``calibration``.
        folder: Where files go; those that are there are taken again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.WARNING)
    folder, model, cpu = folder.resolve(), made / "model.onnx", Cpu(threads=threads)
    found = [Contestant("original", model, cpu)]
    for level in ("disabled", "basic", "extended"):
        backend = Cpu(threads=threads, level=level)  # type: ignore[arg-type]
        found.append(Contestant(f"level {level}", model, backend))
    files = [
        _made(name, folder / f"{name.replace(' ', '-')}.onnx", cpu, make, model)
        for name, make in makers(made / "calibration").items()
    ]
    found += files
    if Openvino().missing() is None:
        found += _on_openvino(model, threads)
        static = next(one for one in files if one.name == "QDQ U8S8")
        both = [static, *_nncf(shape, made, cpu)]
        found += [
            Contestant(
                f"{one.name} on openvino {backend.precision}", one.model, backend, one.error
            )
            for one in both
            for backend in _rest(threads)
        ]
    return found


def makers(calibration: Path) -> dict[str, Callable[[Path, Path], None]]:
    """Return how each file of onnxruntime's own tools is made: name -> maker."""
    return {
        "fp16 file": _half,
        "QDQ U8S8": partial(write_static, calibration, UNSIGNED, SIGNED, True),
        "QDQ U8U8": partial(write_static, calibration, UNSIGNED, UNSIGNED, False),
        "QDQ S8S8": partial(write_static, calibration, SIGNED, SIGNED, True),
        "dynamic S8": _dynamic,
        "MatMulNBits 4 bits": partial(_blocks, 4),
        "MatMulNBits 8 bits": partial(_blocks, 8),
    }


def _on_openvino(model: Path, threads: int) -> Iterator[Contestant]:
    """Yield the original in each precision; where the CPU lacks one, OpenVINO takes another."""
    for precision in ("f32", "bf16", "f16"):
        backend = Openvino(threads=threads, precision=precision)  # type: ignore[arg-type]
        yield Contestant(f"openvino {precision}", model, backend)


def _rest(threads: int) -> list[Openvino]:
    """Return how OpenVINO may compute what is not quantized: f16 breaks with QDQ models."""
    found = [Openvino(threads=threads)]
    if any("bf16" in one for one in instruction_sets()):
        found.append(Openvino(threads=threads, precision="bf16"))
    return found


def _nncf(shape: Shape, made: Path, cpu: Backend) -> Iterator[Contestant]:
    """Yield nncf's files, made in an environment of its own."""
    from benchmarks.peers.cases import Case, calibration
    from benchmarks.peers.environments import environment
    from benchmarks.peers.making import make

    env = environment("nncf")
    samples = calibration(shape.name, made)
    case = Case(shape.name, shape.name in TRANSFORMERS)
    for recipe in _NNCF:
        one = make(case, made / "model.onnx", samples, env, recipe)
        yield Contestant(f"nncf {recipe}", one.path(shape.name), cpu, one.error)


def _made(
    name: str, path: Path, backend: Backend, make: Callable[[Path, Path], None], model: Path
) -> Contestant:
    """Make a file where it is not there; a failure is kept as the reason."""
    why = path.with_suffix(".error")
    try:
        if not path.is_file() and not why.is_file():
            draft = path.with_name(f"draft-{path.name}")
            make(model, draft)
            draft.rename(path)
    except Exception as error:
        why.write_text(f"{type(error).__name__}: {error}".splitlines()[0][:200])
    return Contestant(name, path, backend, why.read_text() if why.is_file() else "")


def _half(model: Path, out: Path) -> None:
    onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True), out)


def write_static(
    calibration: Path,
    activations: QuantType,
    weights: QuantType,
    per_channel: bool,
    model: Path,
    out: Path,
) -> None:
    """Quantize with min-max ranges, after the pre-processing that the documentation asks for."""
    ready = out.with_name("prepared.onnx")
    with chdir(out.parent):  # the tool leaves files in the current folder
        if not ready.is_file():
            try:
                quant_pre_process(str(model), str(ready), skip_symbolic_shape=False)
            except Exception:
                quant_pre_process(str(model), str(ready), skip_symbolic_shape=True)
        quantize_static(
            str(ready),
            str(out),
            _Reader(calibration),
            quant_format=QuantFormat.QDQ,
            per_channel=per_channel,
            activation_type=activations,
            weight_type=weights,
        )


def _dynamic(model: Path, out: Path) -> None:
    quantize_dynamic(str(model), str(out), per_channel=True, weight_type=SIGNED)


def _blocks(bits: int, model: Path, out: Path) -> None:
    """Store the weights of matrix products in blocks of 128.

    Raises:
        ValueError: The model has no product that the tool takes.
    """
    quantizer = MatMulNBitsQuantizer(
        onnx.load(model), bits=bits, block_size=128, is_symmetric=True, accuracy_level=4
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(out))
    if not any(node.op_type == "MatMulNBits" for node in onnx.load(out).graph.node):
        out.unlink()
        raise ValueError("no matrix product was quantized")
