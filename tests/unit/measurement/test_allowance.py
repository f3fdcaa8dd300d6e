"""What processes take together is bounded, and the one that is ended is told why."""

import subprocess
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from ortune.core.errors import OrtuneError
from ortune.core.hardware import memory
from ortune.measurement.allowance import Allowance, limit_process

MB = 2**20
HOLD = "import sys; x = bytearray(b'1') * (int(sys.argv[1]) << 20); print('ready', flush=True);\
 sys.stdin.read()"


@dataclass(eq=False)
class Held:
    """A process that holds some memory."""

    megabytes: int
    limit: int
    why: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(self.megabytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout.readline() == b"ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self, why: str) -> None:
        self.why.append(why)
        self.process.kill()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def held():
    found: list[Held] = []

    def make(megabytes: int, limit: int) -> Held:
        found.append(Held(megabytes, limit * MB))
        return found[-1]

    yield make
    for one in found:
        one.close()


def waited(*workers: Held, seconds: float = 5.0) -> list[str]:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not any(one.why for one in workers):
        time.sleep(0.02)
    return [why for one in workers for why in one.why]


def test_two_that_fit_alone_do_not_fit_together(held) -> None:
    watch = Allowance()
    first, second = held(120, 200), held(150, 200)
    watch.add(first)
    time.sleep(0.4)
    assert not first.why
    watch.add(second)
    (why,) = waited(first, second)
    assert second.why == [why]
    assert why.startswith("ended by the memory limit of 200 MiB: it wanted 15")
    assert "MiB, beside 12" in why
    assert why.endswith("MiB of other processes")
    time.sleep(0.3)
    assert not first.why


def test_one_beyond_the_limit_is_ended_alone(held) -> None:
    watch = Allowance()
    one = held(150, 100)
    watch.add(one)
    (why,) = waited(one)
    assert why.startswith("ended by the memory limit of 100 MiB: it wanted 15")
    assert "beside" not in why


def test_who_is_through_counts_no_more(held) -> None:
    watch = Allowance()
    first, second = held(120, 200), held(150, 200)
    watch.add(first)
    assert 110 * MB < watch.count_bytes() < 180 * MB
    watch.drop(first)
    watch.add(second)
    assert not waited(first, second, seconds=0.5)
    watch.drop(second)
    assert watch.count_bytes() == 0


def test_a_process_that_is_gone_is_no_error(held) -> None:
    watch = Allowance()
    one = held(10, 1)
    one.close()
    watch.add(one)
    assert not waited(one, seconds=0.3)


def test_the_default_counts_what_workers_hold_already() -> None:
    alone = memory.count_allowed_bytes()
    assert abs(memory.count_allowed_bytes(bytes_in_use=1000 * MB) - alone - 900 * MB) < 200 * MB


def test_a_block_that_takes_more_than_the_limit_is_ended_in_this_process_too() -> None:
    def take() -> None:
        kept = []
        for _ in range(400):
            kept.append(np.ones(MB // 8))
            time.sleep(0.005)

    with (
        pytest.raises(OrtuneError, match=r"ended by the memory limit of 100 MiB") as caught,
        limit_process(100 * MB, pytest.fail),
    ):
        take()
    assert "--memory-limit" in caught.value.fix
    with limit_process(2000 * MB, pytest.fail):
        take()


def test_a_process_that_does_not_come_back_to_python_is_given_up() -> None:
    """The main thread waits for a lock for ever, while the memory goes on growing."""
    code = """
import os, threading, time
from ortune.measurement.allowance import limit_process

def grow():
    kept = []
    while True:
        kept.append(bytearray(b"1") * (8 << 20))
        time.sleep(0.02)

def give_up(why):
    print(why, flush=True)
    os._exit(7)

threading.Thread(target=grow, daemon=True).start()
with limit_process(50 << 20, give_up):
    threading.Event().wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("ended by the memory limit of 50 MiB: it wanted")
