"""Servers of the protocol that do as a script says: over HTTP on asyncio, over gRPC on grpcio."""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from google.protobuf.json_format import ParseDict
from tests.certificates import Pair

from ortune.serving.protocol import http_body, messages
from ortune.serving.protocol.inference import InferRequest, InferResponse, Output

METADATA = {
    "name": "double",
    "versions": ["1"],
    "platform": "toy",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
}


@dataclass
class Script:
    """What a server does.

    Attributes:
        delay_s: Of an answer, given how many came before.
        status: Of an answer, likewise; 200 is a right one.
        factor: Of the output: 2 is right.
        models: Names that are listed.
        closes: Every answer closes its connection.
        told: Path -> what is said there, in place of the usual.
        token: What the header must say.
        seen: Requests so far.
        by_connection: Requests to infer of each connection, over HTTP.
    """

    delay_s: Callable[[int], float] = lambda number: 0.0
    status: Callable[[int], int] = lambda number: 200
    factor: float = 2.0
    models: tuple[str, ...] = ("double",)
    closes: bool = False
    told: Mapping[str, Any] = field(default_factory=dict)
    token: str = ""
    seen: int = 0
    by_connection: list[int] = field(default_factory=list)
    answered: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def connections(self) -> int:
        return len(self.by_connection)

    def next(self) -> int:
        with self.lock:
            self.seen += 1
            return self.seen - 1

    def statistics(self) -> dict[str, Any]:
        """Every request: 1 ms in the queue, 3 ms computed, two rows at once."""
        count = self.answered

        def took(ms: int) -> dict[str, int]:
            return {"count": count, "ns": count * ms * 1_000_000}

        inference = {
            "success": took(4),
            "fail": {"count": self.seen - count, "ns": 0},
            "queue": took(1),
            "compute_input": took(1),
            "compute_infer": took(1),
            "compute_output": took(1),
        }
        model = {"name": "double", "version": "1", "inference_stats": inference}
        return {
            "model_stats": [
                {
                    **model,
                    "inference_count": 2 * count,
                    "execution_count": count,
                    "last_inference": 0,
                }
            ]
        }

    def answer(self, request: InferRequest) -> InferResponse:
        y = request.inputs["x"] * np.float32(self.factor)
        self.answered += 1
        return InferResponse("double", "1", request.id, [Output("y", "FP32", y)])


@contextmanager
def over_http(script: Script, trusted: Pair | None = None) -> Iterator[str]:
    """Serve until the block ends, with a certificate over TLS; gives the address."""
    tls = None
    if trusted is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(trusted.certificate, trusted.key)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(
            lambda r, w: _talk(script, r, w), "127.0.0.1", 0, ssl=tls
        )

    async def end() -> None:
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _talk(
    script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    script.by_connection.append(0)
    with suppress(OSError, EOFError):
        await _answers(script, len(script.by_connection) - 1, reader, writer)


async def _answers(
    script: Script, place: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while line := await reader.readline():
        method, path, _ = line.decode().split()
        headers: dict[str, str] = {}
        while (header := await reader.readline()).strip():
            name, _, value = header.decode().partition(":")
            headers[name.strip().lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        refused = script.token and headers.get("authorization") != f"Bearer {script.token}"
        script.by_connection[place] += path.endswith("/infer")
        status, more, out = await _reply(script, method, path, headers, body)
        if refused and "health" not in path:
            status, more, out = 401, "", b'{"error": "no token"}'
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(out)}\r\n{more}"
            f"{'Connection: close' + chr(13) + chr(10) if script.closes else ''}\r\n".encode()
            + out
        )
        if script.closes:
            writer.close()
            return


async def _reply(
    script: Script, method: str, path: str, headers: dict[str, str], body: bytes
) -> tuple[int, str, bytes]:
    if path.endswith("/infer"):
        number = script.next()
        await asyncio.sleep(script.delay_s(number))
        if (status := script.status(number)) != 200:
            return status, "", json.dumps({"error": f"refused number {status}"}).encode()
        request = http_body.declare_body(
            body, int(headers["inference-header-content-length"])
        ).read()
        chunks, head = http_body.encode_response(script.answer(request), request)
        more = f"Inference-Header-Content-Length: {head}\r\n" if head is not None else ""
        return 200, more, b"".join(chunks)
    plain: dict[str, Any] = {
        "/v2/health/live": {},
        "/v2/repository/index": [{"name": one, "state": "READY"} for one in script.models],
        "/v2/models/double": METADATA,
        "/v2/models/double/stats": script.statistics(),
        **script.told,
    }
    path = path.replace("/versions/1", "")
    if plain.get(path) is not None:
        return 200, "", json.dumps(plain[path]).encode()
    return 404, "", b'{"error": "not found"}'


@contextmanager
def over_grpc(script: Script, trusted: Pair | None = None) -> Iterator[str]:
    """Serve until the block ends, with a certificate over TLS; gives the address."""

    def infer(body: bytes, context: grpc.ServicerContext) -> bytes:
        number = script.next()
        time.sleep(script.delay_s(number))
        if script.status(number) != 200:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the queue is full")
        found = messages.deserialize_request(body).request
        return messages.serialize_response(script.answer(found))

    def told(name: str, content: Callable[[], Any]) -> Any:
        def reply(body: bytes, context: grpc.ServicerContext) -> bytes:
            kind = messages.find_message_class(name)
            made: bytes = ParseDict(content(), kind()).SerializeToString()
            return made

        return grpc.unary_unary_rpc_method_handler(reply)

    listed = [{"name": one, "state": "READY"} for one in script.models]
    handlers = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(infer),
        "ModelMetadata": told("ModelMetadataResponse", lambda: METADATA),
        "ModelStatistics": told("ModelStatisticsResponse", script.statistics),
        "RepositoryIndex": told("RepositoryIndexResponse", lambda: {"models": listed}),
    }
    server = grpc.server(ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(messages.SERVICE, handlers),)
    )
    if trusted is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        held = (trusted.key.read_bytes(), trusted.certificate.read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([held]))
    server.start()
    try:
        yield f"grpc{'s' if trusted else ''}://127.0.0.1:{port}"
    finally:
        server.stop(None).wait(10)
