"""What a request through the server costs over the engine's own call, at the median.

    python -m benchmarks.serving.overhead

The same model in a server on the loopback and in an engine of this process; both take turns A B B
A (`benchmarks.speed.engine_overhead`), one request at a time, one thread. gRPC by a synchronous
channel, HTTP by one connection that is kept. Requests are bytes that were made before, and answers
are not decoded: what a client adds is its own. Results: benchmarks/results/serving_overhead.json;
exit 1 when a limit is missed. A minute."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from tests.serving import Serving, serving

from benchmarks.serving import answers
from benchmarks.serving.load import METHOD, Request
from benchmarks.serving.models import FORMS, PAYLOADS, Payload
from benchmarks.serving.recorded import about, write
from benchmarks.speed.engine_overhead import compared
from benchmarks.speed.neighbour import to_itself
from ortune.bundle.engine.load import load_engine

LIMITS_NS = {("gRPC", "small"): 400_000, ("gRPC", "big"): 1_000_000}
"""1 kB and 602 kB."""
THREADS = "cpu(threads=1)"
Row = dict[str, Any]


def main() -> int:
    with TemporaryDirectory(prefix="ortune-overhead-") as folder, to_itself():
        paths = {name: one.write(Path(folder)) for name, one in PAYLOADS.items()}
        with serving(*paths.values(), options=["--on", THREADS]) as server:
            rows = [
                _row(server, paths[name], PAYLOADS[name], form)
                for name in paths
                for form in ("gRPC", "HTTP, binary", "HTTP, JSON")
            ]
    write("serving_overhead", about() | {"rows": rows})
    return int(not all(row["within"] for row in rows))


def _row(server: Serving, path: Path, payload: Payload, form: str) -> Row:
    feeds = {"x": payload.array()}
    request = FORMS[form](payload.name, feeds)
    address = server.grpc if request.protocol == "grpc" else server.http
    answers.demand(request, address, answers.expected(path, feeds["x"]))
    with load_engine(path, on=THREADS) as engine, _asking(request, address) as ask:
        # The slower one first: it says how many runs a turn has.
        found = compared(ask, lambda: engine(**feeds))
    less = found["extra_ns"]
    extra = {"value": -less["value"], "low": -less["high"], "high": -less["low"]}
    limit = LIMITS_NS.get((form, payload.name))
    row = {
        "form": form,
        "size": payload.name,
        "bytes": payload.array().nbytes,
        "engine_ns": found["second_ns"],
        "served_ns": found["first_ns"],
        "extra_ns": extra,
        "limit_ns": limit,
        "within": limit is None or extra["value"] < limit,
    }
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


@contextmanager
def _asking(request: Request, address: str) -> Iterator[Callable[[], object]]:
    """Yield what asks once, over a connection that is kept."""
    if request.protocol == "grpc":
        limit = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(address, options=limit) as channel:
            call = channel.unary_unary(METHOD)
            yield lambda: call(request.body)
        return
    connection = http.client.HTTPConnection(address)

    def ask() -> bytes:
        connection.request("POST", request.path, request.body, dict(request.headers))
        return connection.getresponse().read()

    try:
        yield ask
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
