"""Which options of `convert` go together, and what a person should know of their file."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.conversion import formats, precisions
from ortune.conversion.requests import Convert
from ortune.core.errors import BadSettings
from ortune.core.event import Note
from ortune.core.hardware.cpus import instruction_sets, native


def check(asked: Convert) -> None:
    """Refuse what cannot be had, before anything is read.

    Raises:
        BadSettings: An option does not go with the others.
    """
    lossy, ranged = precisions.CALIBRATED, precisions.RANGED
    for given, name, wanted in (
        (asked.ranges_from is not None, "--ranges-from", ranged),
        (asked.augment is not None, "--augment", lossy),
        (asked.exclude_from is not None, "--exclude-from", lossy),
        (asked.threshold is not None, "--threshold", lossy),
    ):
        if given and asked.precision not in wanted:
            raise BadSettings(f"{name} is about {', '.join(wanted)}", fix="add --precision int8")
    precisions.refuse(asked.precision, asked.target, static=asked.static)
    formats.refuse(asked.format, asked.precision, static=asked.static)
    if asked.format == "qoperator" and asked.target != "cpu":
        raise BadSettings(
            "--format qoperator is for CPUs: no GPU provider has kernels of integer operators",
            fix="leave --format out: pairs of Q/DQ are written",
        )
    if asked.precision != "int8":
        for given, name in (
            (not asked.per_channel, "--no-per-channel"),
            (asked.reduce_range, "--reduce-range"),
            (asked.dynamic_conv, "--dynamic-conv"),
        ):
            if given:
                raise BadSettings(f"{name} is about int8", fix="add --precision int8")
    elif asked.dynamic_conv and asked.static:
        raise BadSettings(
            "--dynamic-conv is for int8 without data", fix="leave --dynamic-conv or --data out"
        )


def advice(asked: Convert) -> Sequence[Note]:
    """Return what a person should know about the file that they asked for."""

    found = []
    if asked.level == "all" and not asked.portable:
        found.append(
            Note(
                "--opt-level all binds the file to this hardware: it may be slow or fail "
                "elsewhere; --opt-level extended makes one that runs on any CPU",
                warning=True,
            )
        )
    if asked.level == "all" and asked.portable:
        found.append(
            Note(
                "--opt-level all holds the portable rewrites of extended here; the runtime "
                "adds what is bound to the hardware when it loads the file"
            )
        )
    vnni = "int8-vnni" in native(instruction_sets())
    if asked.precision == "int8" and asked.target == "cpu" and not (vnni or asked.reduce_range):
        found.append(
            Note(
                "this CPU has no VNNI: sums of 8-bit products may saturate; "
                "--reduce-range avoids it",
                warning=True,
            )
        )
    return found
