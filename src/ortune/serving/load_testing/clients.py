"""The client processes of one model on one server, and a level of load that they put on it.

The client may be Triton's perf_analyzer, where it is installed.
"""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ortune.core import regular_file
from ortune.core.errors import BadData, OrtuneError, summarize_error
from ortune.core.python_process import make_python_command
from ortune.core.session import Tensors
from ortune.core.temporary_folder import open_temporary_folder
from ortune.core.workload import spread_indices
from ortune.data import synthetic
from ortune.data.stream import Stream
from ortune.serving.load_testing import bodies
from ortune.serving.load_testing.client import Report, Setup, Stretch
from ortune.serving.load_testing.levels import Level, Load, Run
from ortune.serving.load_testing.requests import LoadTest, ServerUrl
from ortune.serving.load_testing.server import Admin, process_usage

_SAMPLES = 32
"""Different requests at most; they are sent in turn."""
_AHEAD_NS = 100_000_000
"""From the orders to the start: all processes have theirs by then."""
_SPREAD = 16
"""Connections to several server processes: few callers' own are often those of one process."""
_NEEDED = {"http": ("httptools", "httptools"), "grpc": ("grpc", "grpcio")}
"""Protocol -> module, and the package that brings it."""


@dataclass(frozen=True)
class CalledModel:
    """What is called on a server, on a `platform` as it says; no version is the default one."""

    name: str
    version: str
    platform: str
    batch: int
    samples: tuple[Tensors, ...]


@contextmanager
def open_clients(request: LoadTest, url: str = "") -> Iterator[Clients]:
    """Make requests for a model on a server, and give what puts load on it.

    Of `request`, levels are not used; `url` is of a server that runs, else its target is taken.
    Raises BadData: the server has no such model, or the samples do not fit it; BadSettings: the
    target is no address; OrtuneError: nobody answers there, or a package of extra ``serve`` is
    missing.
    """
    address = ServerUrl.parse(url or request.target)
    module, package = _NEEDED[address.protocol]
    if not find_spec(module):
        raise OrtuneError(
            f"a load test over {address.protocol} needs {package}", fix=f"pip install {package}"
        )
    token = regular_file.read_text(request.token_file, 1 << 16) if request.token_file else ""
    with ExitStack() as stack:
        admin = Admin(address, ca=str(request.ca or ""), token=token.strip())
        stack.enter_context(closing(admin))
        model = request.model
        if not model:
            names = admin.list_models()
            if len(names) != 1:
                listed = ", ".join(names)
                raise BadData(
                    f"the server has several models: {listed}"
                    if names
                    else "the server lists no model",
                    fix="name one with --model",
                )
            model = names[0]
        name, _, version = model.partition("/")
        metadata = admin.fetch_metadata(name, version)
        folder = Path(stack.enter_context(open_temporary_folder()))
        feeds = synthetic.load_or_generate_feeds(
            request.data,
            bodies.input_specs(metadata),
            out=folder / "data",
            shapes=request.shapes,
            ranges=request.ranges,
            batch=request.batch,
            sink=request.sink,
        )
        stream, rows = Stream(feeds.stream), max(1, request.batch)
        samples = [stream[at] for at in spread_indices(len(stream), _SAMPLES * rows)]
        requests = tuple(bodies.stack_batches(samples, request.batch))
        platform = str(metadata.get("platform", ""))
        called_model = CalledModel(name, version, platform, rows, requests)
        yield Clients(request, address, called_model, admin, stack)


class Clients:
    """Client processes of one model on one server; they start with the first level.

    `answers` counts right ones, where they are compared, by (sample, bytes of JSON at the head or
    -1, body); `dropped` those that were not kept, as too many differ.
    """

    def __init__(
        self, request: LoadTest, url: ServerUrl, model: CalledModel, admin: Admin, stack: ExitStack
    ) -> None:
        """Start nothing yet; what is started ends with the stack."""
        self.model = model
        self.answers: Counter[tuple[int, int, bytes]] = Counter()
        self.dropped = 0
        self._request, self._url, self._admin, self._stack = request, url, admin, stack
        self._processes: dict[bool, list[_Process]] = {}

    def measure_level(
        self, load: Load, *, warm_up_s: float = 0.5, pid: int | None = None
    ) -> Level:
        """Put one level of load on the server and return what came of it.

        The same load goes before for `warm_up_s`, not counted; its answers are all awaited. `pid`
        is the server's process on this machine: CPU time and memory, of its children too, are
        measured. Raises OrtuneError: a client process failed.
        """
        if warm_up_s > 0:
            # Another seed, so that the arrivals of the level are not rehearsed.
            self._send_load(replace(load, requests=0, seconds=warm_up_s, seed=load.seed + 10_000))
        before = self._admin.fetch_statistics(self.model.name, self.model.version)
        used = process_usage(pid)
        reports = self._send_load(load)
        usage = process_usage(pid)
        after = self._admin.fetch_statistics(self.model.name, self.model.version)
        for report in reports:
            self.answers.update(report.answers)
            self.dropped += report.dropped
        growth = None
        if before is not None and after is not None:
            growth = Counter(after)
            growth.subtract(before)
        errors: Counter[str] = Counter()
        logs, right = [], []
        for report in reports:
            log = np.frombuffer(report.entries, np.int64).reshape(-1, 4)
            logs.append(log)
            right.append(log[log[:, 3] == 0])
            for place, error in enumerate(report.errors[1:], 1):
                errors[error] += int((log[:, 3] == place).sum())
        entries, answered = np.concatenate(logs), np.concatenate(right)
        answered = answered[np.argsort(answered[:, 0], kind="stable")]
        first = entries[:, 2 if load.is_open else 0].min(initial=np.iinfo(np.int64).max)
        elapsed_ns = max(0, int(entries[:, 2].max(initial=first) - first))
        late = entries[:, 1] - entries[:, 0] if load.is_open else entries[:0, 0]
        run = Run(
            load=load,
            latency_ns=tuple(np.maximum(0, answered[:, 2] - answered[:, 0]).tolist()),
            late_ns=tuple(np.maximum(0, late).tolist()),
            errors=dict(errors),
            examples={name: text for report in reports for name, text in report.examples.items()},
            elapsed_s=elapsed_ns / 1e9,
            client_cpu_s=sum(report.cpu_s for report in reports),
            client_busy=max(report.cpu_s / max(report.wall_s, 1e-9) for report in reports),
            server=growth,
            server_cpu_s=usage[0] - used[0] if usage and used else None,
            server_rss=usage[1] if usage else None,
        )
        return Level(load, (run,))

    def _send_load(self, load: Load) -> list[Report]:
        model = self.model
        if self._request.client == "perf_analyzer":
            max_batch = self._admin.fetch_max_batch(model.name, model.version)
            name = f"{model.name}/{model.version}"
            return [run_perf_analyzer(self._url, name, load, model.samples, max_batch=max_batch)]
        if load.is_open not in self._processes:  # those of a kind of loop are started once
            request, url, token = self._request, self._url, self._admin.token
            requests = [
                bodies.http_request(url, model.name, model.version, sample, token)
                if url.protocol == "http"
                else bodies.grpc_request(model.name, model.version, sample)
                for sample in model.samples
            ]
            setup = Setup(
                url=url,
                requests=tuple(requests),
                open_loop=load.is_open,
                connections=request.connections,
                timeout_s=request.timeout,
                ca=str(request.ca or ""),
                token=token,
                keep_answers=request.check is not None,
                spread=_SPREAD if request.processes > 1 else 0,
            )
            processes = [self._stack.enter_context(_Process()) for _ in range(request.clients)]
            for process in processes:
                process.write_message(setup)
            for process in processes:
                process.read_report()
            self._processes[load.is_open] = processes
        processes = self._processes[load.is_open]
        start = time.perf_counter_ns() + _AHEAD_NS
        if load.is_open:
            # Dealt out, so that together they keep one schedule exactly.
            schedule, parts = load.draw_schedule(), len(processes)
            orders = [
                Stretch(start, schedule=array("q", schedule[part::parts])) for part in range(parts)
            ]
        else:
            orders = [
                Stretch(start, share.concurrency, share.requests, share.seconds)
                for share in load.split_callers(len(processes))
            ]
        working = list(zip(processes, orders, strict=False))
        for process, order in working:
            process.write_message(order)
        return [process.read_report() for process, _ in working]


class _Process:
    """One client process, which is written orders and read reports."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            make_python_command("-m", "ortune.serving.load_testing.client"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._process.stdin and self._process.stdout  # both are asked for
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def write_message(self, message: Setup | Stretch) -> None:
        try:
            pickle.dump(message, self._stdin)
            self._stdin.flush()
        except BrokenPipeError:
            raise self._make_error() from None

    def read_report(self) -> Any:
        try:
            return pickle.load(self._stdout)
        except EOFError:
            raise self._make_error() from None

    def _make_error(self) -> OrtuneError:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return OrtuneError(
            "a client process failed: "
            f"{summarize_error(lines[-1]) if lines else 'without a message'}",
            fix="give fewer --clients where memory is short, else report it",
        )

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()
        self._stdout.close()
        with suppress(BrokenPipeError):
            self._stdin.close()


PERF_ANALYZER_CLOCK = (
    "from sending a request to its answer, by perf_analyzer's clock: a closed loop, whose callers "
    "send nothing while they wait"
)
_WINDOWS = 3
"""What it takes to call a measurement stable; their requests all count."""


def run_perf_analyzer(
    url: ServerUrl, model: str, load: Load, samples: Sequence[Tensors], *, max_batch: int
) -> Report:
    """Let it put a closed loop of load on a model, NAME or NAME/VERSION.

    Every request has all inputs of a sample; `max_batch` is 0 where the model's configuration
    describes whole tensors. Raises OrtuneError: it is not installed, or ends with an error.
    """
    program = shutil.which("perf_analyzer")
    if program is None:
        raise OrtuneError(
            "perf_analyzer is not installed", fix="pip install perf-analyzer, or drop --client"
        )
    name, _, version = model.partition("/")
    rows = len(next(iter(samples[0].values()))) if max_batch else 1
    words = [program, "-i", url.protocol, "-u", url.netloc, "-b", str(rows)]
    words += ["-m", name, *(["-x", version] if version else [])]
    words += ["--concurrency-range", str(load.concurrency)]
    words += ["--input-data", "data.json", "--profile-export-file", "profile.json"]
    if load.requests:
        words += ["--request-count", str(load.requests)]
    else:
        window_ms = max(1, round(1000 * load.seconds / _WINDOWS))
        words += ["-p", str(window_ms), "-r", str(_WINDOWS), "-s", "1000"]
    with open_temporary_folder() as path:
        folder, report = Path(path), Report()
        steps = []
        for sample in samples:  # itself, or its rows, which it joins again
            parts = [sample]
            if max_batch:
                parts = [{name: a[row] for name, a in sample.items()} for row in range(rows)]
            steps += [
                {
                    name: {"content": array.ravel().tolist(), "shape": list(array.shape)}
                    for name, array in part.items()
                }
                for part in parts
            ]
        (folder / "data.json").write_text(json.dumps({"data": steps}), encoding="utf-8")
        began, before = time.perf_counter(), psutil.Process().cpu_times()
        completed = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)
        after, report.wall_s = psutil.Process().cpu_times(), time.perf_counter() - began
        report.cpu_s = after.children_user - before.children_user
        report.cpu_s += after.children_system - before.children_system
        if completed.returncode or not (folder / "profile.json").exists():
            lines = (completed.stdout + completed.stderr).strip().splitlines() or [
                "without a message"
            ]
            raise OrtuneError(
                f"perf_analyzer failed: {summarize_error(lines[-1])}",
                fix="run perf_analyzer by itself to see why",
            )
        profile = json.loads((folder / "profile.json").read_text(encoding="utf-8"))
    for request in profile["experiments"][0]["requests"]:
        sent = request["timestamp"]
        report.add_request(sent, sent, request["response_timestamps"][-1], "")
    return report
