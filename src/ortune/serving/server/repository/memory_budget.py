"""What requests and answers hold of the server's memory, and who holds it."""

import asyncio
from collections import Counter, deque
from typing import Any, TypeAlias

from numpy.typing import NDArray

from ortune.serving.protocol.refusals import RefusalKind, RequestRefused
from ortune.serving.server.client_limits import CLIENT

FULL = "Exceeds maximum queue size"


class MemoryBudget:
    """Memory for the data of requests, and for answers until their clients have taken them.

    Half of it is the most for one client (`CLIENT`), so that who takes no answers fills it for
    nobody else.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.used_bytes = max_bytes, 0
        self._of_clients = Counter[str]()

    def reserve_bytes(self, size: int) -> None:
        """Hold so many bytes. Raises RequestRefused: there is no room for them beside others."""
        client = CLIENT.get()
        if self.used_bytes and self.used_bytes + size > self.max_bytes:
            raise RequestRefused(FULL, RefusalKind.UNAVAILABLE)
        client_bytes = self._of_clients[client] if client else 0
        if client_bytes and client_bytes + size > self.max_bytes // 2:
            raise RequestRefused(
                "this client has too much under way",
                RefusalKind.UNAVAILABLE,
                "take the answers before more is asked",
            )
        self._hold_bytes(size)

    def hold_part(self, size: int, alone: int) -> None:
        """Hold a part of a body, here already; the whole of one may take `alone` bytes.

        Raises RequestRefused: there is no room for it; it is held all the same.
        """
        self._hold_bytes(size)
        client = CLIENT.get()
        client_bytes = self._of_clients[client] if client else 0
        if self.used_bytes > max(alone, self.max_bytes) or client_bytes > max(
            alone, self.max_bytes // 2
        ):
            raise RequestRefused("too many large requests at once", RefusalKind.UNAVAILABLE)

    def release_bytes(self, size: int) -> None:
        """Hold so many bytes less, of the same client."""
        self._hold_bytes(-size)
        client = CLIENT.get()
        if not self._of_clients[client]:
            del self._of_clients[client]

    def _hold_bytes(self, size: int) -> None:
        self.used_bytes += size
        self._of_clients[CLIENT.get()] += size


TURN_S = 5.0
"""Seconds after which the first of those that wait for room goes on without it: its client may
read no other answer before."""
_Line: TypeAlias = "deque[tuple[asyncio.Future[None], int]]"


class AnswerRoom:
    """Room for answers that a connection has not taken yet; further ones stand in line for it.

    gRPC copies an answer as a whole, in the event loop: of who takes none, only so many are.
    `most` are a connection's bytes; one answer alone may have more.
    """

    def __init__(self, most: int) -> None:
        self._most, self._untaken = most, Counter[str]()
        self._lines: dict[str, _Line] = {}

    async def enter(self, peer: str, size: int) -> None:
        """Wait until a connection has room for an answer of some bytes, and take it.

        A request is of 0 bytes: it is not computed while answers wait.
        """
        line = self._lines.get(peer)
        if line is None:
            if self._has_room(peer, size):
                self._take_room(peer, size)
                return
            line = self._lines[peer] = deque()
            self._set_timer(peer, line)
        turn = asyncio.get_running_loop().create_future()
        line.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.leave(peer, size)
            raise

    def leave(self, peer: str, size: int) -> None:
        """Give room back: the client has the answer, or is gone."""
        self._take_room(peer, -size)
        self._let_in(peer)

    def _has_room(self, peer: str, size: int) -> bool:
        untaken = self._untaken.get(peer, 0)
        return not untaken or untaken + max(size, 1) <= self._most

    def _take_room(self, peer: str, size: int) -> None:
        self._untaken[peer] += size
        if not self._untaken[peer]:
            del self._untaken[peer]

    def _let_in(self, peer: str, *, first: bool = False) -> None:
        """Let in those who have room, in their order; the first of them also without."""
        line = self._lines.get(peer, deque())
        while line:
            turn, size = line[0]
            if not turn.done():
                if not first and not self._has_room(peer, size):
                    return
                self._take_room(peer, size)
                turn.set_result(None)
                first = False
            line.popleft()
        self._lines.pop(peer, None)

    def _set_timer(self, peer: str, line: _Line) -> None:
        def let_first_in() -> None:
            if self._lines.get(peer) is line:
                self._let_in(peer, first=True)
                self._set_timer(peer, line)

        asyncio.get_running_loop().call_later(TURN_S, let_first_in)


_TEXT_BYTES = 41
"""What a `bytes` object takes beside its content: its head, and the pointer to it."""
_COUNTED = 1 << 16
"""Texts of a tensor whose lengths are counted; of more, which take longer, their heads alone."""


def count_held_bytes(array: NDArray[Any]) -> int:
    """Return what a tensor takes in memory, about that for texts."""
    if array.dtype.kind != "O":
        return array.nbytes
    texts = array.ravel().tolist() if array.size <= _COUNTED else ()
    return array.size * _TEXT_BYTES + sum(map(len, texts))
