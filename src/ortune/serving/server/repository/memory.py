"""What requests and answers hold of the server's memory, and who holds it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from numpy.typing import NDArray

from ortune.serving.protocol.status import RefusalKind, RequestRefused
from ortune.serving.server.peers import CLIENT

FULL = "Exceeds maximum queue size"


class MemoryBudget:
    """Memory for the data of requests, and for answers until their clients have taken them.

    Half of it is the most for one client (`CLIENT`), so that who takes no answers fills it for
    nobody else.

    Attributes:
        max_bytes: Bytes.
        used_bytes: Of them.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.used_bytes = max_bytes, 0
        self._of_clients = Counter[str]()

    def reserve_bytes(self, size: int) -> None:
        """Hold so many bytes.

        Raises:
            RequestRefused: There is no room for them beside others.
        """
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
        """Hold a part of a body, which is here already; the whole of one may take `alone` bytes.

        Raises:
            RequestRefused: There is no room for it; it is held all the same.
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


class AnswerRoom:
    """Room for the answers that a connection has not taken yet: further ones wait for it.

    gRPC copies an answer as a whole, in the event loop: of who takes none only so many are.

    Args:
        most: Bytes of one connection; one answer alone may have more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._untaken, self._entering = Counter[str](), Counter[str]()
        self._turns: dict[str, list[asyncio.Future[None]]] = {}

    def is_full(self, peer: str) -> bool:
        """Whether a connection has to take answers before what it asks for next is computed."""
        return self._entering[peer] > 0 or self._untaken[peer] >= self._most

    async def wait_until_free(self, peer: str) -> None:
        """Return when it is not full."""
        while self.is_full(peer):
            await self._wait_turn(peer)

    async def enter(self, peer: str, size: int) -> None:
        """Wait until a connection has room for an answer, and take it."""
        self._entering[peer] += 1
        try:
            while self._untaken[peer] and self._untaken[peer] + size > self._most:
                await self._wait_turn(peer)
            self._untaken[peer] += size
        finally:
            self._entering[peer] -= 1
            self._give_turns(peer)

    def leave(self, peer: str, size: int) -> None:
        """Give room back: the client has the answer, or is gone."""
        self._untaken[peer] -= size
        self._give_turns(peer)

    async def _wait_turn(self, peer: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._turns.setdefault(peer, []).append(turn)
        await turn

    def _give_turns(self, peer: str) -> None:
        """Have all that wait look again, in the order in which they came."""
        for counter in (self._untaken, self._entering):
            if not counter[peer]:
                del counter[peer]
        for turn in self._turns.pop(peer, ()):
            if not turn.done():
                turn.set_result(None)


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
