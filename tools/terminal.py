"""What verbs end with on a terminal, as text: ``python -m tools.terminal`` writes the page.

Answers are fixed ones, so that the page only changes with what is printed; a test compares the
two. ``--measure`` also runs what measures this machine and cannot be compared: bench, doctor, and
two searches on a terminal, whose bars are read.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import click

from ortune.analysis.verification.verify import Comparison
from ortune.cli import doctor
from ortune.cli.main import main as run_ortune
from ortune.cli.main import root
from ortune.cli.optimize import print_study
from ortune.cli.terminal import output
from ortune.cli.verify import print_comparison
from ortune.core.budget import Budget
from ortune.core.trial import Score, Verdict
from ortune.metrics.cosine import Cosine
from ortune.search.experiment.ledger import read_study

HOME = Path(__file__).parents[1]
PAGE = HOME / "docs" / "terminal.md"
MODEL = HOME / "src" / "ortune" / "data" / "zoo" / "digit_cnn.onnx"
_RUN = HOME / "tests" / "fixtures" / "before_rooms" / "runs" / "padded"
_BAR = re.compile("[━─]+ (\\d+) % ")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_HEAD = """# On a terminal

What verbs print, recorded by `python -m tools.terminal` at several widths and in a pipe, where
tabs separate the cells (shown as `→`). With `NO_COLOR` the text is the same, without colours.
"""


class Terminal(io.StringIO):
    """Takes what a terminal would show."""

    def isatty(self) -> bool:
        """Be one."""
        return True


@contextmanager
def _set_environment(**values: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def capture(act: Callable[[], object], columns: int | None, *, colour: bool = True) -> str:
    """Return what is printed to a terminal of a width, escapes and all, or to a pipe.

    Args:
        columns: None is a pipe.
        colour: Without it `NO_COLOR` is set.
    """
    stream, stdout = (io.StringIO() if columns is None else Terminal()), sys.stdout
    values = {"TERM": "xterm", "COLUMNS": str(columns or 80)} | (
        {} if colour else {"NO_COLOR": "1"}
    )
    with _set_environment(**values):
        sys.stdout = stream
        try:
            act()
        finally:
            sys.stdout = stdout
    return stream.getvalue()


def list_answers(folder: Path) -> Mapping[str, Callable[[], object]]:
    """Return verb -> what prints a fixed answer of it.

    Args:
        folder: For files that a verb reads.
    """
    study = replace(read_study(_RUN), root="run")
    scores = (
        Score("cosine", 0.99971, 1.0, 0.99942, math.inf, 64, Verdict.PROVED, None, "bootstrap"),
        Score("cosine", 0.9921, 1.0, 0.989, math.inf, 64, Verdict.FAILS, None, "bootstrap"),
    )
    files = [_write_bench(folder, name, ms) for name, ms in (("monday", 10.0), ("friday", 13.0))]
    verified = [Comparison((score,), Budget(Cosine(), 0.999), "", 64, False) for score in scores]
    return {
        "optimize": lambda: print_study(study, Path("run/report.html")),
        "compare": lambda: run_ortune(["compare", *files]),
        "verify": lambda: print_comparison(verified[0]),
        "verify, outside the budget": lambda: print_comparison(verified[1]),
        "inspect": lambda: run_ortune(["inspect", str(MODEL)]),
    }


def _write_bench(folder: Path, name: str, ms: float) -> str:
    """Write a file of `bench` with two rows; return its name in the folder."""
    rows = []
    for model, factor in (("encoder.onnx", 1.0), ("decoder.onnx", 1.4 if ms > 12 else 1.9)):
        times = [round(1e6 * ms * factor * (1 + k % 5 / 1000)) for k in range(10)]
        turns = [[times] * 6] * 3
        rows.append({"model": model, "backend": "cpu", "digest": "d", "turns": turns})
    machine = {"cpu": "A", "effective cpus": "2"}
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"rows": rows, "machine": machine, "versions": {}}))
    return path.name


def describe_answers() -> str:
    """Return the part of the page that has the fixed answers."""
    with tempfile.TemporaryDirectory() as folder, _stay_in(Path(folder)):
        return "\n".join(
            f"## {name}\n\n{_describe_widths(act)}"
            for name, act in list_answers(Path(folder)).items()
        )


@contextmanager
def _stay_in(folder: Path) -> Iterator[None]:
    """Enter a folder, and a context in which verbs print."""
    here = Path.cwd()
    with click.Context(root) as context:
        context.meta["ortune.verbose"], context.meta["ortune.json"] = False, None
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


def _describe_widths(act: Callable[[], object]) -> str:
    """Return what is printed at three widths and in a pipe, each text once."""
    blocks, widths = [], (80, 120, 200)
    texts = {columns: _ESCAPES.sub("", capture(act, columns)) for columns in widths}
    for text in dict.fromkeys(texts.values()):
        names = [str(columns) for columns in widths if texts[columns] == text]
        blocks.append(_fence(f"{', '.join(names)} columns", text))
    blocks.append(_fence("in a pipe", capture(act, None).replace("\t", "→")))
    return "\n".join(blocks)


def _fence(title: str, text: str) -> str:
    return f"{title}:\n\n```text\n{text.strip(chr(10))}\n```\n"


def measure() -> str:
    """Return the part of the page that has answers of this machine."""
    on = "cpu(threads=1),cpu(threads=2)"
    verbs = [["bench", MODEL.name, "--on", on, "--time", "2", "--sets", "2"], ["doctor"]]
    with _stay_in(MODEL.parent):
        parts = [f"## {words[0]}\n\n{_describe_widths(_measure_once(words))}" for words in verbs]
    return "\n".join([*parts, _describe_bars(("1m", "3m"))])


def _describe_bars(times: Sequence[str]) -> str:
    """Return what the bars of demos said at each tenth of the time that these took."""
    lines = []
    for limit in times:
        drawn, took_s = record_bar(limit)
        said = [
            max(bar for at, bar in drawn if at <= tenth * took_s / 10) for tenth in range(1, 11)
        ]
        late = [abs(100 * at / took_s - bar) for at, bar in drawn if at > took_s / 3]
        lines.append(
            f"{limit:>4}  {' '.join(f'{bar:3}' for bar in said)}   "
            f"{took_s:.0f} s; {max(late):.0f} points off at most, from a third on"
        )
    text = "\n".join(["time   10  20  30  40  50  60  70  80  90 100 % of it", *lines])
    return f"## The bar\n\nWhat the bar of `ortune demo --time` said:\n\n{_fence('percent', text)}"


def record_bar(limit: str) -> tuple[list[tuple[float, int]], float]:
    """Run a demo on a terminal of 80 columns.

    Returns:
        Seconds since the start and percent of every bar drawn, and seconds in all.
    """
    with tempfile.TemporaryDirectory() as folder:
        leader, follower = pty.openpty()
        command = [sys.executable, "-m", "ortune.cli.main", "demo", "-o", "demo", "--time", limit]
        began, drawn = time.monotonic(), [(0.0, 0)]
        with (
            _set_environment(TERM="xterm", COLUMNS="80"),
            subprocess.Popen(command, cwd=folder, stdout=follower, stderr=follower),
        ):
            os.close(follower)
            with suppress(OSError):  # the terminal is gone
                while text := os.read(leader, 65536):
                    now = time.monotonic() - began
                    drawn += [
                        (now, int(bar))
                        for bar in _BAR.findall(_ESCAPES.sub("", text.decode(errors="replace")))
                    ]
        os.close(leader)
        return drawn, time.monotonic() - began


def _measure_once(words: list[str]) -> Callable[[], object]:
    """Run a verb; return what prints its result, as often as it is wanted."""
    kept: list[Callable[[], object]] = []

    def keep(_: object, show: Callable[[], object]) -> None:
        kept.append(show)

    with patch.object(output, "print_result", keep), patch.object(doctor, "print_result", keep):
        run_ortune(words)
    return kept[0]


_MEASURED = "<!-- measured -->\n"


def main() -> None:
    """Write the page; what is measured stays as it is unless it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--measure", action="store_true", help="run bench, doctor and two demos, too"
    )
    former = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    measured = measure() if parser.parse_args().measure else former.partition(_MEASURED)[2]
    text = f"{_HEAD}\n{describe_answers()}\n{_MEASURED}{measured}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
