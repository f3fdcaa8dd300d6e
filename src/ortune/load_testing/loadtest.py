"""Put a server under load, level by level."""

from __future__ import annotations

import hashlib
import shlex
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from ortune.analysis.benchmark.result import NoiseVerdict
from ortune.core.errors import BadData
from ortune.core.event import Progress
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.request import verb
from ortune.core.wording import count
from ortune.engine.load import load as opened
from ortune.load_testing import slo, sweep
from ortune.load_testing import url as server_url
from ortune.load_testing.check import CheckedAnswers, check
from ortune.load_testing.clients import Clients
from ortune.load_testing.goal import search as goal
from ortune.load_testing.goal.result import GoalResult
from ortune.load_testing.level import CLOCK, Level
from ortune.load_testing.load import Load
from ortune.load_testing.measure import Calling, clients
from ortune.load_testing.requests import LoadTest
from ortune.load_testing.result import LoadTestResult, RowOf, row
from ortune.load_testing.serving import RunningServer, serving
from ortune.load_testing.sweep import Repeated
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import machine, versions

_CONCURRENCY = (1, 2, 4, 8)
_SPREAD = 16
"""Connections to several server processes: few callers' own are often those of one process."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run(asked: LoadTest) -> LoadTestResult | GoalResult:
    """Put a server under one level of load after another, and say what came of it.

    With a goal, choose how a bundle is served instead.
    """
    return goal.search(asked) if asked.goal else _measured(asked)


def _measured(asked: LoadTest) -> LoadTestResult:
    with ExitStack() as stack:
        server = _server(stack, asked)
        url = server.url(asked.protocol) if server else asked.target
        where = server_url.read(url)
        sending = stack.enter_context(_clients(asked, url))
        before = noise.snapshot()
        found = sweep.run(
            _loads(asked),
            asked.repeats,
            lambda load: sending.measure(
                load, warm_up_s=asked.warm_up, pid=server.pid if server else None
            ),
            lambda done, total: asked.sink(Progress("load test", done, total)),
        )
        record = noise.between(before, noise.snapshot())
        checked = _checked(asked, found, sending, where.protocol)
        of = _row_of(asked, sending, where.protocol)
    local = where.host in _LOOPBACK
    limit = slo.read(asked.slo) if asked.slo else None
    keeping = [k for k, one in enumerate(found) if limit and limit.holds(one)]
    judged = noise.judge(record)
    return LoadTestResult(
        target=asked.target,
        model=sending.model.name,
        protocol=where.protocol,
        rows=tuple(row(one, of) for one in found),
        knee=sweep.knee(found),
        most=sweep.most(found),
        kept=max(keeping, key=lambda place: found[place].rate, default=None),
        slo=asked.slo,
        processes=asked.processes if server else 0,
        clients=asked.clients,
        clock=CLOCK,
        knee_rule=sweep.KNEE,
        checked=checked,
        notes=tuple(_notes(asked, found, limit, local=local)),
        machine=machine() if local else {**machine(), "server": where.host},
        versions=versions(),
        noise=record.readings(),
        judgement=NoiseVerdict(judged.too_noisy, noise.RULE, judged.advice if server else ()),
    )


loadtest = verb(LoadTest, run, "loadtest")


def _loads(asked: LoadTest) -> list[Load]:
    seconds = 0.0 if asked.requests else asked.seconds
    if asked.rate:
        return [Load(rate=one, seconds=seconds, requests=asked.requests) for one in asked.rate]
    return [
        Load(one, seconds=seconds, requests=asked.requests)
        for one in asked.concurrency or _CONCURRENCY
    ]


def _server(stack: ExitStack, asked: LoadTest) -> RunningServer | None:
    """Start a server where a file is given; None for one that runs."""
    if server_url.is_url(asked.target):
        return None
    if not Path(asked.target).exists():
        raise BadData(
            f"no file {asked.target}", fix="check the path, or write http://HOST:PORT for a server"
        )
    options = shlex.split(asked.serve)
    options += ["--on", asked.on] if asked.on else []
    options += ["--processes", str(asked.processes)] if asked.processes > 1 else []
    asked.sink(Progress("starting the server"))
    return stack.enter_context(serving(asked.target, options=options))


def _clients(asked: LoadTest, url: str) -> AbstractContextManager[Clients]:
    token = Path(asked.token_file).read_text(encoding="utf-8") if asked.token_file else ""
    return clients(
        url,
        model=asked.model,
        data=asked.data,
        shapes=asked.shapes,
        ranges=asked.ranges,
        batch=asked.batch,
        calling=Calling(
            processes=asked.clients,
            connections=asked.connections,
            timeout_s=asked.timeout,
            token=token.strip(),
            ca=str(asked.ca or ""),
            kept=asked.check is not None,
            spread=_SPREAD if asked.processes > 1 else 0,
        ),
        sink=asked.sink,
    )


def _checked(
    asked: LoadTest, found: list[Repeated], sending: Clients, protocol: str
) -> CheckedAnswers | None:
    """Compare the answers with those of the model, run here; the load is over by now."""
    if asked.check is None:
        return None
    asked.sink(Progress("comparing answers"))
    levels: list[Level] = [level for one in found for level in one.levels]
    with opened(asked.check, on=asked.on or None) as engine:
        return check(levels, sending.model.samples, engine, protocol)


def _row_of(asked: LoadTest, sending: Clients, protocol: str) -> RowOf:
    model, path = sending.model, Path(asked.target)
    backend = asked.on or model.platform
    if server_url.is_url(asked.target) or not path.is_file():
        return RowOf(model.name, backend, protocol, model.batch)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return RowOf(path.name, backend, protocol, model.batch, digest, path.stat().st_size)


def _notes(
    asked: LoadTest, found: list[Repeated], limit: slo.LatencyLimit | None, *, local: bool
) -> list[str]:
    shared = effective_cpus() if local else 0
    made = sweep.remarks(found, processes=asked.clients, shared=shared)
    if asked.processes > 1:
        made.append(
            "queue, compute and rows a run are those of one of "
            f"{count(asked.processes, 'server process', 'server processes')}: each counts its own"
        )
    for one in found:
        if limit and limit.holds(one) is None:
            made.append(
                f"{one.load}: whether {limit} holds is not known: fewer than 10 of its "
                f"{one.answered:,} answers lie beyond p{limit.percentile:g}; give more --requests"
            )
    return made
