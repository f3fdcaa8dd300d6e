"""``python -m ortune.load_testing.client SETUP.json``: obeys the lines of its stdin.

A closed loop runs on uvloop where that is installed, for less CPU. An open loop runs on
``select``, which waits to the microsecond: the others round a wait up to a millisecond, which
would count as latency.
"""

from __future__ import annotations

import asyncio
import gc
import json
import selectors
import sys
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ortune.load_testing.client import drive
from ortune.load_testing.client.answers import KeptAnswers
from ortune.load_testing.client.setup import Done, Setup, Stretch

_OPENED = 16
"""Connections that are open before the first arrival; more are opened when they are needed."""


def main(path: str) -> None:
    """Read the setup, say so by an empty line, and obey until stdin ends."""
    setup = Setup(**json.loads(Path(path).read_text(encoding="utf-8")))
    gc.disable()  # a level ends before what it leaves counts; a collection in it would
    with asyncio.Runner(loop_factory=_loop(setup)) as runner:
        runner.run(_obey(setup))


def _loop(setup: Setup) -> Callable[[], asyncio.AbstractEventLoop]:
    if setup.open:
        return lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
    with suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop


async def _obey(setup: Setup) -> None:
    answers = KeptAnswers() if setup.kept else None
    sender = _sender(setup, answers)
    loop = asyncio.get_running_loop()
    _tell("")
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        done = await _carry_out(setup, Stretch(**json.loads(line)), sender, answers)
        _tell(json.dumps(asdict(done)))
        gc.collect()
    await sender.close()


async def _carry_out(
    setup: Setup, order: Stretch, sender: drive.Sender, answers: KeptAnswers | None
) -> Done:
    log, clock = drive.Log(), time.perf_counter_ns
    if answers is not None:
        answers.left = 0
    await sender.prepare(max(setup.spread, order.callers or min(setup.room, _OPENED)))
    began, spent = clock(), time.process_time()
    if order.due:
        due = array("q", Path(order.due).read_bytes())
        await drive.opened(
            sender,
            log,
            clock,
            at=order.at,
            due=due,
            room=setup.room,
            patience_s=setup.timeout_s,
        )
    else:
        await drive.closed(
            sender,
            log,
            clock,
            at=order.at,
            callers=order.callers,
            most=order.requests,
            seconds=order.seconds,
        )
    cpu_s, wall_s = time.process_time() - spent, (clock() - max(began, order.at)) / 1e9
    out = Path(order.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "log").write_bytes(log.entries.tobytes())
    return Done(
        log=str(out / "log"),
        words=tuple(log.words),
        examples=dict(sender.examples),
        cpu_s=cpu_s,
        wall_s=wall_s,
        answers=() if answers is None else tuple(answers.write(out / "answers")),
        left=0 if answers is None else answers.left,
    )


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _sender(setup: Setup, answers: KeptAnswers | None) -> drive.Sender:
    requests = [Path(one).read_bytes() for one in setup.requests]
    if setup.protocol == "http":
        from ortune.load_testing.client import http

        return http.HttpSender(
            setup.host,
            setup.port,
            requests,
            timeout_s=setup.timeout_s,
            tls=http.context(setup.ca) if setup.tls else None,
            answers=answers,
        )
    from ortune.load_testing.client import grpc

    return grpc.GrpcSender(
        setup.host,
        setup.port,
        requests,
        timeout_s=setup.timeout_s,
        tls=grpc.credentials(setup.ca) if setup.tls else None,
        token=setup.token,
        answers=answers,
    )


if __name__ == "__main__":
    main(sys.argv[1])
