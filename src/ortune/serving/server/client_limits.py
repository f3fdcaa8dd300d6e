"""What each client may have open, so that none locks out the others."""

from collections import Counter
from contextvars import ContextVar
from functools import lru_cache
from ipaddress import ip_address, ip_network

from ortune.serving.protocol.refusals import RefusalKind, RequestRefused

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""Whose request is answered; empty where nobody's is."""


@lru_cache(1 << 12)
def identify_client(host: str) -> str:
    """Return what counts as one client: of version 6 a network, as each has 2**64 addresses."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(address.ipv4_mapped or ip_network((address, 64), strict=False))


class PeerLimit:
    """Counts what is open, by who opened it: at most so many of all clients, and of one."""

    def __init__(self, most: int, of_one: int, noun: str) -> None:
        self._most, self._of_one, self._noun = most, of_one, noun
        self._open = Counter[str]()
        self._total = 0

    def open_one(self, client: str) -> None:
        """Count one more; RequestRefused where it, or all together, have as many as may be."""
        if self._open[client] >= self._of_one or self._total >= self._most:
            whose = "this client has" if self._open[client] >= self._of_one else "there are"
            raise RequestRefused(
                f"{whose} too many {self._noun} at once",
                RefusalKind.UNAVAILABLE,
                "wait for answers before more is asked",
            )
        self._open[client] += 1
        self._total += 1

    def close_one(self, client: str) -> None:
        """Count one less."""
        self._open[client] -= 1
        self._total -= 1
        if not self._open[client]:
            del self._open[client]
