"""Hostile clients, and what three others notice of them.

    python -m benchmarks.serving.hostile [--seconds 10] [--only TEXT]

Each kind, by HTTP and by gRPC, for three windows of so many seconds beside an open loop of three
honest clients (binary and JSON over HTTP, gRPC), in turns with three windows of the same load
alone; then all kinds at once for nine windows beside three alone. Hostile clients have an address
of their own where they hold many connections, and only the CPU that nobody else wants, as if they
came from another machine. At the end SIGTERM comes while all of them are there.

Results: benchmarks/results/serving_hostile.json; exit 1 when the others' p99 is more than twice
what it is alone, one of them gets an error, the server holds more than it may, or ends late.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import numpy as np
import onnx
from tests import http2
from tests.endless import FOR_EVER, write_loop
from tests.serving import Serving, serving
from tritonclient.grpc import service_pb2

from benchmarks.serving.bodies import fuzzed
from benchmarks.serving.load import METHOD, Load, Request, client
from benchmarks.serving.models import SMALL, binary, message, plain
from benchmarks.serving.recorded import about, write
from benchmarks.speed.neighbour import to_itself

_HOSTILE_HOST = "127.0.0.2"
_RATE, _SLOWER, _DRAIN_S, _END_S = 150.0, 2.0, 5.0, 5.0
_TURNS = 3
"""Of which the median counts: a neighbour of the machine spoils one."""
_HELD = 1 << 30
"""Bytes that the server may hold of requests and answers beside its own."""
_SILENT, _READERS, _ENDLESS, _TEXTS = 2200, 64, 4, 60 << 20
_WIDE = """<ir_version: 8, opset_import: ["": 17]>
g (float[1] x) => (float[n] y) { n = Constant <value_ints = [4000000]> () y = Expand(x, n) }
"""
"""16 MB of answer to a hundred bytes."""

_HALVES = (
    b"",
    b"POST /v2/models/m/inf",
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Le",
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)


@contextmanager
def hanging(http_address: str, grpc_address: str, count: int) -> Iterator[None]:
    """Keep connections open that say half a request, to both ports."""
    with ExitStack() as stack:
        for number in range(count):
            address = (http_address, grpc_address)[number % 2]
            one = stack.enter_context(closing(_connected(address)))
            with suppress(OSError):
                one.sendall(_HALVES[number // 2 % len(_HALVES)])
        yield


@contextmanager
def flooding(request: Request, address: str, clients: int) -> Iterator[None]:
    """Send requests as fast as they go and read no answer, until the block ends."""
    data = _as_http(request)
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            with suppress(OSError), closing(_connected(address)) as one:
                one.settimeout(0.5)
                while not stop.is_set():
                    try:
                        one.sendall(data)
                    except TimeoutError:  # the server reads no more: it is its right
                        stop.wait(0.1)
                        break

    with _running([flood] * clients, stop):
        yield


def throw(http_address: str, grpc_address: str, count: int, seed: int) -> Counter[str]:
    """Send broken requests one after the other; return what they were answered with."""
    found: Counter[str] = Counter()
    connection = http.client.HTTPConnection(http_address, timeout=30)
    limit = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(grpc_address, options=limit) as channel:
        call = channel.unary_unary(METHOD)
        for one in fuzzed(count, seed):
            if one.protocol == "grpc":
                found[_over_grpc(call, one)] += 1
            else:
                found[_over_http(connection, one)] += 1
    connection.close()
    return found


def _over_http(connection: http.client.HTTPConnection, one: Request) -> str:
    try:
        connection.request("POST", one.path, one.body, dict(one.headers))
        response = connection.getresponse()
        response.read()
        return f"HTTP {response.status}"
    except (OSError, http.client.HTTPException):
        connection.close()
        return "HTTP, no answer"


def _over_grpc(call: Callable[..., bytes], one: Request) -> str:
    try:
        call(one.body, timeout=30)
        return "gRPC OK"
    except grpc.RpcError as error:
        return f"gRPC {error.code().name}"


def _connected(address: str, source: str = "") -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 10, (source, 0) if source else None)


@contextmanager
def _running(works: list[Callable[[], None]], stop: threading.Event) -> Iterator[None]:
    def run(work: Callable[[], None]) -> None:
        # As from another machine: it takes only the CPU that nobody else wants.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        work()

    threads = [threading.Thread(target=run, args=[work], daemon=True) for work in works]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        stop.set()
        for one in threads:
            one.join(timeout=10)


# --- what the others notice ---------------------------------------------------------------------


Row = dict[str, Any]
Hostile = Callable[[str, threading.Event], list[Callable[[], None]]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a window")
    parser.add_argument("--only", default="", help="kinds with this text, to look at")
    asked = parser.parse_args()
    seconds = asked.seconds
    rows: list[Row] = []
    with TemporaryDirectory(prefix="ortune-hostile-") as folder, to_itself():
        models = [SMALL.write(Path(folder)), write_loop(Path(folder) / "loop.onnx")]
        models.append(Path(folder) / "wide.onnx")
        onnx.save(onnx.parser.parse_model(_WIDE), models[-1])
        how = ["--on", "cpu(threads=1)", "--drain", f"{_DRAIN_S:g}s"]
        for front, kinds in KINDS.items():
            for name, kind in kinds.items():
                if asked.only not in f"{front} {name}":
                    continue
                with serving(*models, options=how) as server:
                    row = {
                        "front": front,
                        "kind": name,
                        **_beside(server, [(front, kind)], seconds),
                    }
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
        if asked.only in "both all":
            rows.append(_beside_all(models, how, seconds))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if not asked.only:
        write("serving_hostile", about() | {"seconds": seconds, "rate": _RATE, "rows": rows})
    return int(not all(row["within"] for row in rows))


def _beside_all(models: Sequence[Path], how: Sequence[str], seconds: float) -> Row:
    """Measure beside all kinds at once, and end the server while they are there."""
    every = [(front, kind) for front, kinds in KINDS.items() for kind in kinds.values()]
    with serving(*models, options=how) as server:
        row = {"front": "both", "kind": "all", **_beside(server, every, seconds, beside=3)}
        with _hostile(server, every):
            time.sleep(2)
            start = time.monotonic()
            code = server.end()
            ended = {"exit": code, "seconds": time.monotonic() - start, "drain": _DRAIN_S}
    return row | ended | {"within": row["within"] and ended["seconds"] <= _DRAIN_S + _END_S}


def _beside(
    server: Serving, kinds: Sequence[tuple[str, Hostile]], seconds: float, beside: int = 1
) -> Row:
    """Measure the honest clients alone and beside hostile ones, in turns."""
    alone, hostile = list[list[Load]](), list[list[Load]]()
    status = Path(f"/proc/{server.process.pid}")
    first = 0
    for _ in range(_TURNS):
        alone.append(_honest(server, seconds))
        first = first or _peak(status)
        (status / "clear_refs").write_text("5")  # the peak begins anew
        with _hostile(server, kinds):
            hostile += [_honest(server, seconds) for _ in range(beside)]
    quiet, loud = (
        [float(np.median([_p99(turn[place]) for turn in turns])) for place in range(3)]
        for turns in (alone, hostile)
    )
    errors = Counter[str]()
    for turn in (*alone, *hostile):
        for one in turn:
            errors.update(one.errors)
    row: Row = {
        "alone_ms": quiet,
        "beside_ms": loud,
        "ratio": max(b / a for a, b in zip(quiet, loud, strict=True)),
        "answered": sum(one.answered for turn in hostile for one in turn),
        "errors": dict(errors),
        "first_mb": first / 1e6,
        "peak_mb": _peak(status) / 1e6,
    }
    held = 1e6 * (row["peak_mb"] - row["first_mb"])
    return row | {"within": row["ratio"] <= _SLOWER and not errors and held <= 1.25 * _HELD}


def _honest(server: Serving, seconds: float) -> list[Load]:
    """Return what each of three clients sees."""
    given = {"x": SMALL.array()}
    asked = [(make(SMALL.name, given), server.http) for make in (binary, plain)]
    asked.append((message(SMALL.name, given), server.grpc))
    how: dict[str, Any] = {"concurrency": 8, "rate": _RATE, "seconds": seconds}
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        found = [stack.enter_context(client(one, where, **how)) for one, where in asked]
        return list(pool.map(lambda measure: measure(), found))


def _p99(load: Load) -> float:
    """Return it, or the worst of a window that is too short for it."""
    return load.percentiles.get("99", load.worst_ms)


def _peak(status: Path) -> int:
    line = next(one for one in (status / "status").read_text().splitlines() if "VmHWM" in one)
    return 1024 * int(line.split()[1])


@contextmanager
def _hostile(server: Serving, kinds: Sequence[tuple[str, Hostile]]) -> Iterator[None]:
    """Have hostile clients at it until the block ends."""
    stop = threading.Event()
    where = {"http": server.http, "grpc": server.grpc}
    works = [work for front, kind in kinds for work in kind(where[front], stop)]
    with _running(works, stop):
        time.sleep(0.5)
        yield


def _again(ask: Callable[[], Any], stop: threading.Event) -> Callable[[], None]:
    """Return what asks until it is told to stop, whatever it is answered."""

    def work() -> None:
        while not stop.is_set():
            with suppress(OSError, http.client.HTTPException, grpc.RpcError):
                ask()
            stop.wait(0.02)

    return work


def _holding(open_all: Callable[[ExitStack], None], stop: threading.Event) -> Callable[[], None]:
    """Return what holds connections open, opened again every 12 s: by then they are cut."""

    def hold() -> None:
        with ExitStack() as stack, suppress(OSError):
            open_all(stack)
            stop.wait(12)

    return _again(hold, stop)


def _as_http(request: Request) -> bytes:
    head = [f"POST {request.path} HTTP/1.1", "Host: x", f"Content-Length: {len(request.body)}"]
    head += [f"{k}: {v}" for k, v in request.headers.items()]
    return "\r\n".join([*head, "", ""]).encode() + request.body


def _unread_http(address: str, stop: threading.Event) -> list[Callable[[], None]]:
    asked = _as_http(binary("wide", {"x": np.ones(1, np.float32)}))

    def open_all(stack: ExitStack) -> None:
        for _ in range(_READERS):
            stack.enter_context(closing(_connected(address, _HOSTILE_HOST))).sendall(asked)

    return [_holding(open_all, stop)]


def _unread_grpc(address: str, stop: threading.Event) -> list[Callable[[], None]]:
    body = message("wide", {"x": np.ones(1, np.float32)}).body

    def open_all(stack: ExitStack) -> None:
        one = stack.enter_context(closing(http2.connect(address, _HOSTILE_HOST)))
        for stream in range(1, 2 * _READERS, 2):
            one.sendall(http2.call(stream, METHOD) + http2.message(stream, body))

    return [_holding(open_all, stop)]


def _silent_http(address: str, stop: threading.Event) -> list[Callable[[], None]]:
    def open_all(stack: ExitStack) -> None:
        for number in range(_SILENT):
            one = stack.enter_context(closing(_connected(address, _HOSTILE_HOST)))
            one.sendall(_HALVES[number % len(_HALVES)])

    return [_holding(open_all, stop)]


def _silent_grpc(address: str, stop: threading.Event) -> list[Callable[[], None]]:
    path = METHOD.replace("ModelInfer", "ModelStreamInfer")

    def open_all(stack: ExitStack) -> None:
        for _ in range(2):
            one = stack.enter_context(closing(http2.connect(address, _HOSTILE_HOST)))
            streams = range(1, _SILENT, 2)
            one.sendall(b"".join(http2.call(stream, path) for stream in streams))

    return [_holding(open_all, stop)]


def _texts_http(address: str, stop: threading.Event) -> list[Callable[[], None]]:
    asked = binary(SMALL.name, {"x": SMALL.array()})
    head = {"name": "x", "shape": [_TEXTS // 4], "datatype": "BYTES"}
    text = json.dumps({"inputs": [head | {"parameters": {"binary_data_size": _TEXTS}}]}).encode()
    more = asked.headers | {"Inference-Header-Content-Length": str(len(text))}
    body = _as_http(Request("http", text + bytes(_TEXTS), asked.path, more))

    def ask() -> None:
        with closing(_connected(address)) as one:
            one.sendall(body)
            one.recv(1 << 16)

    return [_again(ask, stop)]


def _texts_grpc(address: str, stop: threading.Event) -> list[Callable[[], None]]:
    made = service_pb2.ModelInferRequest(model_name=SMALL.name)
    made.inputs.add(name="x", datatype="BYTES", shape=[_TEXTS // 4])
    made.raw_input_contents.append(bytes(_TEXTS))
    return [_asked_again(address, made.SerializeToString(), stop)]


def _endless_http(address: str, stop: threading.Event) -> list[Callable[[], None]]:
    asked = _as_http(binary("loop", _ENDLESS_INPUTS))

    def ask() -> None:
        with closing(_connected(address)) as one:
            one.sendall(asked)
            one.settimeout(0.5)
            while not stop.is_set():
                with suppress(TimeoutError):
                    one.recv(1 << 16)
                    return

    return [_again(ask, stop)] * _ENDLESS


def _endless_grpc(address: str, stop: threading.Event) -> list[Callable[[], None]]:
    return [_asked_again(address, message("loop", _ENDLESS_INPUTS).body, stop)] * _ENDLESS


_ENDLESS_INPUTS = {"x": np.ones(4, np.float32), "n": np.array(FOR_EVER)}


def _asked_again(address: str, body: bytes, stop: threading.Event) -> Callable[[], None]:
    def ask() -> None:
        with grpc.insecure_channel(address) as channel:
            asked = channel.unary_unary(METHOD).future(body, wait_for_ready=False)
            while not asked.done() and not stop.is_set():
                stop.wait(0.05)
            asked.cancel()

    return _again(ask, stop)


KINDS: dict[str, dict[str, Hostile]] = {
    "http": {
        "slow reader": _unread_http,
        "silent": _silent_http,
        "large BYTES": _texts_http,
        "endless run": _endless_http,
    },
    "grpc": {
        "slow reader": _unread_grpc,
        "silent": _silent_grpc,
        "large BYTES": _texts_grpc,
        "endless run": _endless_grpc,
    },
}


if __name__ == "__main__":
    sys.exit(main())
