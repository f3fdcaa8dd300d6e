"""Serve models over HTTP and gRPC, by the v2 protocol."""

from __future__ import annotations

from ortune.cli.main import DONE, INTERRUPTED, NO
from ortune.cli.terminal.command import verb
from ortune.cli.terminal.output import answer, say
from ortune.serving.server.settings import Listening, Serve


@verb(Serve)
def command(asked: Serve) -> int:
    """Say where it listens, and serve; exit code 1 when an accepted request got no answer."""
    from ortune.serving.server.serve import carry_out
    from ortune.serving.server.signals import end_soon

    def ready(listening: Listening) -> None:
        answer(listening, lambda: say(str(listening)))

    try:
        left = carry_out(asked, ready)
    except KeyboardInterrupt:
        end_soon(INTERRUPTED)
        raise
    if left:
        end_soon(NO)
    return NO if left else DONE
