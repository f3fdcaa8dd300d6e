"""Cut padding off calls, and prove that it has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortune.analysis.padding.requests import BucketsRequest
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, say, table
from ortune.core import wording

if TYPE_CHECKING:
    from ortune.search.padding import Buckets


@verb(BucketsRequest)
def command(asked: BucketsRequest) -> None:
    """Show the padding, the proof and the backend to use."""
    from ortune.analysis.padding.buckets import run

    found = run(asked)
    result = {
        "model": asked.model,
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
    answer(result, lambda: _show(found))


def _show(found: Buckets) -> None:
    padding, backend = found.padding, found.backend
    names = ", ".join((padding.mask, *padding.inputs))
    say(
        f"padding: {100 * padding.share:.1f} % of the positions of "
        f"{wording.count(len(padding.lengths), 'sample')}, on the {padding.side}; cut from {names}"
    )
    said = ", ".join(f"{name} {db:.0f} dB" for name, db in found.proof.snr_db.items())
    say(f"without effect: {said} (real positions, {wording.count(found.proof.samples, 'sample')})")
    if backend.outputs:
        say(f"zeros beyond the bucket: {', '.join(backend.outputs)}")
    table(
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
    table(("share of the padded calls'", "ratio>"), rows)
    say(f'buckets: --on "{backend}"')
