"""Room for the answers of a connection: who waits for it gets it in turn."""

from __future__ import annotations

import asyncio

import pytest

from ortune.serving.server.repository.memory import AnswerRoom


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_answers_enter_in_their_order_and_other_connections_do_not_wait() -> None:
    room, entered = AnswerRoom(10), list[int]()

    async def enter(number: int, size: int, peer: str = "a") -> None:
        await room.enter(peer, size)
        entered.append(number)

    tasks = [asyncio.create_task(enter(number, size)) for number, size in enumerate([99, 5, 5, 1])]
    await settle()
    assert entered == [0], "one alone may have more"
    await asyncio.wait_for(enter(9, 99, "b"), 1)
    room.leave("a", 99)
    await settle()
    assert entered == [0, 9, 1, 2] and room.is_full("a")
    room.leave("a", 5)
    await settle()
    assert entered == [0, 9, 1, 2, 3] and not room.is_full("a")
    await asyncio.gather(*tasks)
    for size in (5, 1):
        room.leave("a", size)
    room.leave("b", 99)
    assert not (room._untaken or room._entering or room._turns), "nothing is kept"


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_request_waits_while_answers_do(is_cancelled: bool) -> None:
    room = AnswerRoom(10)
    await room.enter("a", 6)
    assert not room.is_full("a") and not room.is_full("b")
    answer = asyncio.create_task(room.enter("a", 6))
    await settle()
    assert room.is_full("a"), "an answer waits"
    request = asyncio.create_task(room.wait_until_free("a"))
    await settle()
    assert not request.done()
    if is_cancelled:
        answer.cancel()
    else:
        room.leave("a", 6)
    await asyncio.wait_for(request, 1)
    room.leave("a", 6)
    assert not room.is_full("a")
