"""HTTP clients that do not read: their answers count until they are sent, and a rate is asked."""

import asyncio
import json
import socket
from pathlib import Path

import onnx
import pytest

from ortune.bundle.engine.load import load_engine
from ortune.serving.server.http import server as http_server
from ortune.serving.server.http.app import App
from ortune.serving.server.http.server import HttpServer
from ortune.serving.server.listeners import Access
from ortune.serving.server.logs import Journal
from ortune.serving.server.repository.repository import Repository
from ortune.serving.server.repository.served import Limits
from ortune.serving.server.repository.sources import ModelSource

WIDE = """<ir_version: 8, opset_import: ["": 17]>
g (float[1] x, int64[1] width) => (float[n] y) { y = Expand(x, width) }
"""
WIDTH = 8_000_000
BODY = json.dumps(
    {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]},
            {"name": "width", "datatype": "INT64", "shape": [1], "data": [WIDTH]},
        ],
        "parameters": {"binary_data_output": True},
    }
).encode()
HEAD = b"POST /v2/models/wide/infer HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(BODY)


async def settled(condition: object, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("trickle", [False, True])
async def test_an_unread_answer_is_counted_then_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trickle: bool
) -> None:
    """Answers of 32 MB where half of 80 MB is one client's: another is answered meanwhile.

    A client that reads on, too slowly, is cut too.
    """
    monkeypatch.setattr(http_server, "HEAD_S", 2.0)  # looked at each second
    onnx.save(onnx.parser.parse_model(WIDE), tmp_path / "wide.onnx")

    models = Repository(
        [ModelSource("wide", tmp_path / "wide.onnx")],
        lambda file: load_engine(file, on="cpu(threads=1)"),
        limits=Limits(max_held=80_000_000),
    )
    await models.start()
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(App(models, Access(), Journal()), None, 1.0)
    serving = asyncio.create_task(server.serve([listener]))
    await settled(lambda: server.started)
    port = listener.getsockname()[1]
    clients = []
    for _ in range(6):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.setblocking(False)
        client.sendall(HEAD + BODY)
        clients.append(client)
    await settled(lambda: models.memory.used_bytes >= 32_000_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
    writer.write(HEAD + BODY)
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    writer.close()
    most, until = 0, asyncio.get_running_loop().time() + 25
    while server.open_connections and asyncio.get_running_loop().time() < until:
        most = max(most, models.memory.used_bytes)
        await asyncio.sleep(0.2)
        for client in clients if trickle else ():
            try:
                if b"HTTP/1.1 503" in client.recv(1000):
                    client.close()
            except OSError:
                pass
        if models.memory.used_bytes == 0 and most:
            break
    assert 32_000_000 <= most <= 80_000_000
    assert models.memory.used_bytes == 0
    for client in clients:
        client.close()
    server.should_exit = True
    await asyncio.wait_for(serving, 20)
    await models.drain(5)
