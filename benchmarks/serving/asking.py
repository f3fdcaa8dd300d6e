"""The process that asks, for `benchmarks.serving.load`: connections and loops.

    python -m benchmarks.serving.asking FILE

FILE is a `Spec` as JSON. Prints ``ready`` when it is warm, waits for a line, measures, and prints
a `Load` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import grpc
import httptools
import numpy as np
import uvloop

from benchmarks.serving.load import METHOD, Load, Spec

_CHANNELS = 4
_SHARES = (50, 90, 95, 99, 99.9)


class Connection(Protocol):
    """What one request after the other goes through."""

    async def ask(self) -> str:
        """Send one request and return its status; empty is a good answer."""


class _Wire(asyncio.Protocol):
    """One connection, until one side ends it."""

    def __init__(self) -> None:
        self.ended = False
        self._transport: Any = None
        self._parser: Any = None
        self._answer: asyncio.Future[str] | None = None

    def send(self, data: bytes) -> asyncio.Future[str]:
        """Send a request and return what will be its status."""
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return self._answer

    def close(self) -> None:
        self.ended = True
        self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._settle("lost")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self._settle("lost")

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if not self._parser.should_keep_alive():
            self.close()
        self._settle("" if status == 200 else str(status))

    def _settle(self, status: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)


class _Http:
    """A caller with a connection that is kept; opened again when the server ends it."""

    def __init__(self, spec: Spec) -> None:
        body = Path(spec.body).read_bytes()
        host, _, port = spec.address.rpartition(":")
        lines = [f"POST {spec.path} HTTP/1.1", f"Host: {spec.address}"]
        lines += [f"{k}: {v}" for k, v in spec.headers.items()]
        lines.append(f"Content-Length: {len(body)}")
        self._bytes = "\r\n".join([*lines, "", ""]).encode() + body
        self._where, self._limit = (host, int(port)), spec.limit_s
        self._wire: _Wire | None = None

    async def ask(self) -> str:
        if self._wire is None or self._wire.ended:
            loop = asyncio.get_running_loop()
            try:
                _, self._wire = await loop.create_connection(_Wire, *self._where)
            except OSError:
                return "refused"
        try:
            async with asyncio.timeout(self._limit):
                return await self._wire.send(self._bytes)
        except TimeoutError:
            self._wire.close()
            return "lost"


class _Grpc:
    """One place for a request in flight, on a channel that several share."""

    def __init__(self, spec: Spec, channel: grpc.aio.Channel) -> None:
        self._body, self._limit = Path(spec.body).read_bytes(), spec.limit_s
        self._call = channel.unary_unary(METHOD)
        self._metadata = tuple(spec.headers.items())

    async def ask(self) -> str:
        try:
            await self._call(self._body, timeout=self._limit, metadata=self._metadata)
            return ""
        except grpc.aio.AioRpcError as error:
            return error.code().name


async def _main(spec: Spec) -> None:
    channels = [_channel(spec.address) for _ in range(min(_CHANNELS, spec.concurrency))]
    connections: list[Connection] = [
        _Http(spec) if spec.protocol == "http" else _Grpc(spec, channels[place % len(channels)])
        for place in range(spec.concurrency)
    ]
    await _closed(connections, spec.warm_s)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    start, cpu = time.perf_counter(), time.process_time()
    if spec.rate:
        found = await _open(connections, spec)
    else:
        found = await _closed(connections, spec.seconds)
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    print(json.dumps(asdict(_summary(found, seconds, used))), flush=True)


def _channel(address: str) -> grpc.aio.Channel:
    limits = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(address, options=limits)


async def _closed(connections: list[Connection], seconds: float) -> list[tuple[int, str]]:
    """Each connection asks again when it is answered; return nanoseconds and status of each."""
    found: list[tuple[int, str]] = []
    until = time.perf_counter() + seconds

    async def again(connection: Connection) -> None:
        while (start := time.perf_counter()) < until:
            status = await connection.ask()
            found.append((int(1e9 * (time.perf_counter() - start)), status))
            if status in ("lost", "refused", "UNAVAILABLE"):
                await asyncio.sleep(0.02)

    await asyncio.gather(*map(again, connections))
    return found


async def _open(connections: list[Connection], spec: Spec) -> list[tuple[int, str]]:
    """Ask when it is due, whatever is not answered; a free connection is waited for."""
    found: list[tuple[int, str]] = []
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for one in connections:
        free.put_nowait(one)
    rng, start = random.Random(0), time.perf_counter()

    async def one_request(due: float) -> None:
        connection = await free.get()
        due = time.perf_counter() if spec.from_sent else due
        status = await connection.ask()
        free.put_nowait(connection)
        found.append((int(1e9 * (time.perf_counter() - due)), status))

    due, tasks = start, set()
    while (due := due + rng.expovariate(spec.rate)) < start + spec.seconds:
        if (left := due - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        task = asyncio.create_task(one_request(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return found


def _summary(found: list[tuple[int, str]], seconds: float, cpu: float) -> Load:
    good = np.array([taken for taken, status in found if not status]) / 1e6
    errors = Counter(status for _, status in found if status)
    enough = [share for share in _SHARES if len(good) * (1 - share / 100) >= 10]
    shares = {f"{share:g}": float(np.percentile(good, share)) for share in enough}
    worst = float(good.max()) if len(good) else float("nan")
    return Load(seconds, len(good), dict(errors), shares, worst, cpu)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        uvloop.run(_main(Spec(**json.loads(Path(sys.argv[1]).read_text()))))
