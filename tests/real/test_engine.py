"""The engine on real models: bare sessions' answers, from any number of callers at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

import ortune as ot
from ortune.bundle.engine.golden import snr_db
from ortune.core.hardware.cpus import effective_cpus
from tests.real import engines
from tests.real.engines import Arrays

ON = "cpu(threads=1)"
THREADS, CALLERS = 8, 100
JOINED_DB = 80.0
"""Another order of sums in float32."""
APART_DB = 70.0
"""Other samples' answers are below this."""
LONG = pytest.mark.long
GROWN = 4 << 20


@pytest.fixture(
    params=[pytest.param(one, marks=[LONG] if one == "unet" else []) for one in engines.NAMES],
    scope="module",
)
def case(request: pytest.FixtureRequest) -> tuple[Path, list[Arrays], list[Arrays]]:
    """A model, samples, and a bare session's answers to them."""
    if missing := engines.absent(request.param):
        pytest.skip(missing)
    path, samples = engines.model(request.param)
    session = engines.bare(path)
    names = [one.name for one in session.get_outputs()]
    answers = [dict(zip(names, session.run(names, one), strict=True)) for one in samples]
    return path, samples, answers


Case = tuple[Path, list[Arrays], list[Arrays]]


def same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


def test_samples_are_told_apart(case: Case) -> None:
    _, _, answers = case
    assert all(snr_db(answers[0], other) < APART_DB for other in answers[1:])


def test_one_by_one_and_in_batches(case: Case) -> None:
    path, samples, answers = case
    with ot.load(path, on=ON) as engine:
        engine.warm_up(**samples[0])
        for sample, answer in zip(samples, answers, strict=True):
            assert same(engine(**sample), answer)
        for found, answer in zip(engine.batch(samples), answers, strict=True):
            assert snr_db(answer, found) > JOINED_DB


@pytest.mark.parametrize("instances", [1, 2])
def test_many_callers_at_once(
    case: Case, instances: int, record_property: Callable[[str, object], None]
) -> None:
    path, samples, answers = case
    if instances > effective_cpus():
        pytest.skip("one CPU")
    wrong: list[str] = []
    joined: list[float] = []

    async def submits(engine: ot.Engine) -> None:
        async def one(number: int) -> None:
            place = number % len(samples)
            found = await engine.submit(**samples[place])
            joined.append(snr_db(answers[place], found))
            if joined[-1] < JOINED_DB:
                wrong.append(f"caller {number}")

        await asyncio.gather(*(one(number) for number in range(CALLERS)))

    def calls(engine: ot.Engine, number: int) -> None:
        for turn in range(2):
            place = (number + turn) % len(samples)
            if not same(engine(**samples[place]), answers[place]):
                wrong.append(f"thread {number}")

    with ot.load(path, on=ON, instances=instances) as engine:
        each: list[Callable[[], object]] = [
            lambda n=n: calls(engine, n)  # type: ignore[misc]
            for n in range(THREADS)
        ]
        threads = [threading.Thread(target=call) for call in each]
        for thread in threads:
            thread.start()
        asyncio.run(submits(engine))
        for thread in threads:
            thread.join()
        counts = engine.statistics
    assert not wrong
    assert sum(one.requests for one in counts.batches.values()) == CALLERS
    assert counts.failed == counts.depth == 0
    told = f"{2 * THREADS} equal, {CALLERS} async at {min(joined):.0f} dB or more"
    record_property(
        "answers", f"{told}, in {sum(one.count for one in counts.batches.values())} runs"
    )


def test_a_state_is_never_joined() -> None:
    if missing := engines.absent("silero"):
        pytest.skip(missing)
    path, samples = engines.model("silero")

    async def main(engine: ot.Engine) -> None:
        await asyncio.gather(*(engine.submit(**one) for one in samples * 4))

    with ot.load(path, on=ON) as engine:
        asyncio.run(main(engine))
        assert set(engine.statistics.batches) == {1}


def test_openvino_answers_many_threads() -> None:
    pytest.importorskip("openvino")
    path, samples = engines.model("digit-cnn")
    wrong: list[int] = []
    with ot.load(path, on="openvino(threads=1)") as engine:
        answers = [engine(**one) for one in samples]

        def calls(start: int) -> None:
            for turn in range(200):
                place = (start + turn) % len(samples)
                if snr_db(answers[place], engine(**samples[place])) < JOINED_DB:
                    wrong.append(turn)

        threads = [threading.Thread(target=calls, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.parametrize("most", [40_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_memory_stays_where_it_is(
    record_property: Callable[[str, object], None], most: int
) -> None:
    path, samples = engines.model("digit-cnn")
    own = psutil.Process()

    async def submits(engine: ot.Engine, count: int) -> None:
        for start in range(0, count, 100):
            some = (samples[(start + n) % len(samples)] for n in range(100))
            await asyncio.gather(*(engine.submit(**one) for one in some))

    with ot.load(path, on=ON) as engine:

        def calls(count: int) -> int:
            for number in range(4 * count // 5):
                engine(**samples[number % len(samples)])
            asyncio.run(submits(engine, count // 5))
            return own.memory_info().rss

        before = calls(most // 5)
        grown = calls(most) - before
    record_property("grown", f"{grown / 1e6:.2f} MB over {most} calls")
    assert grown < GROWN, f"{grown / 1e6:.1f} MB over {most} calls"
