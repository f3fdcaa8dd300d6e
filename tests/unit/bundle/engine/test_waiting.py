"""Which of what waits makes the next batch, and when it goes: no threads, no clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.unit.bundle.engine.scripted import row

from ortune.bundle.engine.batching import QueuedRequest, WaitingRequests


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def request(loop: asyncio.AbstractEventLoop, at: int = 0, rows: int = 1) -> QueuedRequest:
    return QueuedRequest(row(at, rows=rows), rows, loop.create_future(), at)


def filled(waiting: WaitingRequests, *requests: QueuedRequest, form: str = "a") -> WaitingRequests:
    for one in requests:
        waiting.add_request(one, form)
    return waiting


def test_without_a_delay_everything_goes_at_once(loop: asyncio.AbstractEventLoop) -> None:
    waiting = WaitingRequests(8)
    assert waiting.find_ready(0) == (None, None)
    one, two = request(loop), request(loop)
    filled(waiting, one, two)
    assert waiting.find_ready(0) == ("a", None) and waiting.depth == 2
    assert waiting.take_batch("a") == [one, two] and waiting.depth == 0
    assert waiting.find_ready(0) == (None, None)


def test_a_delay_counts_from_the_first_request(loop: asyncio.AbstractEventLoop) -> None:
    waiting = filled(WaitingRequests(8, 100), request(loop, 10), request(loop, 90))
    filled(waiting, request(loop, 50), form="b")
    assert waiting.find_ready(60) == (None, 50)
    assert waiting.find_ready(110) == ("a", None)
    assert waiting.find_ready(60, hurry=True) == ("a", None)
    waiting.take_batch("a")
    assert waiting.find_ready(110) == (None, 40)


@pytest.mark.parametrize(
    ("rows", "batches"),
    [
        ([1], []),
        ([1, 1], [2]),
        ([1] * 3, [2]),
        ([1] * 5, [4]),
        ([1] * 9, [8]),
        ([1, 3], [4]),
        ([3], [3]),
        ([1, 9], [1]),
        ([9, 1], [9]),
    ],
)
def test_the_largest_preferred_size_that_is_there_goes(
    loop: asyncio.AbstractEventLoop, rows: list[int], batches: list[int]
) -> None:
    waiting = WaitingRequests(8, 100, preferred=[4, 2, 16])
    filled(waiting, *(request(loop, rows=one) for one in rows))
    form, _ = waiting.find_ready(0)
    taken = [sum(one.rows for one in waiting.take_batch(form))] if form is not None else []
    assert taken == batches


def test_forms_take_turns_and_a_lone_request_waits_for_nobody(
    loop: asyncio.AbstractEventLoop,
) -> None:
    waiting = filled(WaitingRequests(1), *(request(loop) for _ in range(2)))
    filled(waiting, request(loop), form="b")
    order = []
    while (form := waiting.find_ready(0)[0]) is not None:
        order.append(form)
        waiting.take_batch(form)
    assert order == ["a", "b", "a"]
    delayed = WaitingRequests(8, 100)
    delayed.add_request(request(loop), 77)
    assert delayed.find_ready(0) == (77, None)


def test_what_is_dropped_is_gone(loop: asyncio.AbstractEventLoop) -> None:
    one, two = request(loop, rows=2), request(loop)
    waiting = filled(WaitingRequests(8), one, two)
    assert (
        waiting.drop_request(one, "a")
        and not waiting.drop_request(one, "a")
        and not waiting.drop_request(two, "b")
    )
    assert waiting.depth == 1 and waiting.take_batch("a") == [two]
    assert not waiting.drop_request(two, "a")
