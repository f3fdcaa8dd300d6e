"""Answer every probe over the calibration samples, in worker runs of bounded memory.

Three calls, for whoever needs ranges:

- `calibrate` answers probes over one list of samples: what a build does before a quantizer.
- `calibrate_groups` answers the same probes over several lists of samples at once, each list with
  observers of its own. Lists may overlap; a sample is run once a pass, however many lists it is
  in. ``calibrate_groups(..., [indices, *halves(indices)], ...)`` is the answer and its split-half
  stability for the price of one calibration.
- `ortune.recipe.activity` makes probes that tell what never woke up, to be put beside others.

Answers are keyed by `Probe.key`. A probe has no answer, and a note says why, when its tensor
cannot be exposed (it is a constant, or in a body that cannot hand it out) or when it never held a
value on the samples (the branch of an If that was never taken).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ortune.backends.cpu import Cpu
from ortune.core import codec
from ortune.core.errors import BadData, BadModel
from ortune.core.observer import Probe, Range, Ranges
from ortune.measurement.process import WorkerFailed, ask_once, lone
from ortune.model import file

_TIMEOUT_S = 1800
MEMORY = 1_000_000_000
"""Bytes that the observed tensors of one worker run, and what is kept of them, may take."""


@dataclass(frozen=True)
class Calibrated:
    """What `calibrate_groups` found.

    Attributes:
        ranges: One mapping a group of samples, in the order given.
        notes: Which probes have no answer, and why.
        seconds: Wall time; 0 when every answer was known before.
        peak_rss: Bytes, of the largest worker; 0 when every answer was known before.
        parts: Worker runs that the probes were split into to stay within the memory.
    """

    ranges: tuple[Ranges, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    peak_rss: int = 0
    parts: int = 0


def halves(indices: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Deal the samples out in turn: both halves are spread over the whole."""
    return tuple(indices[0::2]), tuple(indices[1::2])


def calibrate_groups(
    model: ir.Model,
    probes: Sequence[Probe],
    stream: Path,
    groups: Sequence[Sequence[int]],
    folder: Path,
    *,
    memory: int = MEMORY,
) -> Calibrated:
    """Observe each probed tensor over each group of samples; see `calibrate`.

    Args:
        model: Left unchanged.
        probes: Tensors of the main graph and of bodies.
        stream: Sample stream of the model's inputs.
        groups: Lists of sample indices; they may overlap.
        folder: For the watched model and the cache, from which later calls are answered.
        memory: Bytes, as `MEMORY`.
    """
    return Calibrated(
        tuple(calibrate(model, probes, stream, indices, folder) for indices in groups)
    )


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
