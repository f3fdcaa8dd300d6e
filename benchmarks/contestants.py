"""What a careful person would try by hand, without ortune: each a file and a backend."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from ortune.backends.cpu import Cpu
from ortune.backends.openvino import Openvino
from ortune.core.backend import Backend


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


def contestants(model: Path, calibration: Path, folder: Path, threads: int) -> list[Contestant]:
    """Make the files and return the entries; the first is the original."""
    folder.mkdir(parents=True, exist_ok=True)
    cpu = Cpu(threads=threads)
    found = [
        Contestant("original", model, cpu),
        Contestant("level basic", model, Cpu(threads=threads, level="basic")),
        Contestant("level extended", model, Cpu(threads=threads, level="extended")),
    ]
    static = _made("ort static QDQ", folder / "static.onnx", cpu, _static, model, calibration)
    found += [static, _made("ort dynamic", folder / "dynamic.onnx", cpu, _dynamic, model, None)]
    if Openvino().missing() is None:
        for precision in ("f32", "bf16", "f16"):
            backend = Openvino(threads=threads, precision=precision)  # type: ignore[arg-type]
            found.append(Contestant(f"openvino {precision}", model, backend))
        if not static.error:
            found.append(Contestant("openvino on ort static QDQ", static.model, Openvino(threads)))
    return found


def _made(name, path, backend, make, model, calibration) -> Contestant:  # type: ignore[no-untyped-def]
    try:
        if not path.is_file():
            make(model, path, calibration)
    except Exception as error:
        return Contestant(name, model, backend, f"{type(error).__name__}: {error}"[:200])
    return Contestant(name, path, backend)


def _static(model: Path, out: Path, calibration: Path) -> None:
    logging.disable(logging.WARNING)
    ready = out.with_name("prepared.onnx")
    with chdir(out.parent):  # the tool leaves files in the current folder
        try:
            quant_pre_process(str(model), str(ready), skip_symbolic_shape=False)
        except Exception:
            quant_pre_process(str(model), str(ready), skip_symbolic_shape=True)
    quantize_static(
        str(ready),
        str(out),
        _Reader(calibration),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


def _dynamic(model: Path, out: Path, calibration: Path | None) -> None:
    logging.disable(logging.WARNING)
    quantize_dynamic(str(model), str(out), per_channel=True, weight_type=QuantType.QInt8)
