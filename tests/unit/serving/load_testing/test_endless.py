"""A server whose answer never ends stops a load test at a bound, in memory and in time."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from ortune.core.errors import OrtuneError
from ortune.serving.load_testing import client, server
from ortune.serving.load_testing.client import LOST, HttpSender, Setup
from ortune.serving.load_testing.requests import ServerUrl

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@contextmanager
def sending(head: bytes, part: bytes, pause_s: float = 0.0) -> Iterator[int]:
    """Answer every connection with a head and then a part again and again; yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    stopped = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(head)
            while not stopped.wait(pause_s):
                connection.sendall(part)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        stopped.set()
        listener.close()


@pytest.mark.parametrize(
    ("head", "part", "pause_s"),
    [
        (HEAD + b"\r\n", b"[" * 65536, 0.0),  # a body without a length
        (HEAD + b"content-length: 99999999\r\n\r\n", b" ", 0.1),  # byte by byte
    ],
)
def test_what_a_server_says_of_itself_is_bounded(
    head: bytes, part: bytes, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WHOLE_S", 1.0)
    began = time.monotonic()
    no_server = pytest.raises(OrtuneError, match="no server answers")
    with sending(head, part, pause_s) as port, no_server:
        server.Admin(ServerUrl("http", "127.0.0.1", port))
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("head", [HEAD + b"\r\n", HEAD])  # a body, and a head
def test_an_answer_is_bounded_in_bytes(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 1 << 20)

    async def send(port: int) -> tuple[str, str]:
        url = ServerUrl("http", "127.0.0.1", port)
        setup = Setup(url, (b"GET / HTTP/1.1\r\n\r\n",), False, 1, 30.0, "", "", True, 1)
        sender = HttpSender(setup)
        error = await sender.send(0)
        return error, sender.report.examples[error]

    part = b"x: " + b"y" * 4096 + b"\r\n"
    with sending(head, part) as port:
        error, text = asyncio.run(send(port))
    assert error == LOST and "1048576 bytes" in text
