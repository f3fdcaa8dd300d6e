"""This process's connections of gRPC: cut, and watched for bytes that become no message.

gRPC's core reads what has no window of flow control, such as headers that go on for ever, as fast
as it comes, into buffers that grow with what came without a pause; no option of it bounds them.
And it ends no call whose answer waits for its client: not when its task is cancelled, and not by
an abort, which waits behind the answer.

Thousands of connections are looked through in a thread: it takes long.
"""

import asyncio
import os
import socket
import stat
import struct
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

import psutil

from ortune.core.hardware.memory import trim_heap
from ortune.serving.server.client_limits import identify_client
from ortune.serving.server.http.exchange import PERIOD_S, RATE
from ortune.serving.server.logs import Journal

Peer: TypeAlias = tuple[str, str]
"""Host and port."""
_DESCRIPTORS = Path("/dev/fd")
LOOK_S = 0.5
GROWTH_BYTES = 64 << 20
"""Bytes by which the process grows before anything is looked at."""
_WITH_MESSAGE = 64 << 10
"""Bytes that come with a message: its call's headers, frames, and what keeps the link alive."""
_TCP_INFO = struct.Struct("120xQQ")
"""TCP_INFO of Linux: tcpi_bytes_acked and tcpi_bytes_received stand behind 120 bytes."""


def split_peer(peer: str) -> Peer:
    """Return host and port of a peer as gRPC spells it: ``ipv6:%5B::1%5D:50123``."""
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    return host.strip("[]"), port


def _iterate_connections() -> Iterator[tuple[socket.socket, Peer]]:
    """Yield each connection of this process, open for the moment, with its peer."""
    for descriptor in list(_DESCRIPTORS.iterdir()) if _DESCRIPTORS.is_dir() else ():
        with suppress(OSError, ValueError):
            number = int(descriptor.name)
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    host, port, *_ = connection.getpeername()
                    host = host.removeprefix("::ffff:")  # version 4 in 6
                    yield connection, (host, str(port))


def _cut_peers(peers: Collection[Peer]) -> None:
    for connection, peer in _iterate_connections():
        if peer in peers:
            with suppress(OSError):  # it has gone meanwhile
                connection.shutdown(socket.SHUT_RDWR)


class ConnectionWatch:
    """Cuts a client off that sends `max_bytes` while nothing of it becomes a message.

    The system counts what each connection has received; it is asked only while the process grows.
    """

    def __init__(self, max_bytes: int, journal: Journal) -> None:
        self._max_bytes, self._journal = max_bytes, journal
        self._messages = Counter[str]()
        self._received: dict[Peer, int] = {}
        self._beside: dict[Peer, int] = {}

    def count_message(self, peer: str, size: int) -> None:
        """Take note of a message of so many bytes."""
        self._messages[peer] += size + _WITH_MESSAGE

    async def run(self, port: int) -> None:
        """Watch the connections to a port of this process until cancelled."""
        process = psutil.Process()
        usual = process.memory_info().rss
        while True:
            await asyncio.sleep(LOOK_S)
            now = process.memory_info().rss
            usual = min(usual, now)
            if now < usual + GROWTH_BYTES:
                self._received, self._beside = {}, {}
                self._messages.clear()
            else:
                messages = {split_peer(peer): size for peer, size in self._messages.items()}
                self._messages.clear()
                before = self._received
                senders = await asyncio.to_thread(self._cut_senders, port, messages)
                if before and not self._beside:
                    usual = now  # it grows for another reason
                if senders:
                    names = ", ".join(sorted({host for host, _ in senders}))
                    self._journal.log_event(
                        "warning", f"{names} is disconnected: it sent endless headers"
                    )
                    await asyncio.sleep(LOOK_S)  # by then gRPC has given up what it had read
                    await asyncio.to_thread(trim_heap)

    def _cut_senders(self, port: int, messages: Mapping[Peer, int]) -> Collection[Peer]:
        """Cut off who sent too much beside messages of so many bytes; return them."""
        before, received = self._received, dict[Peer, int]()
        for connection, peer in _iterate_connections():
            if connection.getsockname()[1] == port:
                received[peer] = _count_bytes(connection)[1]
        beside = {
            peer: self._beside.get(peer, 0) + size - before.get(peer, size) - messages.get(peer, 0)
            for peer, size in received.items()
        }
        self._received = received
        self._beside = {peer: size for peer, size in beside.items() if size > 0}
        clients = Counter[str]()
        for peer, size in self._beside.items():
            clients[identify_client(peer[0])] += size
        senders = set[Peer]()
        for peer, size in sorted(self._beside.items(), key=lambda item: -item[1]):
            client = identify_client(peer[0])
            if clients[client] > self._max_bytes:
                clients[client] -= size
                senders.add(peer)
        _cut_peers(senders)
        return senders


@dataclass(eq=False, slots=True)
class _Answer:
    """One that its client has not taken yet, of so many bytes."""

    peer: Peer
    size: int
    since: float


class AnswerWatch:
    """Cuts a client off that takes its answers too slowly: less than `RATE` in `PERIOD_S`.

    Where the system does not count what a client takes, an answer as a whole has its time.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._untaken = set[_Answer]()

    def begin(self, peer: str, size: int) -> Callable[[], None]:
        """Expect that an answer is taken; return what is called when it is, or never will be."""
        answer = _Answer(split_peer(peer), size, asyncio.get_running_loop().time())
        self._untaken.add(answer)
        return partial(self._untaken.discard, answer)

    @contextmanager
    def expect_taken(self, peer: str, size: int) -> Iterator[None]:
        """Expect that an answer is taken within the block."""
        end = self.begin(peer, size)
        try:
            yield
        finally:
            end()

    async def run(self) -> None:
        """Watch until cancelled."""
        loop, before, looked = asyncio.get_running_loop(), dict[Peer, int](), 0.0
        while True:
            await asyncio.sleep(PERIOD_S)
            now = loop.time()
            waiting = {answer: now - answer.since for answer in self._untaken}
            peers = {answer.peer for answer, age in waiting.items() if age >= PERIOD_S}
            late = {
                answer.peer
                for answer, age in waiting.items()
                if age > PERIOD_S + answer.size / RATE
            }
            counts = await asyncio.to_thread(_count_taken, peers) if peers else {}
            late |= {
                peer
                for peer, size in counts.items()
                if peer in before and size - before[peer] < RATE * (now - looked)
            }
            before, looked = counts, now
            if late:
                await asyncio.to_thread(_cut_peers, late)
                names = ", ".join(sorted({host for host, _ in late}))
                self._journal.log_event(
                    "warning", f"{names} is disconnected: it did not read its answers"
                )


def _count_taken(peers: Collection[Peer]) -> dict[Peer, int]:
    """Return the bytes that each has taken since it connected, where the system counts them."""
    counted = {peer: _count_bytes(connection)[0] for connection, peer in _iterate_connections()}
    return {peer: size for peer, size in counted.items() if size and peer in peers}


def _count_bytes(connection: socket.socket) -> tuple[int, int]:
    """Return the bytes that its peer has taken and sent; zeros where the system tells none."""
    if sys.platform == "linux":
        with suppress(OSError, struct.error):
            tcp_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            acked_bytes, received_bytes = _TCP_INFO.unpack(tcp_info)
            return int(acked_bytes), int(received_bytes)
    return 0, 0
