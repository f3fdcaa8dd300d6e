"""The application behind uvicorn, asked by clients that write their own bytes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.serving.server.http.asking import GATE, Client, client, request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ortune.serving.server.http import exchange as watch
from ortune.serving.server.http.server import HttpServer

X = np.arange(8, dtype=np.float32).reshape(2, 4)
BODY, HEADERS = request({"x": X}, True)
POST = "POST /v2/models/toy/infer HTTP/1.1\r\nHost: l\r\n"
BINARY = f"Inference-Header-Content-Length: {HEADERS['Inference-Header-Content-Length']}\r\n"
WHOLE = f"{POST}{BINARY}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
CAP = 1 << 20


@dataclass
class Wire:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, method: str = "POST") -> tuple[int, dict[str, str], bytes]:
        """Read one answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            key.lower(): value for key, _, value in (line.partition(": ") for line in head[1:-2])
        }
        size = 0 if method == "HEAD" else int(headers["content-length"])
        return int(head[0].split()[1]), headers, await self.reader.readexactly(size)

    async def ended(self) -> bool:
        """Whether the server ends the connection, with nothing more to say."""
        return await self.reader.read() == b""


Opened = Callable[[], Awaitable[Wire]]


@asynccontextmanager
async def _served(
    folder: Path, *models: str, **limits: Any
) -> AsyncIterator[tuple[Client, Opened]]:
    async with client(folder, *models, max_body=CAP, **limits) as made:
        server = HttpServer(made.app, None, 5)
        held = socket.create_server(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve([held]))
        while not server.started:
            await asyncio.sleep(0.01)
        address = held.getsockname()
        writers = []

        async def opened() -> Wire:
            wire = Wire(*await asyncio.open_connection(*address))
            writers.append(wire.writer)
            return wire

        try:
            yield made, opened
        finally:
            for one in writers:
                one.close()
            server.should_exit = True
            await task


async def test_one_connection_for_many_requests(tmp_path: Path) -> None:
    """Answered, refused, chunked, byte by byte, several at once: each gets its own answer."""
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (BODY[:3], BODY[3:])) + b"0\r\n\r\n"
    async with _served(tmp_path) as (_, opened):
        wire = await opened()
        await wire.send(WHOLE)
        status, _, body = await wire.answer()
        assert status == 200 and b'"doubled"' in body
        await wire.send(f"{POST}Content-Length: 2\r\n\r\n{{}}".encode())
        assert (await wire.answer())[0] == 400
        await wire.send(f"{POST}{BINARY}Transfer-Encoding: chunked\r\n\r\n".encode() + chunked)
        assert (await wire.answer())[2] == body
        for at in range(len(WHOLE)):
            await wire.send(WHOLE[at : at + 1])
        assert (await wire.answer())[2] == body
        await wire.send(WHOLE * 3)
        assert [(await wire.answer())[2] for _ in range(3)] == [body] * 3
        await wire.send(b"HEAD /v2/health/ready HTTP/1.1\r\nHost: l\r\n\r\n" + WHOLE)
        assert (await wire.answer("HEAD"))[0] == 200
        assert (await wire.answer())[2] == body


async def test_an_upgrade_is_not_taken_and_harms_nothing(tmp_path: Path) -> None:
    """As Java's client asks for, with every first request of a connection."""
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEA\r\n"
    asks = f"{POST}{upgrade}{BINARY}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    async with _served(tmp_path) as (_, opened):
        wire = await opened()
        await wire.send(asks)
        status, headers, _ = await wire.answer()
        assert status == 200
        if headers.get("connection") == "close":
            assert await wire.ended()
            wire = await opened()
        for sent in (WHOLE, asks, WHOLE):
            await wire.send(sent)
            status, headers, _ = await wire.answer()
            assert status == 200
            if headers.get("connection") == "close":
                wire = await opened()


async def test_a_client_that_asks_first_sends_nothing_in_vain(tmp_path: Path) -> None:
    async with _served(tmp_path) as (_, opened):
        wire = await opened()
        expects = f"Content-Length: {len(BODY)}\r\nExpect: 100-continue\r\n\r\n"
        await wire.send(f"{POST}{BINARY}{expects}".encode())
        assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await wire.send(BODY)
        assert (await wire.answer())[0] == 200
        await wire.send(
            f"{POST}Content-Length: {CAP + 1}\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert (await wire.answer())[0] == 413


async def test_a_client_that_sends_too_much_reads_why(tmp_path: Path) -> None:
    """It sends all it has before it reads: the answer is there all the same."""
    told = f"Content-Length: {8 * CAP}\r\n\r\n".encode()
    untold = b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (CAP // 2, bytes(CAP // 2))
    async with _served(tmp_path) as (_, opened):
        for head, body in ((told, bytes(8 * CAP)), (untold, chunk * 8 + b"0\r\n\r\n")):
            wire = await opened()
            await wire.send(POST.encode() + head + body)
            status, headers, text = await wire.answer()
            assert (status, headers["connection"]) == (413, "close") and b"larger than" in text
            assert await wire.ended()


async def test_clients_that_hang_are_cut_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PERIOD_S", 0.2)
    async with _served(tmp_path) as (_, opened):
        hanging = [await opened() for _ in range(20)]
        for wire in hanging:
            await wire.send(WHOLE[:-1])
        busy = await opened()
        for _ in range(20):
            await busy.send(WHOLE)
            assert (await busy.answer())[0] == 200
        for wire in hanging:
            assert (await wire.answer())[0] == 408
            assert await wire.ended()


@pytest.mark.parametrize(
    "flood", [b"0\r\nX: ", b"0\r\n" + b"X: y\r\n" * 100, b"1;", b"1;a=b\r\n0"]
)
async def test_what_is_no_data_in_a_body_is_bounded(tmp_path: Path, flood: bytes) -> None:
    """Trailers and extensions of chunks without end; small chunks are fine."""
    head = f"{POST}{BINARY}Transfer-Encoding: chunked\r\n\r\n".encode()
    small = b"".join(b"1\r\n%c\r\n" % one for one in BODY)
    async with _served(tmp_path) as (_, opened):
        wire = await opened()
        await wire.send(head + small + b"0\r\nX-Trailer: y\r\n\r\n")
        assert (await wire.answer())[0] == 200
        await wire.send(head + b"1\r\na\r\n" * 50_000)
        await wire.send(b"0\r\n\r\n")
        assert (await wire.answer())[0] == 400
        bad = await opened()
        await bad.send(head + flood)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(5):
                for _ in range(100):
                    await bad.send(b"y" * 100_000)
                    await asyncio.sleep(0)
                await bad.reader.readexactly(1 << 20)


async def test_others_have_their_turn_between_small_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that comes by bytes is parsed by slices; what follows it comes behind it."""
    parsed, parse = [], HttpToolsProtocol.data_received
    monkeypatch.setattr(
        HttpToolsProtocol,
        "data_received",
        lambda protocol, data: (parsed.append(len(data)), parse(protocol, data)),
    )
    head = f"{POST}{BINARY}Transfer-Encoding: chunked\r\n\r\n".encode()
    async with _served(tmp_path) as (_, opened):
        wire = await opened()
        small = b"".join(b"1\r\n%c\r\n" % one for one in BODY + bytes(20_000))
        await wire.send(head + small + b"0\r\n\r\n" + WHOLE)
        assert [(await wire.answer())[0] for _ in range(2)] == [400, 200]
        assert max(parsed) <= 1 << 13 < sum(parsed)


async def test_a_client_that_goes_away_is_computed_no_more(tmp_path: Path) -> None:
    async with _served(tmp_path, GATE) as (ask, opened):
        served = ask.repository.find_model(GATE)
        ask.session.go.clear()
        wires = [await opened() for _ in range(3)]
        for wire in wires:
            await wire.send(WHOLE.replace(b"toy", GATE.encode()))
        while served.running < 3:
            await asyncio.sleep(0.01)
        for wire in wires:
            wire.writer.close()
        while served.running:
            await asyncio.sleep(0.01)
        ask.session.go.set()
        again = await opened()
        await again.send(WHOLE.replace(b"toy", GATE.encode()))
        assert (await again.answer())[0] == 200


NO_HTTP = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET /v2\xff HTTP/1.1\r\n\r\n",
    b"POST /v2/models/toy/infer HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    b"POST /v2/models/toy/infer HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /v2/models/toy/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
)


async def test_what_is_no_http_harms_nobody(tmp_path: Path) -> None:
    async with _served(tmp_path) as (_, opened):
        for sent in NO_HTTP:
            wire = await opened()
            await wire.send(sent)
            head = await wire.reader.readuntil(b"\r\n")
            assert head.split()[1] == b"400"
        again = await opened()
        await again.send(WHOLE)
        assert (await again.answer())[0] == 200
