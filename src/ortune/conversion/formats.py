"""The form that a quantized model is written in, and what other CPUs make of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ortune.core import wording
from ortune.core.errors import BadSettings
from ortune.core.event import Note, Sink
from ortune.core.plugins import catalog
from ortune.core.step import Quantizer, Step
from ortune.model.analysis.saturation import saturable
from ortune.model.io import file


def refuse(form: str | None, precision: str | None, *, static: bool) -> None:
    """Refuse a form that a precision has not.

    Raises:
        BadSettings: It is about static int8 alone.
    """
    if form is None or precision is None or (precision == "int8" and static):
        return
    what = "int8 without data" if precision == "int8" else precision
    raise BadSettings(
        f"--format {form} is about static int8, not {what}",
        fix="give --data with --precision int8, or leave --format out",
    )


def written(steps: Sequence[Step], form: str | None) -> tuple[Step, ...]:
    """Return the steps, with the one that rewrites to the form at the end."""

    last = (catalog.load(Quantizer, "qoperator")(),) if form == "qoperator" else ()
    return (*steps, *last)


def warn(path: Path, before: Path, sink: Sink) -> None:
    """Say where the integers of a new model saturate that its source did not have."""

    old = {layer.node for layer in saturable(file.load(before)) if layer.risky}
    layers = saturable(file.load(path))
    risky = [layer for layer in layers if layer.risky]
    if risky and {layer.node for layer in risky} - old:
        sink(
            Note(
                f"{len(risky)} of "
                f"{wording.count(len(layers), 'integer layer')} can saturate on x86 CPUs "
                "without VNNI: `ortune verify --simulate avx2` shows what that does to the "
                "answers, reduce_range avoids it"
            )
        )
