"""Cut padding off calls: find it, prove it without effect, choose lengths, time them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortune.cli import shared
from ortune.core.errors import BadSettings

if TYPE_CHECKING:
    from ortune.analysis.padding.buckets import Buckets


@shared.verb(shared.Verb)
@click.argument("model", type=shared.FILE)
@shared.data
@shared.on("cpu")
@shared.custom_ops
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Most buckets.",
)
@click.option(
    "--multiple",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Buckets are multiples of this.",
)
@click.option("--mask", default="", metavar="NAME", help="The mask; found in the data by default.")
@click.option(
    "--least-db",
    type=shared.Finite(),
    default=100.0,
    show_default=True,
    help="Signal to noise that every output keeps without padding; less for quantized models.",
)
@click.option(
    "--seconds",
    type=shared.Finite(min=0),
    default=10.0,
    show_default=True,
    help="Time for timing padded against cut calls; 0 leaves it out.",
)
def command(
    model: Path,
    data: str | None,
    on: str,
    custom_ops: tuple[str, ...],
    count: int,
    multiple: int,
    mask: str,
    least_db: float,
    seconds: float,
    json_to: str | None,
    verbose: bool,
) -> int:
    """Find the padding in the data of an encoder, prove that it can be cut, choose lengths.

    The answer is a backend to give to --on of any verb, and to ot.load: it cuts every call down
    to the shortest bucket that holds its real positions. `ortune optimize` tries the same by
    itself where the data are padded.

    \b
    Example:
      ortune buckets encoder.onnx --data padded/ --on "cpu(threads=1)"
      ortune buckets encoder.onnx --data padded/ --count 8 --seconds 0
    """
    from ortune.analysis.padding.buckets import buckets
    from ortune.cli.terminal import progress

    if data is None:
        raise BadSettings(
            "buckets are chosen from data, and there is none",
            fix="give --data: samples, padded as they are served",
        )
    found = buckets(
        model,
        data=data,
        on=shared.equipped(on, custom_ops),
        count=count,
        multiple=multiple,
        mask=mask,
        least_db=least_db,
        seconds=seconds,
        sink=progress.lines(verbose),
    )
    result = {
        "model": model,
        "backend": str(found.backend),
        "mask": found.padding.mask,
        "cut": (found.padding.mask, *found.padding.inputs),
        "outputs": found.backend.outputs,
        "side": found.padding.side,
        "lengths": found.backend.lengths,
        "samples": len(found.padding.lengths),
        "padding_share": found.padding.share,
        "snr_db": found.proof.snr_db,
        "proved_on": found.proof.samples,
        "positions": found.positions,
        "least": found.least,
        "latency_ns": {str(n): ns for n, ns in found.latency_ns.items()},
        "predicted": found.predicted,
        "measured": found.measured,
    }
    shared.answer(json_to, result, lambda: _show(found))
    return 0


def _show(found: Buckets) -> None:
    padding, backend = found.padding, found.backend
    names = ", ".join((padding.mask, *padding.inputs))
    shared.say(
        f"padding: {100 * padding.share:.1f} % of the positions of {len(padding.lengths)} "
        f"samples, on the {padding.side}; cut from {names}"
    )
    said = ", ".join(f"{name} {db:.0f} dB" for name, db in found.proof.snr_db.items())
    shared.say(f"without effect: {said} (real positions, {found.proof.samples} samples)")
    if backend.outputs:
        shared.say(f"zeros beyond the bucket: {', '.join(backend.outputs)}")
    shared.table(
        ("length", "latency ms>"),
        [(str(n), f"{ns / 1e6:.3g}") for n, ns in sorted(found.latency_ns.items())],
    )
    rows = [
        ("positions computed", f"{found.positions:.3f}"),
        ("without any padding", f"{found.least:.3f}"),
        ("predicted from the latencies", f"{found.predicted:.3f}"),
    ]
    if found.measured is not None:
        rows.append(("measured", str(found.measured)))
    shared.table(("share of the padded calls'", "ratio>"), rows)
    shared.say(f'buckets: --on "{backend}"')
