"""HTTP connections: those that hang are cut, and the end loses no request."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from ortune.serving.server.http import server as http_server
from ortune.serving.server.http.server import HttpServer

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
HELD = GET.replace(b"/ ", b"/held ", 1)
BIG = 4 << 20

release = asyncio.Event()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer after a moment, /held when `release` is set; /big with what no buffer holds."""
    await (release.wait() if scope["path"] == "/held" else asyncio.sleep(0.05))
    body = b"x" * BIG if scope["path"] == "/big" else b"ok"
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def running() -> AsyncIterator[tuple[HttpServer, int, Callable[[], Awaitable[None]]]]:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = HttpServer(app, None, 10)
    task = asyncio.create_task(server.serve([listening]))
    while not server.started:
        await asyncio.sleep(0.01)

    async def end() -> None:
        server.should_exit = True
        await task

    yield server, port, end
    await end()


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(2) == b"ok"
    return head.lower()


async def test_a_kept_connection_learns_by_an_answer_that_it_ends() -> None:
    async with running() as (server, port, end):
        links = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in links:
            writer.write(GET)
            assert b"connection: close" not in await answer(reader)
        (busy, busy_out), (kept, kept_out), (idle, _) = links
        busy_out.write(HELD)
        await asyncio.sleep(0.02)
        ending = asyncio.create_task(end())  # type: ignore[arg-type]
        while not server.ending:
            await asyncio.sleep(0.01)
        release.set()
        assert b"connection: close" in await answer(busy), "it was being computed"
        kept_out.write(GET)
        assert b"connection: close" in await answer(kept), "it came while the server ended"
        for reader in (busy, kept, idle):
            assert await reader.read() == b""
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", port)
        await ending


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:", GET + b"GET / HT"])
async def test_who_sends_no_head_is_cut(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_server, "HEAD_S", 0.2)
    async with running() as (_, port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        if sent.startswith(GET):
            await answer(reader)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)


async def test_who_reads_none_of_many_answers_is_cut_without_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("uvloop")  # it refuses to write where asyncio's loop forgets
    monkeypatch.setattr(http_server, "HEAD_S", 0.2)
    async with running() as (server, port, _):
        with socket.socket() as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.connect(("127.0.0.1", port))
            link.sendall(4 * b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n")
            while not server.server_state.tasks:
                await asyncio.sleep(0.01)
            while server.server_state.connections or server.server_state.tasks:
                await asyncio.sleep(0.01)
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


async def test_a_head_without_end_is_refused() -> None:
    async with running() as (_, port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * (200 << 10))
        assert b" 400 " in await reader.readline()
