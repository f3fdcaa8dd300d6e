"""Answer every probe with one worker run over the calibration samples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from ortune.backends.cpu import Cpu
from ortune.core import codec
from ortune.core.errors import BadData, BadModel
from ortune.core.observer import Probe, Range, Ranges
from ortune.measurement.process import WorkerFailed, ask_once, lone
from ortune.model import file

_TIMEOUT_S = 1800


def calibrate(
    model: ir.Model,
    probes: Sequence[Probe],
    stream: Path,
    indices: Sequence[int],
    folder: Path,
) -> Ranges:
    """Observe each probed tensor over the samples; memory does not depend on their number.

    Args:
        model: Left unchanged.
        probes: Tensors of the main graph.
        stream: Sample stream of the model's inputs.
        indices: The calibration samples.
        folder: For the watched model and for ``ranges.json``, from which later calls are answered.

    Raises:
        BadData: A tensor is not finite on the data.
        BadModel: The model does not run.
    """
    known = _known(folder)
    missing = [probe for probe in dict.fromkeys(probes) if _name(probe) not in known]
    if missing:
        found = _observe(model, missing, stream, indices, folder)
        known = known | {_name(probe): found[probe.tensor] for probe in missing}
        _remember(folder, known)
    return {probe.tensor: known[_name(probe)] for probe in probes}


def _observe(
    model: ir.Model, probes: Sequence[Probe], stream: Path, indices: Sequence[int], folder: Path
) -> Mapping[str, Range]:
    watched = model.clone()
    _expose(watched, [probe.tensor for probe in probes])
    path = file.save(watched, folder / "watched.onnx")
    job = lone(path, Cpu(level="basic"), stream, folder, "observe")
    command = {"indices": list(indices), "probes": list(probes)}
    try:
        answer = ask_once(job, ("observe", command), timeout_s=_TIMEOUT_S)[0]
    except WorkerFailed as error:
        reason = error.failure.reason
        if "finite" in reason:
            raise BadData(reason, fix="check the samples' scaling; see docs/data.md") from None
        raise BadModel(
            f"the calibration run failed: {reason}", fix=error.failure.reproduce
        ) from None
    finally:
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}.data").unlink(missing_ok=True)
    return {name: codec.decode(Range, data) for name, data in answer["ranges"].items()}


def _expose(model: ir.Model, tensors: Sequence[str]) -> None:
    """Make tensors graph outputs so that a run returns them."""
    graph = model.graph
    values = {value.name: value for node in graph for value in node.outputs}
    shown = {value.name for value in (*graph.outputs, *graph.inputs)}
    for name in dict.fromkeys(tensors):
        if name in shown:
            continue
        value = values[name]
        if value.type is None:
            value.type = ir.TensorType(ir.DataType.FLOAT)
        graph.outputs.append(value)


def _name(probe: Probe) -> str:
    return f"{probe.observer}|{probe.tensor}"


def _known(folder: Path) -> dict[str, Range]:
    path = folder / "ranges.json"
    if not path.is_file():
        return {}
    data = json.loads(path.read_text(encoding="utf-8"))
    return {name: codec.decode(Range, item) for name, item in data.items()}


def _remember(folder: Path, known: Mapping[str, Range]) -> None:
    beside = folder / "ranges.json.part"
    beside.write_text(json.dumps(codec.encode(known)), encoding="utf-8")
    beside.replace(folder / "ranges.json")
