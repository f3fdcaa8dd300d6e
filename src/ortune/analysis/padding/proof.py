"""Is padding without effect on a model's answers? Found and proved by running it both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ortune.backends.bucketed import Bucketed
from ortune.core.backend import Backend
from ortune.core.errors import Refused
from ortune.core.workload import spread
from ortune.data.padding import Padding
from ortune.data.stream import Stream
from ortune.measurement.outputs import outputs
from ortune.measurement.process import WorkerFailed, lone
from ortune.recipe.compare import decibels

LEAST_DB = 100.0
"""Cutting only changes the order of sums: float32 stays well above this."""
_SAMPLES = 16


@dataclass(frozen=True)
class Proof:
    """What runs with and without the padding showed.

    Attributes:
        cut: The backend, cutting each of the samples to its real length.
        snr_db: Output -> signal to noise between the two, over real positions.
        samples: How many were run both ways.
    """

    cut: Bucketed
    snr_db: Mapping[str, float]
    samples: int


def prove(
    model: Path,
    backend: Backend,
    padding: Padding,
    stream: Path,
    folder: Path,
    indices: Sequence[int] = (),
    least_db: float = LEAST_DB,
) -> Proof:
    """Run samples as they are and cut to their real positions, and compare every output.

    Args:
        indices: Samples that may be run; all when empty.
        least_db: What every output must keep.

    Raises:
        Refused: An output changes, or has the length elsewhere than in its second dimension.
        WorkerFailed: The model does not run as it is.
    """
    chosen = _chosen(padding, indices)
    lengths = tuple(sorted({padding.lengths[i] for i in chosen}))
    plain = Bucketed(mask=padding.mask, inputs=padding.inputs, side=padding.side)
    cut = replace(plain.around(backend), lengths=lengths)
    long = outputs(lone(model, backend, stream, folder, "whole"), chosen, folder / "whole.stream")
    try:
        brief = outputs(lone(model, cut, stream, folder, "short"), chosen, folder / "short.stream")
    except WorkerFailed as error:
        raise Refused(
            f"the model does not run without the padding: {error.failure.reason}",
            fix="free what is tied to the padded length (ortune apply MODEL free-dims), or leave "
            "the calls padded",
        ) from None
    widths, real = ([side[i] for i in chosen] for side in (padding.widths, padding.lengths))
    declared = replace(cut, outputs=_outputs(long, brief, widths, real))
    feeds = Stream(stream)
    wanted = [declared.compared(feeds[i], out) for i, out in zip(chosen, long, strict=True)]
    snr_db = {
        name: decibels([{name: one[name]} for one in wanted], [{name: one[name]} for one in brief])
        for name in long.names
    }
    for name, value in snr_db.items():
        if not value >= least_db:
            raise Refused(
                f"output '{name}' changes when padding is cut: {value:.1f} dB between them, "
                f"{least_db:.0f} wanted",
                fix="leave the calls padded, or repair the model: it computes with padded "
                f"positions (a mean over all of them, a mask '{padding.mask}' that does not hide "
                "them, integer ranges taken at run time)",
            )
    return Proof(declared, snr_db, len(chosen))


def _chosen(padding: Padding, indices: Sequence[int]) -> list[int]:
    """Return samples with padding, spread over their lengths from short to long."""
    allowed = indices or range(len(padding.lengths))
    padded = [i for i in allowed if padding.lengths[i] < padding.widths[i]]
    padded.sort(key=lambda i: (padding.lengths[i], i))
    if not padded:
        raise Refused("none of the samples is padded", fix="give padded ones")
    return [padded[k] for k in spread(len(padded), _SAMPLES)]


def _outputs(
    whole: Stream, short: Stream, widths: Sequence[int], real: Sequence[int]
) -> tuple[str, ...]:
    """Return the outputs that are as long as the inputs.

    Raises:
        Refused: One has the length elsewhere than in its second dimension.
    """
    found = []
    for name in whole.names:
        pairs = [(w[name].shape, s[name].shape) for w, s in zip(whole, short, strict=True)]
        if all(one == two for one, two in pairs):
            continue
        fits = [
            len(one) == len(two) > 1 and one[1] == width and two == (one[0], length, *one[2:])
            for (one, two), width, length in zip(pairs, widths, real, strict=True)
        ]
        if not all(fits):
            one, two = pairs[fits.index(False)]
            raise Refused(
                f"output '{name}' is {list(one)} as padded and {list(two)} without padding",
                fix="only outputs [batch, length, ...] can be given back at their full length; "
                "leave this one out of the model, or the calls padded",
            )
        found.append(name)
    return tuple(found)
