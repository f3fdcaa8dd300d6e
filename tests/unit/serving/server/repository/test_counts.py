"""Counters add up, whatever becomes of requests that run at the same time."""

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.bundle.engine.scripted import Doubling
from tests.unit.serving.server.repository import toys
from tests.unit.serving.server.repository.toys import asks, holding

from ortune.serving.protocol.inference import InferRequest
from ortune.serving.protocol.refusals import RequestRefused
from ortune.serving.server.repository.counters import REASONS, metrics_text
from ortune.serving.server.repository.served import Limits, ServedModel

KINDS = ("good", "good", "negative", "wrong", "late", "cancelled")
PLANS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3)), min_size=1, max_size=24)
SAMPLE = re.compile(r'^(nv_\w+)(?:\{model="toy",version="1"(?:,reason="(\w+)")?\})? (\S+)$')


async def ask(model: ServedModel, kind: str, rows: int) -> str:
    """Send one request and return what became of it."""
    request = {
        "negative": asks(-5, rows),
        "wrong": InferRequest({"x": np.zeros((rows, 4))}),
        "late": asks(1, rows, timeout_us=1),
    }.get(kind, asks(1, rows))
    task = asyncio.create_task(model.infer(request))
    if kind == "cancelled":
        await asyncio.sleep(0)
        task.cancel()
    try:
        await task
    except RequestRefused as error:
        return error.status.name
    except asyncio.CancelledError:
        return "CANCELLED"
    return "answered"


@settings(max_examples=25, deadline=None)
@given(plan=PLANS, queue=st.integers(1, 30))
def test_counts_add_up(plan: list[tuple[str, int]], queue: int) -> None:
    session = Doubling()

    async def main(folder: Path) -> None:
        repository, model = await holding(session, folder, Limits(), max_queue=queue)
        found = await asyncio.gather(*(ask(model, *one) for one in plan))
        counters = model.counters
        answered = [rows for (_, rows), one in zip(plan, found, strict=True) if one == "answered"]
        assert counters.answered == len(answered)
        assert counters.inferences == sum(answered)
        assert counters.answered + counters.failed.total() == len(plan)
        assert counters.failed["CANCELED"] == found.count("CANCELLED")
        assert counters.failed["REJECTED"] == found.count("UNAVAILABLE") + found.count("TIMED_OUT")
        assert counters.failed["OTHER"] + counters.failed["BACKEND"] == found.count("INVALID")
        assert counters.answered_ns >= counters.queue_ns + counters.infer_ns + counters.output_ns
        assert min(counters.queue_ns, counters.infer_ns, counters.output_ns) >= 0
        assert (model.running, counters.waiting) == (0, 0)
        await repository.drain(10)
        asked = sum(one.requests for one in counters.runs.values())
        assert asked >= counters.answered + counters.failed["BACKEND"], (
            "and those that nobody awaits"
        )
        assert sum(rows * one.count for rows, one in counters.runs.items()) >= counters.inferences
        assert prometheus([model]) == expected(model)

    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


def prometheus(models: list[ServedModel]) -> dict[tuple[str, str], float]:
    """Return name and reason -> value, of what a model says."""
    lines = [
        line
        for line in metrics_text(
            (one.name, one.version, one.counters) for one in models
        ).splitlines()
        if not line.startswith("#")
    ]
    found = [SAMPLE.match(line) for line in lines]
    assert all(found)
    named = {(one[1], one[2] or ""): float(one[3]) for one in found if one}
    return {key: value for key, value in named.items() if "nv_cpu" not in key[0]}


def expected(model: ServedModel) -> dict[tuple[str, str], float]:
    """Return the same from ``model_stats``."""
    told = model.build_statistics()
    stats = told["inference_stats"]
    names = ("queue", "compute_input", "compute_infer", "compute_output")
    reasons = {why: model.counters.failed[why] for why in REASONS}
    assert sum(reasons.values()) == stats["fail"]["count"]
    assert all(stats[name]["count"] == stats["success"]["count"] for name in names)
    assert (
        sum(one["compute_infer"]["count"] for one in told["batch_stats"])
        == (told["execution_count"])
    )
    return {
        ("nv_inference_request_success", ""): stats["success"]["count"],
        **{("nv_inference_request_failure", why): count for why, count in reasons.items()},
        ("nv_inference_count", ""): told["inference_count"],
        ("nv_inference_exec_count", ""): told["execution_count"],
        ("nv_inference_request_duration_us", ""): stats["success"]["ns"] // 1000,
        **{(f"nv_inference_{name}_duration_us", ""): stats[name]["ns"] // 1000 for name in names},
        ("nv_inference_pending_request_count", ""): 0,
    }


async def test_every_metric_has_a_type_and_a_meaning(tmp_path: Path) -> None:
    repository = await toys.started(toys.write(tmp_path / "toy.onnx"))
    with suppress(RequestRefused):
        await repository.find_model("toy").infer(asks(1, 99))
    text = metrics_text((one.name, one.version, one.counters) for one in repository.list_models())
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"}
    heads: dict[str, set[Any]] = {"HELP": set(), "TYPE": set()}
    for line in text.splitlines():
        if line[0] == "#":
            _, kind, name, _ = line.split(" ", 3)
            heads[kind].add(name)
    assert heads["HELP"] == heads["TYPE"] == names
    assert {"nv_cpu_utilization", "nv_cpu_memory_total_bytes"} <= names
    assert 'nv_inference_request_failure{model="toy",version="1",reason="OTHER"} 1' in text


async def test_what_perf_analyzer_looks_at_grows(tmp_path: Path) -> None:
    repository = await toys.started(toys.write(tmp_path / "toy.onnx"))
    model = repository.find_model("toy")
    for count in (1, 2):
        await model.infer(asks(1, 2))
        told = model.build_statistics()
        assert told["inference_stats"]["queue"]["count"] == count
        assert told["inference_count"] == 2 * count
        assert told["execution_count"] == count
        assert told["last_inference"] > 1_700_000_000_000
