"""What is summed up of servers in turns, which bodies are thrown at them, and their tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc")

from benchmarks.serving import peers
from benchmarks.serving.bodies import fuzzed
from benchmarks.serving.models import BIG, SMALL, binary, message, plain
from benchmarks.serving.soak import MILLISECOND
from benchmarks.tables.serving import overhead, pinned, soak
from benchmarks.tables.serving import peers as peers_table
from tritonclient.grpc import service_pb2


def cell(peer: str, turn: int, cpu_us: float, form: str = "HTTP, binary") -> dict[str, Any]:
    return {
        "peer": peer, "form": form, "size": "big", "concurrency": 8, "round": turn,
        "cpu_us": cpu_us, "per_second": 10.0, "p50_ms": 1.0, "p99_ms": None,
        "client_share": 0.1, "memory_mb": 100.0, "answered": 20, "errors": {},
    }  # fmt: skip


def test_ours_is_compared_within_a_round() -> None:
    found = [cell("ortune", 0, 100), cell("ortune", 1, 300)]
    found += [cell("KServe", 0, 2000), cell("KServe", 1, 3000)]
    rows = {row["peer"]: row for row in peers.summed(found)}
    assert rows["KServe"]["ratio"] == {"value": pytest.approx(0.075), "low": 0.05, "high": 0.1}
    assert "ratio" not in rows["ortune"] and rows["ortune"]["cpu_us"] == 200


def test_a_form_of_its_own_is_compared_with_the_like() -> None:
    found = [cell("ortune", 0, 100), cell("Ray Serve, HAProxy", 0, 1000, "HTTP, raw bytes")]
    row = peers.summed(found)[1]
    assert row["ratio"]["value"] == pytest.approx(0.1)


def test_what_is_dearer_than_it_may_be_is_named() -> None:
    found = [cell("ortune", 0, 300), cell("KServe", 0, 2000)]
    assert peers.missed(peers.summed(found)) == [
        "KServe, HTTP, binary, big, 8 at once: 0.15 over 0.1"
    ]
    assert not peers.missed(peers.summed([cell("ortune", 0, 100), cell("KServe", 0, 2000)]))


def test_requests_of_every_form_carry_the_tensor() -> None:
    x = SMALL.array()
    body = binary("m", {"x": x}).body
    assert body.endswith(x.tobytes()) and x.nbytes == 1024 and BIG.array().nbytes == 602112
    read = service_pb2.ModelInferRequest.FromString(message("m", {"x": x}).body)
    assert read.raw_input_contents[0] == x.tobytes() and list(read.inputs[0].shape) == [1, 256]
    assert plain("m", {"x": np.ones((1, 2), np.float32)}).body.count(b"1.0") == 2


def test_broken_bodies_are_of_all_kinds_and_the_same_for_one_seed() -> None:
    found = list(fuzzed(300, seed=3))
    assert found == list(fuzzed(300, seed=3)) and found != list(fuzzed(300, seed=4))
    assert [one.protocol for one in found[:3]] == ["http", "http", "grpc"]
    valid = {make(SMALL.name, {"x": SMALL.array()}).body for make in (plain, binary, message)}
    assert sum(one.body in valid for one in found) < 10


ABOUT = {"machine": {"cpu": "a CPU", "effective cpus": 2}, "versions": {"grpcio": "1.85.1"}}


def test_tables_of_serving() -> None:
    rows = peers.summed([cell("ortune", 0, 100), cell("KServe", 0, 2000)])
    found = peers_table({**ABOUT, "rows": rows, "failed": {"Ray Serve, gRPC": "no\nway"}})
    assert "| KServe | HTTP, binary | 602 kB | 2,000 | 0.05 | 100 |" in found
    assert "Ray Serve, gRPC did not run: way" in found
    extra = {"value": 250_000, "low": 200_000, "high": 300_000}
    row = {"form": "gRPC", "size": "small", "engine_ns": 5000, "extra_ns": extra}
    shown = overhead({**ABOUT, "rows": [{**row, "limit_ns": 400_000}]})
    assert "| gRPC | 1 kB | 0.005 | 0.250 [0.200, 0.300] | 0.4 |" in shown
    share = {"value": 0.95, "low": 0.94, "high": 0.96}
    row = {"model": "minilm", "max batch": 8, "form": "gRPC", "share": share}
    shown = pinned({**ABOUT, "rows": [{**row, "own_per_second": 160, "served_per_second": 152}]})
    assert "| minilm | 8 | gRPC | 160.0 | 152.0 | 0.950 [0.940, 0.960] |" in shown


def test_the_table_of_the_soak_names_what_went_wrong() -> None:
    phases = {
        "overload": {"answered": 1000, "errors": {"503": 10}, "p50_ms": 5.0, "p99_ms": 9.0,
                     "rate": 1500.0, "limit_ms": 100.0, "within": False},
        "fuzzed": {"alone_ms": 1.0, "meanwhile_ms": 1.5, "answers": {"HTTP 400": 3},
                   "grown": 0.01, "within": True},
    }  # fmt: skip
    shown = soak({**ABOUT, "phases": phases})
    assert (
        "| overload | 1,000 | 10 503 | p50 5.0, p99 9.0 | 1500 a second, limit 100 ms | **no** |"
        in shown
    )
    assert "alone 1.00, meanwhile 1.50 | memory +1.0 % | yes |" in shown
    assert MILLISECOND.array().nbytes == 4096
