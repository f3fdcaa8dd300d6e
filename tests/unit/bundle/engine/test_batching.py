"""The queue: who is computed with whom, in which order, and what becomes of each."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from tests.unit.bundle.engine.scripted import DOUBLING, Doubling, row

from ortune.bundle.engine.batching import Batcher, Joint, QueuedRequest, QueueFull, WaitingRequests
from ortune.core.errors import OrtuneError

Made = Callable[..., Batcher]


@pytest.fixture
def session() -> Doubling:
    return Doubling()


@pytest.fixture
def made(session: Doubling) -> Iterator[Made]:
    """Batchers of a model that is known to have a batch dimension."""
    batchers: list[Batcher] = []

    def make(**options: Any) -> Batcher:
        joint = Joint("m", DOUBLING, session.run)
        assert joint.prove_joinable([row(1)])
        session.seen.clear()
        session.entered.clear()
        batchers.append(Batcher("m", joint, **options))
        return batchers[-1]

    yield make
    session.go.set()
    for batcher in batchers:
        batcher.close()


async def submit(batcher: Batcher, sample: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return (await batcher.submit_request(sample)).outputs


async def settled(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


async def behind_a_busy_worker(
    batcher: Batcher, session: Doubling, samples: list[dict[str, np.ndarray]], *, warm: int = 1
) -> list[asyncio.Task[dict[str, np.ndarray]]]:
    """Queue samples in order while the worker computes another, of `warm` rows."""
    session.go.clear()
    session.entered.clear()
    first = asyncio.create_task(submit(batcher, row(1000, 7, warm)))
    await settled(session.entered.is_set)
    tasks = [first]
    for count, sample in enumerate(samples, 1):
        tasks.append(asyncio.create_task(submit(batcher, sample)))
        await settled(lambda count=count: batcher.statistics.depth == count)
    return tasks


async def test_what_waits_is_computed_together(made: Made, session: Doubling) -> None:
    batcher = made()
    tasks = await behind_a_busy_worker(batcher, session, [row(n) for n in range(5)])
    session.go.set()
    found = await asyncio.gather(*tasks)
    assert [one["y"][0, 0] for one in found] == [2000, 0, 2, 4, 6, 8]
    assert [one.shape for one in session.seen] == [(1, 7), (5, 4)]
    counts = batcher.statistics
    assert {rows: (one.count, one.requests) for rows, one in counts.batches.items()} == {
        1: (1, 1),
        5: (1, 5),
    }
    assert counts.batches[5].queue_ns > counts.batches[5].compute_ns > 0
    assert (counts.depth, counts.failed, counts.cancelled, counts.refused) == (0, 0, 0, 0)


async def test_batches_keep_their_bound_and_forms_take_turns(
    made: Made, session: Doubling
) -> None:
    batcher = made(max_batch=2)
    samples = [row(0), row(1), row(2), row(3), row(4, 5), row(5, 4, 3), row(6)]
    tasks = await behind_a_busy_worker(batcher, session, samples)
    session.go.set()
    found = await asyncio.gather(*tasks)
    for sample, one in zip(samples, found[1:], strict=True):
        np.testing.assert_array_equal(one["y"], 2 * sample["x"])
    assert [one.shape for one in session.seen] == [
        *((1, 7), (2, 4), (1, 5), (2, 4), (3, 4), (1, 4))
    ]


async def test_a_delay_waits_for_others_until_the_batch_is_full(
    made: Made, session: Doubling
) -> None:
    batcher = made(max_batch=3, max_delay_us=10_000_000)
    start = time.monotonic()
    await asyncio.gather(*(submit(batcher, row(n)) for n in range(3)))
    assert time.monotonic() - start < 5
    assert [one.shape for one in session.seen] == [(3, 4)]


async def test_a_delay_does_not_outlive_the_queue(made: Made) -> None:
    batcher = made(max_delay_us=10_000_000)
    task = asyncio.create_task(submit(batcher, row(1)))
    await settled(lambda: batcher.statistics.depth == 1)
    start = time.monotonic()
    await asyncio.to_thread(batcher.close)
    assert time.monotonic() - start < 5
    assert (await task)["y"][0, 0] == 2


async def test_one_bad_request_does_not_fail_its_batch(made: Made, session: Doubling) -> None:
    batcher = made()
    samples = [row(1), row(-9), row(2)]
    tasks = await behind_a_busy_worker(batcher, session, samples)
    session.go.set()
    _, one, bad, two = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(bad, ValueError) and "a negative number" in str(bad)
    assert one["y"][0, 0] == 2 and two["y"][0, 0] == 4
    assert batcher.statistics.failed == 1


async def test_the_queue_is_bounded(made: Made, session: Doubling) -> None:
    batcher = made(max_queue=2)
    tasks = await behind_a_busy_worker(batcher, session, [row(1), row(2)])
    with pytest.raises(QueueFull, match="2 requests wait") as caught:
        await submit(batcher, row(3))
    assert len(str(caught.value).splitlines()) == 2
    session.go.set()
    await asyncio.gather(*tasks)
    assert (await submit(batcher, row(3)))["y"][0, 0] == 6
    assert batcher.statistics.refused == 1


async def test_who_is_cancelled_leaves_the_queue(made: Made, session: Doubling) -> None:
    batcher = made(max_queue=2)
    tasks = await behind_a_busy_worker(batcher, session, [row(1), row(2, 5)])
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert batcher.statistics.depth == 0
    more = asyncio.create_task(submit(batcher, row(3)))
    await settled(lambda: batcher.statistics.depth == 1)
    session.go.set()
    assert (await more)["y"][0, 0] == 6
    assert batcher.statistics.cancelled == 2, "the third was being computed"
    assert [one.shape for one in session.seen] == [(1, 7), (1, 4)]


async def test_closing_answers_what_waits_and_refuses_what_comes(
    made: Made, session: Doubling
) -> None:
    batcher = made(max_batch=1)
    tasks = await behind_a_busy_worker(batcher, session, [row(n) for n in range(6)])
    closing = asyncio.create_task(asyncio.to_thread(batcher.close))
    await asyncio.sleep(0.05)
    with pytest.raises(OrtuneError, match="the engine of m is closed"):
        await submit(batcher, row(9))
    assert not closing.done()
    session.go.set()
    found = await asyncio.gather(*tasks)
    await closing
    assert [one["y"][0, 0] for one in found[1:]] == [0, 2, 4, 6, 8, 10]
    batcher.close()


def test_a_loop_that_is_gone_is_nobodys_trouble(made: Made, session: Doubling) -> None:
    batcher = made()

    async def impatient() -> None:
        await asyncio.wait_for(submit(batcher, row(1)), 0.02)

    session.go.clear()
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(impatient())
    session.go.set()

    async def later(call: Awaitable[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return await call

    assert asyncio.run(later(submit(batcher, row(2))))["y"][0, 0] == 4


async def test_a_worker_outlives_whatever_goes_wrong(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = made()
    with monkeypatch.context() as patched:
        patched.setattr(Joint, "compute_answers", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await submit(batcher, row(1))
    assert (await submit(batcher, row(2)))["y"][0, 0] == 4


def test_threads_start_with_the_first_request_and_end_with_the_queue(made: Made) -> None:
    def threads() -> int:
        return len([one for one in threading.enumerate() if one.name == "ortune m"])

    batcher = made(workers=2)
    assert not threads()
    asyncio.run(submit(batcher, row(1)))
    assert threads() == 2
    batcher.stop()
    batcher.close()
    assert not threads()
    unused = made(workers=2)
    unused.close()
    with pytest.raises(OrtuneError, match="closed"):
        asyncio.run(submit(unused, row(1)))
    made(workers=2, at_once=True)
    assert threads() == 2


async def test_an_answer_says_when_it_was_computed_with_how_many(
    made: Made, session: Doubling
) -> None:
    batcher = made()
    session.go.clear()
    first = asyncio.create_task(batcher.submit_request(row(1000, 7)))
    await settled(session.entered.is_set)
    others = [asyncio.create_task(batcher.submit_request(row(n))) for n in range(3)]
    await settled(lambda: batcher.statistics.depth == 3)
    session.go.set()
    alone, *joined = await asyncio.gather(first, *others)
    assert alone.rows == 1 and {one.rows for one in joined} == {3}
    for one in (alone, *joined):
        assert one.queued_ns <= one.started_ns < one.ended_ns
    assert {one.started_ns for one in joined} == {joined[0].started_ns}
    assert joined[0].started_ns >= alone.ended_ns


@pytest.mark.parametrize("value", [1, -1], ids=["answered", "refused"])
async def test_what_was_computed_goes_with_its_caller(
    made: Made, session: Doubling, value: float
) -> None:
    """Inputs and answers are large: none waits for the collector of cycles."""
    batcher = made()
    gc.disable()
    try:
        sample = row(value)
        held = [weakref.ref(sample["x"])]
        with suppress(ValueError):
            held.append(weakref.ref((await submit(batcher, sample))["y"]))
        assert len(held) == 1 + (value > 0)
        session.seen.clear()
        del sample
        await settled(lambda: all(one() is None for one in held))
    finally:
        gc.enable()


# Which of what waits makes the next batch, and when it goes: no threads, no clock.


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
