"""Apply steps to a model, in the order given, each checked."""

from ortune.analysis.conversion.requests import Apply
from ortune.cli.main import DONE, NO
from ortune.cli.terminal.command import make_command, run_before_notes
from ortune.cli.terminal.output import format_size, print_result, print_table, print_text


@make_command(Apply)
def command(request: Apply) -> int:
    """Show what each step did; exit code 1 when one was rolled back."""
    from ortune.analysis.conversion.apply import run

    result = run_before_notes(run, request)

    def show() -> None:
        rows = []
        for edit in result.edits:
            state = edit.note if not edit.kept else ("nothing to do" if not edit.count else "")
            rows.append((edit.step, edit.count, f"{edit.seconds:.1f}", state))
        print_table(("step", "edits>", "s>", ""), rows)
        for edit in result.edits:
            if edit.kept and edit.note:
                print_text(f"{edit.step}: {edit.note}")
        print_text(
            f"{result.output}: {format_size(result.bytes_before)} before, "
            f"{format_size(result.bytes_after)} after"
        )

    print_result(result, show)
    return DONE if all(edit.kept for edit in result.edits) else NO
