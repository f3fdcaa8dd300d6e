"""Serve models over HTTP and gRPC, by the v2 protocol."""

from ortune.cli.main import DONE, INTERRUPTED, NO
from ortune.cli.terminal.command import make_command
from ortune.cli.terminal.output import print_result, print_text
from ortune.serving.server.settings import Listening, Serve


@make_command(Serve)
def command(request: Serve) -> int:
    """Say where it listens, and serve; exit code 1 when an accepted request got no answer."""
    from ortune.core.termination import end_soon
    from ortune.serving.server.serve import carry_out

    def ready(listening: Listening) -> None:
        print_result(listening, lambda: print_text(str(listening)))

    try:
        unanswered = carry_out(request, ready)
    except KeyboardInterrupt:
        end_soon(INTERRUPTED)
        raise
    if unanswered:
        end_soon(NO)
    return NO if unanswered else DONE
