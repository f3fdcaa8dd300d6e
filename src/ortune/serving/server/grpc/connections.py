"""This process's connections of gRPC: cut, and watched for bytes that become no message.

gRPC's core reads what has no window of flow control, such as headers that go on for ever, as fast
as it comes, into buffers that grow with what came without a pause; no option of it bounds them.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import stat
import struct
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

import psutil

from ortune.serving.server.logs import Journal
from ortune.serving.server.peers import identify_client

Peer: TypeAlias = tuple[str, str]
"""Host and port."""
_DESCRIPTORS = Path("/dev/fd")
LOOK_S = 0.5
GROWTH_BYTES = 64 << 20
"""Bytes by which the process grows before anything is looked at."""
_WITH_MESSAGE = 64 << 10
"""Bytes that come with a message: its call's headers, frames, and what keeps the link alive."""
_RECEIVED = struct.Struct("128xQ")
"""TCP_INFO of Linux: tcpi_bytes_received stands behind 128 bytes."""


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


def cut_connection(peer: str) -> None:
    """Shut down this process's connection to a peer; nothing where there is none any more.

    grpcio ends no call whose answer waits for its client: not when its task is cancelled, and not
    by an abort, which waits behind the answer.
    """
    _cut_peers({split_peer(peer)})


def _cut_peers(peers: Collection[Peer]) -> None:
    for connection, peer in _iterate_connections():
        if peer in peers:
            with suppress(OSError):  # it has gone meanwhile
                connection.shutdown(socket.SHUT_RDWR)


class ConnectionWatch:
    """Cuts a client off that sends on and on while nothing of it becomes a message.

    The system counts what each connection has received; it is asked only while the process grows.

    Args:
        max_bytes: Bytes beside messages that a client may send meanwhile.
        journal: Hears of who is cut off.
    """

    def __init__(self, max_bytes: int, journal: Journal) -> None:
        self._max_bytes, self._journal = max_bytes, journal
        self._messages = Counter[str]()
        self._received: dict[Peer, int] = {}
        self._beside: dict[Peer, int] = {}
        self._cut = False

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
            elif not self._cut_senders(port):
                usual = now  # it grows for another reason
            self._messages.clear()
            if self._cut:
                await asyncio.sleep(LOOK_S)  # by then gRPC has given up what it had read
                await asyncio.to_thread(_return_free_memory)
                self._cut = False

    def _cut_senders(self, port: int) -> bool:
        """Cut off who sent too much; return whether anybody may be at it."""
        before, received = self._received, dict[Peer, int]()
        messages = {split_peer(peer): size for peer, size in self._messages.items()}
        for connection, peer in _iterate_connections():
            if connection.getsockname()[1] == port:
                received[peer] = _count_received(connection)
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
        if senders:
            self._cut = True
            _cut_peers(senders)
            names = ", ".join(sorted({host for host, _ in senders}))
            self._journal.log_event("warning", f"{names} is disconnected: it sent endless headers")
        return not before or bool(self._beside)


def _count_received(connection: socket.socket) -> int:
    """Return the bytes that it has received since it was opened; 0 where the system tells none."""
    if sys.platform == "linux":
        with suppress(OSError, struct.error):
            tcp_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
            return int(_RECEIVED.unpack(tcp_info)[0])
    return 0


def _return_free_memory() -> None:
    """Give the system back what glibc keeps for later, of all its arenas."""
    with suppress(AttributeError, OSError, TypeError):  # not glibc; no such library; Windows
        ctypes.CDLL(None).malloc_trim(0)
