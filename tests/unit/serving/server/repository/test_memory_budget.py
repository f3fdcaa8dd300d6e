"""Room for the answers of a connection: who waits for it gets it in turn."""

import asyncio

import pytest

from ortune.serving.server.repository import memory_budget
from ortune.serving.server.repository.memory_budget import AnswerRoom


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_answers_enter_in_their_order_and_other_connections_do_not_wait() -> None:
    room, entered = AnswerRoom(10), list[int]()

    async def enter(number: int, size: int, peer: str = "a") -> None:
        await room.enter(peer, size)
        entered.append(number)

    sizes = [99, 5, 5, 0, 1]
    tasks = [asyncio.create_task(enter(number, size)) for number, size in enumerate(sizes)]
    await settle()
    assert entered == [0], "one alone may have more"
    await asyncio.wait_for(enter(9, 99, "b"), 1)
    room.leave("a", 99)
    await settle()
    assert entered == [0, 9, 1, 2], "a request waits while there is no room"
    room.leave("a", 5)
    await settle()
    assert entered == [0, 9, 1, 2, 3, 4]
    await asyncio.gather(*tasks)
    for size in (5, 1):
        room.leave("a", size)
    room.leave("b", 99)
    assert not room._untaken and not room._lines, "nothing is kept"


@pytest.mark.parametrize("late", [False, True])
async def test_who_gives_up_takes_no_room(late: bool) -> None:
    """Before its turn, or as it comes."""
    room = AnswerRoom(10)
    await room.enter("a", 6)
    gone, other = (asyncio.create_task(room.enter("a", 6)) for _ in range(2))
    await settle()
    if late:
        room.leave("a", 6)
    gone.cancel()
    if not late:
        room.leave("a", 6)
    await asyncio.wait_for(other, 1)
    assert gone.cancelled() or await asyncio.wait({gone})
    room.leave("a", 6)
    assert not room._untaken and not room._lines


async def test_the_first_of_a_line_goes_on_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "TURN_S", 0.05)
    room = AnswerRoom(10)
    await room.enter("a", 10)
    tasks = [asyncio.create_task(room.enter("a", 10)) for _ in range(4)]
    await asyncio.sleep(0.08)
    assert [task.done() for task in tasks] == [True, False, False, False]
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    for _ in range(5):
        room.leave("a", 10)
    assert not room._untaken and not room._lines
