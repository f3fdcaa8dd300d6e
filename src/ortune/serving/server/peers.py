"""What each client may have open, so that none locks out the others."""

from __future__ import annotations

from collections import Counter

from ortune.serving.protocol.status import RefusalKind, RequestRefused


class PeerLimit:
    """Counts what is open, by the address of who opened it.

    Args:
        most: Of all addresses together.
        of_one: Of one address.
        noun: What is counted, for messages.
    """

    def __init__(self, most: int, of_one: int, noun: str) -> None:
        self._most, self._of_one, self._noun = most, of_one, noun
        self._open = Counter[str]()
        self._total = 0

    def open_one(self, host: str) -> None:
        """Count one more.

        Raises:
            RequestRefused: It has as many as it may, or all together have.
        """
        if self._open[host] >= self._of_one or self._total >= self._most:
            whose = "this client has" if self._open[host] >= self._of_one else "there are"
            raise RequestRefused(
                f"{whose} too many {self._noun} at once",
                RefusalKind.UNAVAILABLE,
                "wait for answers before more is asked",
            )
        self._open[host] += 1
        self._total += 1

    def close_one(self, host: str) -> None:
        """Count one less."""
        self._open[host] -= 1
        self._total -= 1
        if not self._open[host]:
            del self._open[host]
