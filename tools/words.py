"""Count the words of the command line: verbs, lines of options in their help, distinct options.

``PYTHONPATH=src python -m tools.words`` prints a row a verb and the sums.
"""

from __future__ import annotations

import click

from ortune.cli.main import root
from ortune.cli.terminal.panels import COMMON, list_own


def main() -> None:
    """Print the counts."""
    ctx = click.Context(root)
    words = {verb: list_own(root.get_command(ctx, verb)) for verb in root.list_commands(ctx)}
    for verb, own in words.items():
        print(f"{verb:12} {len(own):3}")
    lines = sum(map(len, words.values())) + len(COMMON)
    distinct = {word for own in words.values() for word in own}
    print(
        f"{len(words)} verbs, {lines} option lines ({len(COMMON)} of them explained once for "
        f"all), {len(distinct) + len(COMMON)} distinct options"
    )


if __name__ == "__main__":
    main()
