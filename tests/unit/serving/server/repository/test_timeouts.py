"""What is late is given up, and nothing else."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune.serving.server.repository.served import Timeouts


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=20))
def test_the_late_ones_are_given_up(plan: list[tuple[bool, int]]) -> None:
    async def main() -> None:
        timeouts = Timeouts(0.03)

        async def one(slow: bool, begins: int) -> str:
            await asyncio.sleep(begins / 500)
            try:
                await timeouts.run_within(asyncio.sleep(30 if slow else 0))
            except TimeoutError:
                return "late"
            return "done"

        found = await asyncio.gather(*(one(*each) for each in plan))
        assert found == ["late" if slow else "done" for slow, _ in plan]

    asyncio.run(main())


async def test_a_caller_s_own_cancelling_is_no_time_out() -> None:
    timeouts = Timeouts(0.02)
    task = asyncio.create_task(timeouts.run_within(asyncio.sleep(30)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    both = asyncio.create_task(timeouts.run_within(slow_to_end()))
    await asyncio.sleep(0.04)
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    assert await timeouts.run_within(asyncio.sleep(0, "still at work")) == "still at work"


async def slow_to_end() -> None:
    """Take its time when it is cancelled."""
    try:
        await asyncio.sleep(30)
    finally:
        await asyncio.sleep(0.05)


async def test_without_a_bound_nothing_is_late() -> None:
    await Timeouts(0).run_within(asyncio.sleep(0.05))


async def test_a_task_that_was_late_goes_on() -> None:
    timeouts = Timeouts(0.01)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await timeouts.run_within(asyncio.sleep(30))
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()
