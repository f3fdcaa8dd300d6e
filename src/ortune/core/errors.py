"""Errors a user can act on. Anything else that escapes is a bug, told in two lines as well."""

import enum
import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path

_LONGEST = 300
_NAMED = 24
"""Names that a message lists at most."""
_REASON = 120
"""Characters of a bug's own words that are told: the traceback has the rest."""


class OrtuneError(Exception):
    """Error that names the wrong value and says what to do next.

    Names from files come into these lines: what would steer a terminal is spelled out.

    Attributes:
        what: One line that names the offending value.
        fix: One line that says what to change.
    """

    def __init__(self, what: str, *, fix: str) -> None:
        what, fix = escape_control_chars(what), escape_control_chars(fix)
        super().__init__(f"{what}\n  fix: {fix}")
        self.what = what
        self.fix = fix

    def __reduce__(self) -> tuple[object, tuple[str], dict[str, object]]:
        """Let it come back from a pool of processes, which would break on the keyword."""
        return partial(type(self), fix=self.fix), (self.what,), vars(self)


class UnknownPlugin(OrtuneError):
    """A name that no file in the folder has."""


class BadSettings(OrtuneError):
    """A plugin was given a field it lacks, or a value of the wrong type."""


class BackendMissing(OrtuneError):
    """The backend cannot run on this machine."""


class BadModel(OrtuneError):
    """The file is not a model that can be used, or a step broke an invariant."""


class BadData(OrtuneError):
    """The samples, labels or outputs cannot be used with this model."""


class Refused(OrtuneError):
    """A step found nothing it may do, and says why."""


class NoPlanFits(OrtuneError):
    """Nothing is wrong, but no plan does what was asked: the exit code is 1, not 2."""


class Interruption(enum.StrEnum):
    """What ended a piece of work from outside, so that nothing is known of the work itself."""

    KILLED = "killed from outside"
    MEMORY = "no memory left on the machine"
    DISK = "the disk was full"
    TIME = "no time left"
    LINK = "the connection to the device broke"
    BUSY = "other processes took the CPU"


class CutShort(OrtuneError):
    """Something from outside ended the work: done again it may well succeed."""

    def __init__(
        self, what: str, *, fix: str, interruption: Interruption = Interruption.KILLED
    ) -> None:
        super().__init__(what, fix=fix)
        self.interruption = interruption


class OutOfTime(CutShort):
    """The time that a piece of work may take is up: `ortune.core.progress.time_limit`."""

    def __init__(self, what: str, *, fix: str) -> None:
        super().__init__(what, fix=fix, interruption=Interruption.TIME)


class Unexpected(OrtuneError):
    """A bug: an exception that nobody foresaw; it is chained to the one that it stands for."""


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of the system that say so: of the disk, and of a person's share of it."""
_SHORT_WRITE = re.compile(r"\b\d+ requested and \d+ written")
"""NumPy's words, without the system's number, where an array was written in part."""


def find_interruption(error: BaseException) -> Interruption | None:
    """Return what from outside is behind an error, however often it was wrapped; else None.

    An exception that says so itself has an attribute `interruption`. A runtime's exception has
    the words of the system alone.
    """
    seen: BaseException | None = error
    chain: list[BaseException] = []  # one that was raised from itself would have no end
    while seen is not None and seen not in chain:
        chain.append(seen)
        if interruption := getattr(seen, "interruption", None):
            return Interruption(interruption)
        full = isinstance(seen, OSError) and seen.errno in _DISK_FULL
        if full or os.strerror(errno.ENOSPC) in str(seen) or _SHORT_WRITE.search(str(seen)):
            return Interruption.DISK
        seen = seen.__cause__ or seen.__context__
    return None


def make_unexpected_error(
    error: BaseException, arguments: Iterable[object], fix: str
) -> Unexpected:
    """Return the two lines in the place of a bug.

    Args:
        arguments: What the verb was told, in words or lists of them; files among it are named.
        fix: Where the traceback is.
    """
    names = ", ".join(dict.fromkeys(_find_files(arguments)))
    reason = f"{type(error).__name__}: {summarize_error(error, _REASON)}"
    return Unexpected(f"{names}{': ' if names else ''}unexpected {reason}", fix=fix)


@contextmanager
def wrap_unexpected_errors(arguments: Iterable[object]) -> Iterator[None]:
    """Turn an exception that nobody foresaw into `Unexpected`, chained to it."""
    try:
        yield
    except (OrtuneError, OSError):
        raise
    except Exception as error:
        fix = "report it with the traceback above and, where you may, these files"
        raise make_unexpected_error(error, arguments, fix) from error


def _find_files(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _find_files(value)
        elif isinstance(value, (str, Path)):
            with suppress(OSError, ValueError):
                if Path(value).is_file():
                    yield str(value)


def escape_control_chars(text: str) -> str:
    r"""Spell out control characters, such as ``\x1b``, and what reverses a line or breaks it.

    Names in files are a stranger's; a terminal obeys them. Tabs and ends of lines stay.
    """
    return _STEERING.sub(_escape_match, text)


_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, separators of lines, marks of direction, halves of surrogate pairs."""


def _escape_match(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def with_article(noun: str) -> str:
    """Put "a" or "an" before a noun, by its sound: an integer, a user, an LSTM, a MatMul."""
    spelled = noun[:2].isupper() or not noun[1:2].isalpha()
    vowel = noun[:1] in "AEFHILMNORSX" if spelled else noun[:1].lower() in "aeiou"
    if re.match(r"(?i)(uni[^nm]|us[eua]|eu|one\b)", noun):
        vowel = False
    return f"{'an' if vowel else 'a'} {noun}"


def summarize_error(error: BaseException | str, longest: int = _LONGEST) -> str:
    """Return in one line what a library's exception says, or its type where it says nothing.

    Error codes, source locations, signatures of C++ functions and lists of a node's types are
    left out: the reason stands behind them.
    """
    text, at = str(error).partition("\nStacktrace")[0], 0
    while match := _WHERE.search(text, at):
        at = match.start()
        tail = text[match.end() :]
        text = text[:at] + tail[_signature_end(tail) :]
    for pattern, kept in _NOISE:
        text = pattern.sub(kept, text)
    text = " ".join(text.split()).strip(" :")
    silent = "" if isinstance(error, str) else type(error).__name__
    return shorten_text(text, longest) or silent


def suggest_names(word: str, names: Iterable[str]) -> str:
    """Say which of some names to write in place of a word, and what all of them are."""
    choices = [*dict.fromkeys(names)]
    near = find_nearest(word, choices)
    shown = ", ".join(choices[:_NAMED]) + (", ..." if len(choices) > _NAMED else "")
    if not near:
        return f"use one of: {shown}" if choices else ""
    more = f"; all are: {shown}" if len(choices) > len(near) else ""
    return f"write {' or '.join(near)}{more}"


def find_nearest(word: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Return the names that a misspelled word may stand for, the likeliest first."""
    by_form = {_normalize_name(name): name for name in reversed([*names])}
    form = _normalize_name(word)
    if form in by_form:
        return [by_form[form]]
    close = get_close_matches(form, by_form, n=most, cutoff=0.65)
    inside = [key for key in by_form if len(form) > 2 and (form in key or key in form)]
    return [by_form[key] for key in [*dict.fromkeys([*close, *sorted(inside, key=len)])][:most]]


def _normalize_name(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def shorten_text(text: str, longest: int) -> str:
    """Cut a text behind a sentence, else behind a word, and say by ``...`` that it goes on."""
    if len(text) <= longest:
        return text
    head = text[: longest - len(" ...")]
    sentence = max((match.end() for match in re.finditer(r"[.;!?](?= )", head)), default=0)
    at = sentence if sentence > longest // 2 else max(head.rfind(" "), 0)
    return f"{(head[:at] or head).rstrip(' ,;:')} ..."


_WHERE = re.compile(r"(?:[\w.+-]*/)*[\w+-]+\.(?:cc|cpp|cu|cuh|h|hpp|inl)[:(]\d+\)?:?\s?")
_NOISE = (
    (re.compile(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : "), ""),
    (re.compile(r"Load model from .+? failed:"), ""),
    (re.compile(r"Exception (?:from|during initialization:)\s"), ""),
    (re.compile(r"Check '.*?' failed at\s", re.DOTALL), ""),
    (re.compile(r"\w+: Assertion `.*?` failed: "), ""),
    (re.compile(r'(In Node, \("[^"]*", \w+).*? -> .*? , Error ', re.DOTALL), r"\1): "),
)


def _signature_end(text: str) -> int:
    """Return where the signature of a C++ function that begins a text ends, 0 without one."""
    match = re.match(r"[^().'\"]*::[^().'\"]*(?=\()", text)
    if match is None:
        return 0
    end = _find_bracket_end(text, match.end())
    while more := re.match(r" const\b|::<?\w+>?(?=\()| (?=\[with )", text[end:]):
        end += more.end()
        end = _find_bracket_end(text, end) if text[end : end + 1] in ("(", "[") else end
    return end


def _find_bracket_end(text: str, start: int) -> int:
    """Return the place behind the bracket that closes the one at `start`."""
    opening = text[start]
    closing = {"(": ")", "[": "]"}[opening]
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == opening) - (text[at] == closing)
        if not depth:
            return at + 1
    return len(text)
