"""Put a server under load, level by level, and say what came of it in rows."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ortune.analysis.benchmark.interleave import NoiseVerdict
from ortune.analysis.benchmark.row_figures import summarize_latency
from ortune.bundle.engine.load import load_engine
from ortune.core import regular_file
from ortune.core.errors import BadData
from ortune.core.event import Progress
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.request import make_verb
from ortune.core.result import TableResult
from ortune.core.wording import format_rate
from ortune.measurement.arrivals.lanes import percentile
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import describe_machine, package_versions
from ortune.serving.load_testing import goal, levels
from ortune.serving.load_testing.bodies import CheckedAnswers, check_answers
from ortune.serving.load_testing.clients import PERF_ANALYZER_CLOCK, Clients, open_clients
from ortune.serving.load_testing.goal import GoalResult
from ortune.serving.load_testing.levels import CLIENT_LIMIT, CLOCK, Level, Load
from ortune.serving.load_testing.requests import LoadTest, PercentileLimit, ServerUrl, is_url
from ortune.serving.load_testing.server import RunningServer, serve_models, serve_options

MEASURE = "latency from the intended start"
_BLOCKS = 12
_LEVEL_S = 10.0
"""Parts of a run: their spread is the error of its mean."""
_SHOWN = ("workload", "requests_per_s", "p50_ns", "p90_ns", "p95_ns", "p99_ns", "failed", "error")
_CONCURRENCY = (1, 2, 4, 8)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, repr=False)
class LoadTestResult(TableResult):
    """A server under one level of load after another.

    Attributes:
        target: Address, or the file that was served.
        protocol: ``http`` or ``grpc``.
        rows: A level each, raw nanoseconds included; see ``docs/loadtest.md``.
        knee: Place of the level at the knee of the curve; None with one level.
        most: Place of the level with most right answers a second.
        kept: Place of the level with most of them that keeps the limit.
        slo: The limit; empty without one.
        processes: Of the server that was started here; 0 for one that ran.
        clock: What a latency is.
        checked: Answers compared with the model's own; None where none were.
        machine: Where the client ran.
    """

    target: str
    model: str
    protocol: str
    rows: tuple[Mapping[str, Any], ...]
    knee: int | None
    most: int | None
    kept: int | None
    slo: str
    processes: int
    clients: int
    clock: str
    knee_rule: str
    checked: CheckedAnswers | None
    notes: tuple[str, ...]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    noise: Mapping[str, Any]
    judgement: NoiseVerdict

    def summary(self) -> Mapping[str, object]:
        """Return the levels that matter."""
        return {
            "model": f"{self.model} over {self.protocol}",
            "most": self._describe_level(self.most),
            "knee": self._describe_level(self.knee),
            **({self.slo: self._describe_level(self.kept)} if self.slo else {}),
        }

    def records(self) -> Sequence[Mapping[str, object]]:
        """Return a level's key figures."""
        return [{name: row.get(name) for name in _SHOWN} for row in self.rows]

    def _describe_level(self, place: int | None) -> str:
        if place is None:
            return "none"
        row = self.rows[place]
        return f"{row['workload']}: {format_rate(row['requests_per_s'])} requests/s"


def run(request: LoadTest) -> LoadTestResult | GoalResult:
    """Put a server under one level of load after another, and say what came of it.

    With a goal, choose how a bundle is served instead.
    """
    if request.goal:
        return goal.search_settings(request)
    with ExitStack() as stack:
        server: RunningServer | None = None
        if not is_url(request.target):
            if not Path(request.target).exists():
                raise BadData(
                    f"no file {request.target}",
                    fix="check the path, or write http://HOST:PORT for a server",
                )
            request.sink(Progress("starting the server"))
            server = stack.enter_context(
                serve_models(request.target, options=serve_options(request))
            )
        address = ServerUrl.parse(server.find_url(request.protocol) if server else request.target)
        pid = server.pid if server else None
        load_clients = stack.enter_context(open_clients(request, str(address)))
        before = noise.take_snapshot()
        seconds = 0.0 if request.requests else (request.time or _LEVEL_S)
        loads = [
            Load(rate=rate, seconds=seconds, requests=request.requests) for rate in request.rate
        ] or [
            Load(callers, seconds=seconds, requests=request.requests)
            for callers in request.concurrency or _CONCURRENCY
        ]
        measured = levels.sweep_loads(
            loads,
            request.repeats,
            lambda load: load_clients.measure_level(load, warm_up_s=request.warm_up, pid=pid),
            lambda done, total: request.sink(Progress("load test", done, total)),
        )
        record = noise.compare_snapshots(before, noise.take_snapshot())
        checked = None
        if request.check is not None:  # the load is over by now
            request.sink(Progress("comparing answers"))
            with load_engine(request.check, on=request.on or None) as engine:
                checked = check_answers(
                    load_clients.answers,
                    load_clients.dropped,
                    load_clients.model.samples,
                    engine,
                    address.protocol,
                )
        shared = _describe_model(request, load_clients, address.protocol)
    is_local = address.host in _LOOPBACK
    limit = PercentileLimit.parse(request.slo) if request.slo else None
    keeping = [place for place, level in enumerate(measured) if limit and level.keeps_limit(limit)]
    judged = noise.judge_noise(record)
    remarks = levels.list_remarks(
        measured,
        processes=request.clients,
        shared=effective_cpus() if is_local else 0,
        servers=request.processes,
        limit=limit,
    )
    return LoadTestResult(
        target=request.target,
        model=load_clients.model.name,
        protocol=address.protocol,
        rows=tuple(_build_row(level, shared) for level in measured),
        knee=levels.find_knee(measured),
        most=levels.find_fastest(measured),
        kept=max(keeping, key=lambda place: measured[place].rate, default=None),
        slo=request.slo,
        processes=request.processes if server else 0,
        clients=request.clients,
        clock=CLOCK if request.client == "ortune" else PERF_ANALYZER_CLOCK,
        knee_rule=levels.KNEE,
        checked=checked,
        notes=tuple(remarks),
        machine=describe_machine() if is_local else {**describe_machine(), "server": address.host},
        versions=package_versions(),
        noise=record.format_readings(),
        judgement=NoiseVerdict(judged.too_noisy, noise.RULE, judged.advice if server else ()),
    )


loadtest = make_verb(LoadTest, run, "loadtest")


def _describe_model(request: LoadTest, load_clients: Clients, protocol: str) -> dict[str, Any]:
    """Return what all rows of a load test share."""
    model, path = load_clients.model, Path(request.target)
    name, digest, size = model.name, None, None
    if not is_url(request.target) and path.is_file():
        with regular_file.open_regular(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        name, size = path.name, path.stat().st_size
    return {
        "model": name,
        "digest": digest,
        "backend": request.on or model.platform,
        "protocol": protocol,
        "batch": model.batch,
        "size": size,
    }


def _build_row(level: Level, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return a level's row: the fields of `bench` that it has, and its own."""
    latency, runs, batch = level.latency_ns, level.runs, shared["batch"]
    texts = ", ".join(f"{error} ({number:,})" for error, number in level.errors.items())
    server_cpu_s = [run.server_cpu_s for run in runs if run.server_cpu_s is not None]
    counted = [run.server for run in runs if run.server is not None]
    total = sum(map(Counter, counted), Counter[str]())

    def mean(name: str, count: str) -> float | None:
        """Return a mean of the server's over the requests that it counted."""
        return total[name] / total[count] if total[count] > 0 else None

    def per_request(seconds: float) -> float | None:
        return seconds * 1e9 / level.requests if level.requests else None

    return {
        "model": shared["model"],
        "digest": shared["digest"],
        "backend": shared["backend"],
        "workload": f"{shared['protocol']}, {level.load}",
        "batch": 0 if batch == 1 else batch,
        "error": None if latency else f"no request was answered: {texts or 'none was sent'}",
        "size": shared["size"],
        "latency_ns": list(latency),
        **summarize_latency(latency),
        "p95_ns": level.compute_percentile(95),
        "requests_per_s": level.rate,
        "per_second": level.rate * batch,
        "offered_per_s": level.load.rate or None,
        "concurrency": level.load.concurrency or None,
        "keeps_up": level.keeps_up,
        "measure": MEASURE,
        "answered": level.answer_count,
        "failed": level.failure_count,
        "errors": dict(level.errors),
        "examples": {error: text for run in runs for error, text in run.examples.items()},
        "late_p99_ns": level.late_p99_ns,
        "server": {
            "answered": total["answered"] if counted else None,
            "queue_ns": mean("queue_ns", "queue"),
            "compute_ns": mean("compute_ns", "compute"),
            "batch": mean("rows", "runs"),
            "cpu_ns": per_request(sum(server_cpu_s)) if server_cpu_s else None,
        },
        "client": {
            "busy": level.client_busy,
            "limits": level.client_limits,
            "limit": CLIENT_LIMIT,
            "cpu_ns": per_request(sum(run.client_cpu_s for run in runs)),
        },
        "peak_rss": max((run.server_rss for run in runs if run.server_rss), default=None),
        "repeats": [
            {"requests_per_s": run.rate, "p50_ns": percentile(run.latency_ns, 50)} for run in runs
        ],
        "turns": [
            [block.tolist() for block in np.array_split(run.latency_ns, _BLOCKS) if len(block)]
            for run in runs
            if run.latency_ns
        ],
        "runs_each": [1 for run in runs if run.latency_ns],
        "alike": True,
    }
