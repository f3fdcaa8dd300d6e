"""What a command line may answer: an exit code, at most two lines of error, no raw control."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ortune.cli.main import BAD, main
from tests.fuzz.target import Broken

CODES = (0, 1, 2, 3)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_LONGEST = 4000
"""Characters of an error's two lines: what is longer nobody reads."""


@dataclass(frozen=True)
class Answer:
    """What a command gave back."""

    code: int
    out: str
    err: str


def answer(words: Sequence[str]) -> Answer:
    """Run a command line in this process, with streams as a terminal's.

    Raises:
        Broken: See `check`.
    """
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)
        for errors in ("strict", "backslashreplace")
    )
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    _foreseen()
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return check(Answer(code, *texts), alone=True)


def _foreseen() -> None:
    """Refuse an answer that stands for an exception: the command line tells of it in two lines.

    Raises:
        Broken: With the traceback that was written down.
    """
    for log in Path(tempfile.gettempdir()).glob("ortune-traceback-*.txt"):
        text = log.read_text()
        places = re.findall(r'File ".*/src/ortune/(.*)", line \d+, in (.*)', text)
        kind = text.strip().splitlines()[-1].partition(":")[0]
        raise Broken(f"unforeseen {kind} {' '.join(places[-1]) if places else ''}: {text[-4000:]}")


def check(found: Answer, *, alone: bool) -> Answer:
    """Return the answer when it keeps the rules.

    Args:
        found: The answer.
        alone: Nothing may stand before an error's two lines, as nothing was begun.

    Raises:
        Broken: It is a traceback, no known exit code, another number of lines or raw control
            characters.
    """
    if "Traceback (most recent call last)" in found.err:
        raise Broken(f"a traceback: {found.err[-3000:]}")
    if found.code not in CODES:
        raise Broken(f"an unknown exit code: {found.code}: {found.err[-1000:]!r}")
    for name, text in (("stdout", found.out), ("stderr", found.err)):
        if raw := _CONTROL.search(text):
            near = text[max(0, raw.start() - 60) : raw.end() + 60]
            raise Broken(f"a control character reaches {name}: {near!a}")
    if found.code != BAD:
        return found
    lines = found.err.splitlines()
    if len(lines) < 2 or not lines[-1].startswith("  fix: ") or not lines[-2].startswith("ortune"):
        raise Broken(f"an error that is not two lines: {found.err[-500:]!a}")
    if alone and len(lines) != 2:
        raise Broken(f"an error with more before it: {found.err[-500:]!a}")
    if sum(map(len, lines[-2:])) > _LONGEST:
        raise Broken(f"an error of too many characters: {found.err[:200]!a}")
    return found
