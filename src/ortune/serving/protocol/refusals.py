"""What becomes of a request that is not answered, in the words of HTTP and of gRPC."""

import re
from enum import Enum

from ortune.core.errors import BadData, OrtuneError, shorten_text, summarize_error

_LONGEST = 500
"""Characters of an error that go over the wire: names in it are the client's."""
_FOLDERS = re.compile(r"""(?<![^\s'"(=:])(?:[A-Za-z]:)?[\\/](?:[\w.+@~-]+[\\/])*(?=[\w.+@~-])""")
"""What stands before the last part of an absolute path."""


class RefusalKind(Enum):
    """A kind of refusal: its status over ``http``, and in ``grpc.StatusCode`` by name."""

    INVALID = 400, "INVALID_ARGUMENT"
    UNAUTHENTICATED = 401, "UNAUTHENTICATED"
    FORBIDDEN = 403, "PERMISSION_DENIED"
    NOT_FOUND = 404, "NOT_FOUND"
    TOO_LARGE = 413, "RESOURCE_EXHAUSTED"
    CANCELLED = 499, "CANCELLED"
    INTERNAL = 500, "INTERNAL"
    UNSUPPORTED = 501, "UNIMPLEMENTED"
    UNAVAILABLE = 503, "UNAVAILABLE"
    TIMED_OUT = 504, "DEADLINE_EXCEEDED"

    def __init__(self, http: int, grpc: str) -> None:
        self.http = http
        self.grpc = grpc


class RequestRefused(OrtuneError):
    """A request not answered, as which kind, and what to do, which may be empty."""

    def __init__(
        self, problem: str, status: RefusalKind = RefusalKind.INVALID, fix: str = ""
    ) -> None:
        super().__init__(shorten_text(problem[: 2 * _LONGEST], _LONGEST), fix=fix)
        self.status = status

    @property
    def text(self) -> str:
        """One line for the wire."""
        return f"{self.what.rstrip('.')}. {self.fix}" if self.fix else self.what

    def __str__(self) -> str:
        return self.text


def make_refusal(error: BaseException) -> RequestRefused:
    """Return what a client is told of an error: its own fault in full, ours in one clean line.

    Folders of this machine are left out. It is not the error itself: that holds the frames it went
    through, and with them the request, until garbage is collected.
    """
    if isinstance(error, RequestRefused):
        return RequestRefused(error.what, error.status, error.fix)
    if isinstance(error, BadData):
        return RequestRefused(error.what, fix=error.fix)
    if isinstance(error, TimeoutError):
        return RequestRefused("Request timeout expired", RefusalKind.TIMED_OUT)
    reason = error.what if isinstance(error, OrtuneError) else summarize_error(error)
    return RequestRefused(_FOLDERS.sub("", reason), RefusalKind.INTERNAL)
