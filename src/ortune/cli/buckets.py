"""Cut padding off calls, and prove that it has no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortune.analysis.padding.requests import BucketsRequest
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_result, print_table, print_text
from ortune.core import wording

if TYPE_CHECKING:
    from ortune.search.padding import Buckets


@make_command(BucketsRequest)
def command(request: BucketsRequest) -> None:
    """Show the padding, the proof and the backend to use."""
    from ortune.analysis.padding.buckets import run

    buckets = run(request)
    result = {
        "model": request.model,
        "backend": str(buckets.backend),
        "mask": buckets.padding.mask,
        "cut": (buckets.padding.mask, *buckets.padding.inputs),
        "outputs": buckets.backend.outputs,
        "side": buckets.padding.side,
        "lengths": buckets.backend.lengths,
        "samples": len(buckets.padding.lengths),
        "padding_share": buckets.padding.share,
        "snr_db": buckets.proof.snr_db,
        "proved_on": buckets.proof.samples,
        "positions": buckets.positions,
        "least": buckets.least,
        "latency_ns": {str(n): ns for n, ns in buckets.latency_ns.items()},
        "predicted": buckets.predicted,
        "measured": buckets.measured,
    }
    print_result(result, lambda: _print_buckets(buckets))


def _print_buckets(buckets: Buckets) -> None:
    padding, backend = buckets.padding, buckets.backend
    names = ", ".join((padding.mask, *padding.inputs))
    print_text(
        f"padding: {100 * padding.share:.1f} % of the positions of "
        f"{wording.format_count(len(padding.lengths), 'sample')}, on the {padding.side}; cut "
        f"from {names}"
    )
    outputs = ", ".join(f"{name} {db:.0f} dB" for name, db in buckets.proof.snr_db.items())
    print_text(
        f"without effect: {outputs} (real positions, "
        f"{wording.format_count(buckets.proof.samples, 'sample')})"
    )
    if backend.outputs:
        print_text(f"zeros beyond the bucket: {', '.join(backend.outputs)}")
    print_table(
        ("length", "latency ms>"),
        [(str(n), f"{ns / 1e6:.3g}") for n, ns in sorted(buckets.latency_ns.items())],
    )
    rows = [
        ("positions computed", f"{buckets.positions:.3f}"),
        ("without any padding", f"{buckets.least:.3f}"),
        ("predicted from the latencies", f"{buckets.predicted:.3f}"),
    ]
    if buckets.measured is not None:
        rows.append(("measured", str(buckets.measured)))
    print_table(("share of the padded calls'", "ratio>"), rows)
    print_text(f'buckets: --on "{backend}"')
