"""`cost --measure` starts workers of a run again: only what computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ortune.analysis.costs import pricing
from ortune.analysis.costs.cost import ServingOption
from ortune.analysis.costs.sources import Priced, job_file
from ortune.analysis.costs.terms import Terms
from ortune.backends.cpu import Cpu
from ortune.core.errors import BadData
from ortune.core.plugins import codec
from ortune.core.trial import Interval
from ortune.measurement.job import MAIN, WorkerJob


def job(tmp_path: Path, **changed: Any) -> Path:
    made = WorkerJob({MAIN: tmp_path / "m.onnx"}, Cpu(threads=1), {}, tmp_path / "out")
    path = tmp_path / "job.json"
    path.write_text(json.dumps(codec.encode(made) | changed))
    return path


def priced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    option = ServingOption("a", 0.1, Interval(1, 1, 1), 1)
    found = Priced((option,), (path,), ("m", "cpu"))
    monkeypatch.setattr(pricing, "read", lambda _: found)
    monkeypatch.setattr(pricing, "effective_cpus", lambda: 2)
    terms = Terms(price_per_hour=1.0, currency="$", processes=2)
    pricing.priced(path, terms, measure=True)


@pytest.mark.parametrize(
    "changed",
    [
        {"path": ["/tmp/evil"]},
        {"backend": codec.encode(Cpu(custom_ops=("./evil.so",)))},
        {"backend": codec.encode(Cpu()) | {"config": ["ep.context_enable=1"]}},
        {"backend": {"is": "metrics/top1"}},
        {"backend": {"is": "backends/torch", "source": "os:system"}},
        {"workload": {"is": "backends/cpu"}},
        {"models": 3},
    ],
)
def test_a_job_with_power_is_not_started(
    tmp_path: Path, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, "slowdown", lambda *_: pytest.fail("started"))
    with pytest.raises(BadData, match=r"job\.json") as caught:
        priced(job(tmp_path, **changed), monkeypatch)
    assert caught.value.fix == "leave --measure out"
    for content in ("{", "[" * 100_000):
        (tmp_path / "job.json").write_text(content)
        with pytest.raises(BadData, match="cannot be read"):
            priced(tmp_path / "job.json", monkeypatch)


def test_its_threads_are_those_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[WorkerJob] = []
    monkeypatch.setattr(pricing, "slowdown", lambda asked, *_: seen.append(asked) or 1.0)
    priced(job(tmp_path, backend=codec.encode(Cpu(threads=5000))), monkeypatch)
    assert [one.backend for one in seen] == [Cpu(threads=2)]


def test_a_command_that_cannot_be_read_names_no_job() -> None:
    for text in ("python 'job.json", "", None, "python -m x /none/job.json"):
        assert job_file(text) is None
