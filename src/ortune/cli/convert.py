"""Convert a model to a given precision, and check it."""

from ortune.analysis.conversion.requests import Convert
from ortune.cli.terminal.command import make_command, run_before_notes
from ortune.cli.terminal.output import format_size, print_result, print_table
from ortune.core import wording


@make_command(Convert)
def command(request: Convert) -> None:
    """Show sizes, scores and, where it was timed, the latency."""
    from ortune.analysis.conversion.convert import run

    result = run_before_notes(run, request)

    def show() -> None:
        before, after, ratio = result.bytes_before, result.bytes_after, result.latency_ratio
        change = f"{100 * (after - before) / before:+.0f} %"
        weights = ", ".join(
            f"{name} {format_size(count)}" for name, count in result.weights.items()
        )
        rows = [
            ("size", f"{format_size(before)} before, {format_size(after)} after ({change})"),
            ("weights", weights or "none"),
        ]
        if scores := result.compared:
            text = ", ".join(f"{score['metric']} {score['value']:.5g}" for score in scores)
            samples = scores[0]["samples"]
            assert isinstance(samples, int)
            rows.append(
                ("against the source", f"{text} ({wording.format_count(samples, 'sample')})")
            )
        if ratio:
            spread = f"[{ratio.low:.2f}, {ratio.high:.2f}]"
            rows.append(("latency", f"{ratio.value:.2f} times the source's {spread}"))
        print_table(("", str(result.output)), rows)

    print_result(result, show)
