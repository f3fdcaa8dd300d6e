"""Which ranges a quantizer asks of a model, with an observer of the user's choice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ortune.core.errors import BadSettings
from ortune.core.observer import Observer, Probe
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse
from ortune.core.step import Quantizer
from ortune.model.io import file, names


@dataclass(frozen=True)
class QuantizerProbes:
    """What a quantizer asks of a model.

    Attributes:
        model: As the quantizer prepared it.
        probes: For ranges that are known by their tensor's name.
        observer: The quantizer's own.
    """

    model: ir.Model
    probes: tuple[Probe, ...]
    observer: Observer


def settled(quantizer: str, observer: str | None) -> Quantizer:
    """Read a quantizer and put another observer into it.

    Raises:
        BadSettings: A spelling is wrong, or the quantizer has no observer to choose.
    """
    step = parse(Quantizer, quantizer)
    own = getattr(step, "observer", None)
    if not isinstance(own, Observer):
        raise BadSettings(
            f"{step.name()} asks for no ranges of an observer's choice",
            fix='use a static quantizer, such as "int8-static"',
        )
    return step if observer is None else _with(step, parse(Observer, observer))


def _with(step: Quantizer, observer: Observer) -> Quantizer:
    fields = {**codec.encode(step), "observer": codec.encode(observer)}
    return codec.decode(Quantizer, fields)


def probes(path: Path, step: Quantizer) -> QuantizerProbes:
    """Load a model, prepare it as a build does, and ask the quantizer.

    Raises:
        BadSettings: It asks for nothing.
    """
    model = file.load(path)
    names.unique(model)
    if model.opset_imports.get("", 0) < step.needs_opset:
        from ortune.transforms.raise_opset import RaiseOpset

        RaiseOpset(to=step.needs_opset).apply(model)
    found = tuple(probe for probe in step.probes(model) if not probe.name)
    if not found:
        raise BadSettings(
            f"{step} asks for no range in {path.name}: there is nothing that it would quantize",
            fix="see `ortune inspect` for its operators, or choose another --quantizer",
        )
    own: Observer = step.observer  # type: ignore[attr-defined]
    return QuantizerProbes(model, found, own)
