"""The peers' servers beside ours, in turns: server CPU time per request first.

    python -m benchmarks.serving.peers [--only NAME ...] [--rounds 3] [--seconds 2]

Every server has two models that compute next to nothing, of 1 kB and 602 kB a request, and an
environment of its own (.cache/peers). In each round one server after the other is started, asked
in every form, size and concurrency, and ended, so that clock changes and neighbours hit all alike.
The client is the same process for all of them and does not decode what it gets.
Results: benchmarks/results/serving_peers.json. Half an hour on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.serving import answers, usage
from benchmarks.serving.contestants import CONTESTANTS, Contestant, Up
from benchmarks.serving.load import Request, client
from benchmarks.serving.models import FORMS, PAYLOADS, Payload
from benchmarks.serving.recorded import about, write
from benchmarks.speed.neighbour import to_itself

CONCURRENCIES = (1, 8, 32)
RESULTS = "serving_peers"
_ALIKE = {"HTTP, own JSON": "HTTP, JSON", "HTTP, raw bytes": "HTTP, binary"}
"""A peer's own form -> ours that it is compared with."""
LIMITS = {
    ("KServe", "HTTP, binary", "big"): 0.1,
    ("Triton, Python backend", "HTTP, binary", ""): 1.0,
    ("Triton, Python backend", "gRPC", ""): 1.7,
    ("KServe", "", ""): 1.0,
    ("MLServer", "", ""): 1.0,
    ("LitServe", "", ""): 1.0,
    ("Ray Serve, HAProxy", "", ""): 1.0,
    ("Ray Serve, gRPC", "", ""): 1.0,
}
"""Peer, form, size ('' is any) -> what our CPU time over its may be at most."""

Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(CONTESTANTS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one cell in one round")
    asked = parser.parse_args()
    names = list(dict.fromkeys(["ortune", *(asked.only or CONTESTANTS)]))
    failed = {name: why for name in names if (why := CONTESTANTS[name].missing())}
    with TemporaryDirectory(prefix="ortune-serving-") as folder, to_itself():
        models = [one.write(Path(folder)) for one in PAYLOADS.values()]
        found: list[Row] = []
        for turn in range(asked.rounds):
            order = [CONTESTANTS[name] for name in names if name not in failed]
            random.Random(turn).shuffle(order)
            for one in order:
                try:
                    found += _round(one, Path(folder), models, turn, asked.seconds)
                except (RuntimeError, AssertionError, OSError) as error:
                    failed[one.name] = str(error)[-500:]
    rows = summed(found)
    write(RESULTS, about() | {"rounds": asked.rounds, "failed": failed, "rows": rows})
    return int(bool(missed(rows)))


def _round(
    one: Contestant, folder: Path, models: list[Path], turn: int, seconds: float
) -> list[Row]:
    with one.start(folder, models, ()) as server:
        found = []
        for form in one.forms:
            for payload in PAYLOADS.values():
                request = _request(one, form, payload)
                right = answers.expected(folder / f"{payload.name}.onnx", payload.array())
                answers.demand(request, _address(server, request), right)
                for concurrency in CONCURRENCIES:
                    row = _cell(server, request, concurrency, seconds)
                    row |= {"peer": one.name, "form": form, "size": payload.name, "round": turn}
                    print(json.dumps(row), flush=True)
                    found.append(row)
        return found


def _request(one: Contestant, form: str, payload: Payload) -> Request:
    made = FORMS[form](payload.name, {"x": payload.array()})
    return replace(made, headers={"application": payload.name}) if one.application else made


def _address(server: Up, request: Request) -> str:
    return server.http if request.protocol == "http" else server.grpc


def _cell(server: Up, request: Request, concurrency: int, seconds: float) -> Row:
    address = _address(server, request)
    with client(request, address, concurrency=concurrency, seconds=seconds) as measure:
        before = usage.cpu_s(server.pid)
        load = measure()
        used = usage.cpu_s(server.pid) - before
    return {
        "concurrency": concurrency,
        "cpu_us": 1e6 * used / max(load.answered, 1),
        "per_second": load.per_second,
        "p50_ms": load.percentiles.get("50"),
        "p99_ms": load.percentiles.get("99"),
        "client_share": load.client_cpu_s / load.seconds,
        "memory_mb": usage.memory(server.pid) / 1e6,
        "answered": load.answered,
        "errors": load.errors,
    }


# --- summed up --------------------------------------------------------------------------------


def summed(found: list[Row]) -> list[Row]:
    """Return a row a peer, form, size and concurrency: medians over the rounds, and how ours is.

    `ratio` is our CPU time per request over the peer's in the same round; the spread is that of
    the rounds, as few rounds have no interval.
    """
    cells: dict[tuple[str, str, str, int], dict[int, Row]] = {}
    for row in found:
        key = row["peer"], row["form"], row["size"], row["concurrency"]
        cells.setdefault(key, {})[row["round"]] = row
    return [_row(key, rounds, cells) for key, rounds in cells.items()]


def _row(key: tuple[str, str, str, int], rounds: dict[int, Row], cells: Any) -> Row:
    peer, form, size, concurrency = key
    ours = cells.get(("ortune", _ALIKE.get(form, form), size, concurrency), {})
    ratios = [ours[k]["cpu_us"] / one["cpu_us"] for k, one in rounds.items()
              if k in ours and one["answered"] and ours[k]["answered"]]  # fmt: skip
    made: Row = {"peer": peer, "form": form, "size": size, "concurrency": concurrency}
    for name in ("cpu_us", "per_second", "p50_ms", "p99_ms", "client_share", "memory_mb"):
        values = [one[name] for one in rounds.values() if one[name] is not None]
        made[name] = float(np.round(median(values), 3)) if values else None
    made["errors"] = sum(sum(one["errors"].values()) for one in rounds.values())
    if peer != "ortune" and ratios:
        made["ratio"] = {"value": median(ratios), "low": min(ratios), "high": max(ratios)}
    return made


def missed(rows: list[Row]) -> list[str]:
    """Return what is dearer than it may be."""
    found = []
    for row in rows:
        for (peer, form, size), limit in LIMITS.items():
            concerned = row["peer"] == peer and form in ("", row["form"])
            concerned = concerned and size in ("", row["size"])
            if concerned and row.get("ratio", {"value": 0})["value"] > limit:
                where = f"{row['form']}, {row['size']}, {row['concurrency']} at once"
                found.append(f"{peer}, {where}: {row['ratio']['value']:.2f} over {limit}")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
