"""Clients that do not take their answers: cut off by a rate, as over HTTP.

grpcio ends no call whose answer waits for its client: not when its task is cancelled, and not by
an abort, which waits behind the answer. So the client's connection is shut down.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from ortune.serving.server.http.exchange import PERIOD_S, RATE

_DESCRIPTORS = Path("/dev/fd")


def start_watch(peer: str, size: int) -> asyncio.TimerHandle:
    """Cut a peer off unless the handle is cancelled by the time that an answer may take.

    Args:
        peer: As gRPC spells it: ``ipv4:127.0.0.1:50123``.
        size: Bytes of the answer.
    """
    seconds = PERIOD_S + size / RATE
    return asyncio.get_running_loop().call_later(seconds, cut_connection, peer)


@contextmanager
def cut_if_slow(peer: str, size: int) -> Iterator[None]:
    """Cut a peer off that has not taken an answer when the time for it is over."""
    timer = start_watch(peer, size)
    try:
        yield
    finally:
        timer.cancel()


def cut_connection(peer: str) -> None:
    """Shut down this process's connection to a peer; nothing where there is none any more."""
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    for descriptor in list(_DESCRIPTORS.iterdir()) if _DESCRIPTORS.is_dir() else ():
        with suppress(OSError, ValueError):
            number = int(descriptor.name)
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                address = connection.getpeername()
                if str(address[0]) == host.strip("[]") and str(address[1]) == port:
                    connection.shutdown(socket.SHUT_RDWR)
