"""Who may ask: bearer tokens from a file, compared in constant time."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterable
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from ortune.core.errors import BadSettings

_MOST = 1 << 16
"""Bytes of a file of tokens."""
_TOKEN = re.compile(r"[\x21-\x7e]{8,4096}")
_MAKE = "write one a line; `openssl rand -hex 32` makes one"


class Access:
    """The tokens that are taken; without any, everybody may ask.

    Digests are kept and compared, so that neither a core dump nor the time of a refusal tells one.
    """

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self._digests = tuple(sha256(token.encode()).digest() for token in tokens)

    @property
    def open(self) -> bool:
        """Whether everybody may ask."""
        return not self._digests

    def allows(self, header: str | None) -> bool:
        """Whether a request with this ``authorization`` header, ``Bearer TOKEN``, may be answered.

        All tokens are compared, whichever fits.
        """
        if not self._digests:
            return True
        scheme, _, token = (header or "").partition(" ")
        digest = sha256(token.strip().encode(errors="replace")).digest()
        fits = [compare_digest(one, digest) for one in self._digests]
        return any(fits) and scheme.lower() == "bearer"


def access(path: str | Path | None, warn: Callable[[str], None]) -> Access:
    """Read a file with a token a line; lines that begin with # and empty ones are passed over.

    Several tokens let one be replaced by another while both are in use.

    Args:
        warn: Is told when everybody may read the file.

    Raises:
        BadSettings: It cannot be read, has no token, or one that no header can carry. No line of
            it is told.
    """
    if path is None:
        return Access()
    path = Path(path)
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST + 1).decode("ascii").splitlines()
            mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no plain text"
        raise BadSettings(f"--token-file {path}: {why}", fix=_MAKE) from None
    tokens = [line.strip() for line in lines if line.strip() and line.lstrip()[0] != "#"]
    if not tokens or sum(map(len, lines)) > _MOST:
        what = "has no token" if not tokens else f"is larger than {_MOST} bytes"
        raise BadSettings(f"--token-file {path} {what}", fix=_MAKE)
    for number, line in enumerate(lines, 1):
        if line.strip() in tokens and not _TOKEN.fullmatch(line.strip()):
            raise BadSettings(
                f"--token-file {path}: line {number} is no token of 8 characters or more "
                "without spaces",
                fix=_MAKE,
            )
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        warn(f"{path} may be read or written by everybody: chmod 600 {path}")
    return Access(tokens)
