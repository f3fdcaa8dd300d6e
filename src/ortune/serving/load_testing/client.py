"""The process that sends requests: one event loop, bodies made before, nothing decoded.

``python -m ortune.serving.load_testing.client`` reads a `Setup` from its stdin, then a `Stretch`
of requests after the other, and writes a `Report` of each to its stdout. A closed loop runs on
uvloop where that is installed, for less CPU. An open loop runs on ``select``, which waits to the
microsecond: the others round a wait up to a millisecond, which would count as latency.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import pickle
import selectors
import ssl
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ortune.core import regular_file
from ortune.serving.load_testing.requests import ServerUrl

NOT_SENT = "not sent in time"
LOST = "connection lost"
REFUSED = "connection refused"
TIMED_OUT = "timed out"
INFER = "/inference.GRPCInferenceService/ModelInfer"
MOST_BYTES = 1 << 28
"""Bytes of an answer at most: a server may send for ever."""
_KEPT_BYTES = 1 << 30
"""Bytes of all answers that are kept to be compared."""
_GRPC_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
)
"""The last one: without it all channels of a process share one connection."""
_CHANNELS = 16
"""Of one client process at most: of several servers behind one port each gets some of them."""
_OPENED = 16
"""Connections that are open before the first arrival; more are opened when they are needed."""
_PAUSE_S = 0.01
"""A caller without a server tries again after this: it would count errors by the thousand."""
_KINDS = 2048
"""Different answers that are kept: to each of 32 requests, of a batch that rounds, a few."""
_LONGEST = 300
"""Characters of an error's text that are kept."""


@dataclass(frozen=True)
class Setup:
    """Where a client process sends what.

    Attributes:
        requests: Whole requests, head and body over HTTP, a message over gRPC; sent in turn.
        open_loop: It will send at a schedule; else callers wait for answers.
        connections: Requests under way at most.
        ca: File with certificates to trust, with TLS; empty for the system's.
        token: Sent along over gRPC; over HTTP the requests hold it.
        keep_answers: Right answers are kept, each kind once, to be compared.
        spread: Connections at least, used in turn, however few the callers. Behind one port the
            system gives each connection to one of several server processes, by chance.
    """

    url: ServerUrl
    requests: tuple[bytes, ...] = field(repr=False)
    open_loop: bool
    connections: int
    timeout_s: float
    ca: str
    token: str
    keep_answers: bool
    spread: int


@dataclass(frozen=True)
class Stretch:
    """Requests of one client process without a pause, from a time of ``perf_counter_ns`` on.

    All processes of a machine share that clock. In a closed loop there are so many requests, or as
    many as there is time for; in an open one they start at a schedule, nanoseconds from its
    beginning.
    """

    start_ns: int
    callers: int = 0
    requests: int = 0
    seconds: float = 0.0
    schedule: array[int] | None = None


@dataclass
class Report:
    """What became of a stretch.

    Attributes:
        entries: Intended start, start and end in nanoseconds, and the place of its error; four
            numbers a request, in order of the ends.
        errors: What was wrong; the first, empty, stands for nothing.
        examples: Error -> the text of its first.
        answers: (sample, bytes of JSON at the head or -1, body) -> how many were equal to it.
        dropped: Answers that were not kept, as too many differ, or differ and are large.
        cpu_s: CPU seconds that the process took for it.
    """

    entries: array[int] = field(default_factory=lambda: array("q"))
    errors: list[str] = field(default_factory=lambda: [""])
    examples: dict[str, str] = field(default_factory=dict)
    answers: Counter[tuple[int, int, bytes]] = field(default_factory=Counter)
    kept_bytes: int = 0
    dropped: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0

    def add_request(self, due: int, sent: int, done: int, error: str) -> None:
        """Add a request."""
        if error not in self.errors:
            self.errors.append(error)
        self.entries.extend((due, sent, done, self.errors.index(error)))

    def keep_example(self, error: str, text: str) -> str:
        """Keep the first text of an error, and return the error."""
        self.examples.setdefault(error, text[:_LONGEST])
        return error

    def count_answer(self, answer: tuple[int, int, bytes]) -> None:
        """Count an answer; of many that differ not all are kept."""
        size = len(answer[2])
        if answer in self.answers:
            self.answers[answer] += 1
        elif len(self.answers) < _KINDS and self.kept_bytes + size <= _KEPT_BYTES:
            self.answers[answer] = 1
            self.kept_bytes += size
        else:
            self.dropped += 1


class Sender(Protocol):
    """A client of one protocol, which has a report for each order."""

    report: Report

    async def send(self, ticket: int) -> str:
        """Send a ticket's request, await the answer, and return what was wrong, or ""."""
        ...


async def run_closed_loop(sender: Sender, clock: Callable[[], int], order: Stretch) -> None:
    """Let callers send one request after another from a moment on, each when it has its answer."""
    until = math.inf if order.requests else order.start_ns + order.seconds * 1e9
    tickets = itertools.count()

    async def call() -> None:
        await _wait_until(order.start_ns, clock)
        for ticket in tickets:
            start = clock()
            if start >= until or (order.requests and ticket >= order.requests):
                return
            error = await sender.send(ticket)
            sender.report.add_request(start, start, clock(), error)
            if error in (LOST, REFUSED):
                await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(*(call() for _ in range(order.callers)))


async def run_open_loop(
    sender: Sender,
    clock: Callable[[], int],
    order: Stretch,
    *,
    connections: int,
    patience_s: float,
) -> None:
    """Send requests when they are due, whether or not earlier ones are answered.

    More than `connections` wait here, and that time counts; one that has waited `patience_s` is
    counted, and not sent.
    """
    free = asyncio.Semaphore(connections)

    async def call(ticket: int, due: int) -> None:
        async with free:
            sent = clock()
            late = sent - due > patience_s * 1e9
            error = NOT_SENT if late else await sender.send(ticket)
            sender.report.add_request(due, sent, clock(), error)

    async with asyncio.TaskGroup() as calls:
        for ticket, moment in enumerate(order.schedule or ()):
            await _wait_until(order.start_ns + moment, clock)
            calls.create_task(call(ticket, order.start_ns + moment))


async def _wait_until(moment: int, clock: Callable[[], int]) -> None:
    """Wait for a moment; for one that is past let others go on, so that they do not starve."""
    await asyncio.sleep(max(0, moment - clock()) / 1e9)


class GrpcSender:
    """Sends ready messages; the time-out is the call's deadline, which the server is told."""

    def __init__(self, setup: Setup) -> None:
        """Connect to nothing yet; made inside the event loop."""
        import grpc.aio

        self.report, self._setup = Report(), setup
        self._failure = grpc.aio.AioRpcError
        self._metadata = (("authorization", f"Bearer {setup.token}"),) if setup.token else None
        self._channels = [grpc_channel(grpc.aio, setup.url, setup.ca) for _ in range(_CHANNELS)]
        self._calls = [channel.unary_unary(INFER) for channel in self._channels]
        self._used = 1

    async def open_connections(self, callers: int) -> None:
        """Open a connection for each caller, 16 at most."""
        self._used = min(callers, _CHANNELS)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._setup.timeout_s):
                for channel in self._channels[: self._used]:
                    await channel.channel_ready()

    async def send(self, ticket: int) -> str:
        """Send a request as `Sender` says."""
        setup, sample = self._setup, ticket % len(self._setup.requests)
        call = self._calls[ticket % self._used]
        try:
            body = await call(
                setup.requests[sample], timeout=setup.timeout_s, metadata=self._metadata
            )
        except self._failure as error:
            return self.report.keep_example(str(error.code().name), str(error.details() or ""))
        if setup.keep_answers:
            self.report.count_answer((sample, -1, body))
        return ""

    async def close_connections(self) -> None:
        """Close the connections."""
        for channel in self._channels:
            await channel.close()


def grpc_channel(module: Any, url: ServerUrl, ca: str) -> Any:
    """Return a channel of ``grpc`` or ``grpc.aio``; `ca` has certificates to trust with TLS."""
    import grpc

    if not url.tls:
        return module.insecure_channel(url.netloc, options=_GRPC_OPTIONS)
    trusted = grpc.ssl_channel_credentials(regular_file.read_bytes(ca) if ca else None)
    return module.secure_channel(url.netloc, trusted, options=_GRPC_OPTIONS)


class HttpSender:
    """Sends ready requests over connections that stay open, one at a time on each.

    Not a library's client: aiohttp takes six times the CPU for a small request, tritonclient nine
    times, and a client that computes is what a load test then measures.
    """

    def __init__(self, setup: Setup) -> None:
        """Connect to nothing yet."""
        self.report, self._setup = Report(), setup
        self._tls = ssl.create_default_context(cafile=setup.ca or None) if setup.url.tls else None
        self._idle: deque[_HttpConnection] = deque()

    async def open_connections(self, callers: int) -> None:
        """Open a connection for each caller."""
        with suppress(OSError):
            while len(self._idle) < callers:
                self._idle.append(await self._open_connection())

    async def send(self, ticket: int) -> str:
        """Send a request as `Sender` says; a connection that was closed is opened again."""
        sample = ticket % len(self._setup.requests)
        try:
            # What has been idle for longest comes first, so that all are used in turn.
            while self._idle and self._idle[0].closed:
                self._idle.popleft()
            connection = self._idle.popleft() if self._idle else await self._open_connection()
            status, body, head = await connection.exchange(
                self._setup.requests[sample], self._setup.timeout_s
            )
        except TimeoutError:
            return TIMED_OUT
        except ConnectionRefusedError:
            return REFUSED
        except OSError as error:
            return self.report.keep_example(LOST, str(error))
        if not connection.closed:
            self._idle.append(connection)
        if status != 200:
            return self.report.keep_example(str(status), body.decode(errors="replace"))
        if self._setup.keep_answers:
            self.report.count_answer((sample, head, body))
        return ""

    async def close_connections(self) -> None:
        """Close the connections."""
        for connection in self._idle:
            connection.close()

    async def _open_connection(self) -> _HttpConnection:
        async with asyncio.timeout(self._setup.timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _HttpConnection(keep_body=self._setup.keep_answers),
                self._setup.url.host,
                self._setup.url.port,
                ssl=self._tls,
            )
        return connection


class _HttpConnection(asyncio.Protocol):
    """One connection, and the answer that it waits for."""

    def __init__(self, *, keep_body: bool) -> None:
        import httptools

        self.closed = False
        self._keep_body = keep_body
        self._parser = httptools.HttpResponseParser(self)
        self._parser_error = httptools.HttpParserError
        self._answer: asyncio.Future[tuple[int, bytes, int]] | None = None
        self._head = -1
        self._chunks: list[bytes] = []
        self._received = 0

    async def exchange(self, request: bytes, timeout_s: float) -> tuple[int, bytes, int]:
        """Return status, body where kept, and its JSON's length; OSError where it breaks."""
        loop = asyncio.get_running_loop()
        self._head, self._chunks, self._answer = -1, [], loop.create_future()
        self._received = 0
        deadline = loop.call_later(timeout_s, self._fail_answer, TimeoutError())
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            deadline.cancel()
            self._answer = None

    def close(self) -> None:
        self.closed = True
        self._transport.abort()

    def _fail_answer(self, error: BaseException) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = exc if isinstance(exc, OSError) else ConnectionResetError("closed by the server")
        self._fail_answer(reason)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > MOST_BYTES:
            self._fail_answer(ConnectionError(f"an answer has more than {MOST_BYTES} bytes"))
            return
        try:
            self._parser.feed_data(data)
        except self._parser_error as error:
            self._fail_answer(ConnectionError(f"the answer is not HTTP: {error}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"inference-header-content-length" and value.isdigit():
            self._head = int(value)

    def on_body(self, body: bytes) -> None:
        if self._keep_body or self._parser.get_status_code() != 200:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        if self._answer is not None and not self._answer.done():
            status = self._parser.get_status_code()
            self._answer.set_result((status, b"".join(self._chunks), self._head))


async def _serve_orders(setup: Setup) -> None:
    """Say that the process is ready by an empty report, and obey orders until stdin ends."""
    sender = HttpSender(setup) if setup.url.protocol == "http" else GrpcSender(setup)
    loop, clock = asyncio.get_running_loop(), time.perf_counter_ns
    with suppress(EOFError):
        while True:
            pickle.dump(sender.report, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            sender.report = Report()
            gc.collect()
            order: Stretch = await loop.run_in_executor(None, pickle.load, sys.stdin.buffer)
            callers = order.callers or min(setup.connections, _OPENED)
            await sender.open_connections(max(setup.spread, callers))
            began, cpu_s = clock(), time.process_time()
            if order.schedule:
                await run_open_loop(
                    sender, clock, order, connections=setup.connections, patience_s=setup.timeout_s
                )
            else:
                await run_closed_loop(sender, clock, order)
            sender.report.cpu_s = time.process_time() - cpu_s
            sender.report.wall_s = (clock() - max(began, order.start_ns)) / 1e9
    await sender.close_connections()


def main() -> None:
    """Read the setup and obey until stdin ends."""
    setup: Setup = pickle.load(sys.stdin.buffer)
    gc.disable()  # a level ends before what it leaves counts; a collection in it would
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if setup.open_loop:

        def new_loop() -> asyncio.AbstractEventLoop:
            return asyncio.SelectorEventLoop(selectors.SelectSelector())
    else:
        with suppress(ImportError):
            from uvloop import new_event_loop as new_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve_orders(setup))


if __name__ == "__main__":
    # What is pickled must be of the module, not of ``__main__``.
    from ortune.serving.load_testing import client

    client.main()
