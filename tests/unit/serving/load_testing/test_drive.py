"""The loops that issue requests, on a clock that only sleeping moves."""

import asyncio
import selectors
import socket
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from ortune.core.errors import OrtuneError
from ortune.serving.load_testing import client, server
from ortune.serving.load_testing.client import (
    LOST,
    NOT_SENT,
    REFUSED,
    HttpSender,
    Report,
    Setup,
    Stretch,
    run_closed_loop,
    run_open_loop,
)
from ortune.serving.load_testing.requests import ServerUrl

MS = 1_000_000


class ScriptedLoop(asyncio.SelectorEventLoop):
    """Nothing takes time but waiting, which takes none."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: ScriptedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "it would wait for ever"
        self._loop.now += max(0.0, timeout)
        return super().select(0)


class Scripted:
    """A server of some seats: request k takes `taken[k]` ms, and the last value ever after."""

    def __init__(self, taken: Sequence[float], seats: int = 1000, word: str = "") -> None:
        self.report = Report()
        self._taken, self._word = taken, word
        self._seats = asyncio.Semaphore(seats)
        self.tickets: list[int] = []

    async def send(self, ticket: int) -> str:
        self.tickets.append(ticket)
        async with self._seats:
            await asyncio.sleep(self._taken[min(ticket, len(self._taken) - 1)] / 1e3)
        return self._word


def entries(sender: Scripted, order: Stretch, **how: Any) -> list[tuple[float, float, float, str]]:
    """Return intended start, start, end in ms and error of each request, in order of the first."""
    loop = ScriptedLoop()
    drive = run_open_loop if order.schedule else run_closed_loop
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(drive(sender, lambda: round(loop.now * 1e9), order, **how))
    log = sender.report
    rows = [log.entries[k : k + 4] for k in range(0, len(log.entries), 4)]
    made = [(*(round(moment / MS, 3) for moment in row[:3]), log.errors[row[3]]) for row in rows]
    return sorted(made)  # type: ignore[arg-type]


def arrivals(*due_ms: int) -> Stretch:
    return Stretch(0, schedule=array("q", (moment * MS for moment in due_ms)))


def test_callers_wait_for_their_answers() -> None:
    sender = Scripted([10])
    assert entries(sender, Stretch(5 * MS, callers=2, requests=6)) == [
        (start, start, start + 10, "") for start in (5.0, 5.0, 15.0, 15.0, 25.0, 25.0)
    ]
    assert sorted(sender.tickets) == [0, 1, 2, 3, 4, 5]


def test_callers_stop_when_the_time_is_over_and_wait_for_what_is_under_way() -> None:
    found = entries(Scripted([40]), Stretch(0, callers=1, seconds=0.1))
    assert [one[:3] for one in found] == [(0, 0, 40), (40, 40, 80), (80, 80, 120)]


def test_arrivals_count_from_their_intended_start() -> None:
    """One answer of 100 ms makes those behind it wait: a caller that waits would never see it."""
    slow = [1.0, 1.0, 100.0, 1.0]
    due = arrivals(*range(0, 100, 10))
    found = entries(Scripted(slow, seats=1), due, connections=100, patience_s=9)
    latency = [done - intended for intended, _, done, _ in found]
    assert latency == pytest.approx([1, 1, 100, 91, 82, 73, 64, 55, 46, 37], abs=0.01)
    assert all(sent == intended for intended, sent, _, _ in found)
    alone = entries(Scripted(slow), Stretch(0, callers=1, requests=10))
    assert [done - intended for intended, _, done, _ in alone] == pytest.approx(
        [1, 1, 100, *[1] * 7], abs=0.01
    )


def test_what_waits_for_a_connection_here_counts_as_latency() -> None:
    found = entries(Scripted([30]), arrivals(0, 10, 20, 30), connections=1, patience_s=9)
    assert [one[:3] for one in found] == [(0, 0, 30), (10, 30, 60), (20, 60, 90), (30, 90, 120)]


def test_what_is_given_up_is_counted_and_not_sent() -> None:
    sender = Scripted([100])
    found = entries(sender, arrivals(0, 1, 2), connections=1, patience_s=0.15)
    assert [one[3] for one in found] == ["", "", NOT_SENT]
    assert sender.tickets == [0, 1]


@pytest.mark.parametrize("word", [REFUSED, LOST])
def test_callers_without_a_server_do_not_count_errors_by_the_thousand(word: str) -> None:
    found = entries(Scripted([0], word=word), Stretch(0, callers=1, seconds=1.0))
    assert len(found) == 100
    assert {one[3] for one in found} == {word}


def test_a_status_is_told_apart_from_a_right_answer() -> None:
    log = Report()
    for word in ("", "503", "503", "timed out", ""):
        log.add_request(0, 0, 1, word)
    assert log.errors == ["", "503", "timed out"]
    assert list(log.entries[3::4]) == [0, 1, 1, 2, 0]


def test_answers_that_differ_are_kept_up_to_a_limit() -> None:
    log = Report()
    for number in range(5000):
        log.count_answer((0, -1, str(number % 2500).encode()))
    assert (len(log.answers), log.dropped) == (2048, 2 * (2500 - 2048))
    assert set(log.answers.values()) == {2}


# A server whose answer never ends stops a load test at a bound, in memory and in time.


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
