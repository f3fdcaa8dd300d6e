"""The verb against a scripted server, and what `compare` and `cost` make of its file."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.serving.load_testing.toy_servers import Script, over_grpc, over_http

import ortune as ot
from ortune.cli.main import root
from ortune.core.errors import BadData, BadSettings, OrtuneError
from ortune.core.result import as_json
from ortune.serving.load_testing.server import process_usage, read_statistics


def saved(path: Path, delay_s: float, **how: object) -> Path:
    with over_http(Script(delay_s=lambda number: delay_s)) as url:
        found = ot.loadtest(url, requests=60, warm_up=0.0, **how)  # type: ignore[arg-type]
    made = json.loads(as_json(found))
    made["judgement"]["too_noisy"] = False  # as a calm machine says, whatever runs here
    path.write_text(json.dumps(made))
    return path


def test_a_sweep() -> None:
    told: list[str] = []
    script = Script(delay_s=lambda number: 0.01)
    with over_http(script) as url:
        found = ot.loadtest(
            url,
            concurrency="1,4",
            requests=40,
            slo="p50<=500ms",
            warm_up=0.1,
            sink=lambda event: told.append(str(event)),
        )
    assert [row["workload"] for row in found.rows] == [
        "http, concurrency 1",
        "http, concurrency 4",
    ]
    assert [row["answered"] for row in found.rows] == [40, 40]
    assert found.rows[1]["requests_per_s"] > 2 * found.rows[0]["requests_per_s"]
    assert (found.knee, found.most, found.kept) == (1, 1, 1)
    assert found.rows[0]["server"]["queue_ns"] == 1e6
    assert found.rows[0]["p99_ns"] is None
    assert found.rows[0]["p50_ns"] > 10e6
    assert len(found.rows[0]["turns"]) == 2
    assert found.model == "double"
    assert found.processes == 0
    assert "http, concurrency 4" in repr(found)
    assert len(found.records()) == 2
    assert sum("load test" in text for text in told) == 4


def test_an_open_loop_over_grpc() -> None:
    with over_grpc(Script()) as url:
        found = ot.loadtest(url, rate="50,80", requests=20, repeats=1, warm_up=0.1)
    assert [row["workload"] for row in found.rows] == [
        "grpc, 50 requests/s",
        "grpc, 80 requests/s",
    ]
    assert all(row["offered_per_s"] and row["concurrency"] is None for row in found.rows)
    assert "late_p99_ns" in found.rows[0]


def test_compare_reads_the_file(tmp_path: Path) -> None:
    one = saved(tmp_path / "a.json", 0.002, concurrency=(1, 2))
    two = saved(tmp_path / "b.json", 0.04, concurrency=(1, 2))
    found = ot.compare([one, two])
    assert found.regressions == 2
    assert [row.workload for row in found.rows] == ["http, concurrency 1", "http, concurrency 2"]
    assert all(row.latency is not None and row.latency.value > 2 for row in found.rows)
    assert ot.compare([one, one]).regressions == 0


def test_cost_reads_the_file(tmp_path: Path) -> None:
    one = saved(tmp_path / "a.json", 0.012, concurrency=(1, 4))
    two = saved(tmp_path / "b.json", 0.002, concurrency=(1, 4), batch=2)
    found = ot.cost([one, two], price="1/h")
    assert [row.option.name for row in found.rows] == [
        "double @ toy, http, concurrency 4",
        "double @ toy, http, concurrency 4",
    ]
    said = json.loads(one.read_text())["rows"][1]
    assert found.rows[0].figures.fps_machine == pytest.approx(said["requests_per_s"])
    twice = json.loads(two.read_text())["rows"][1]
    assert found.rows[1].figures.fps_machine == pytest.approx(2 * twice["requests_per_s"])
    assert found.verdict.answer == "stay", "not timed in turns: no speed-up is claimed"
    assert any("the whole server" in text for text in found.assumptions)


def test_cost_takes_the_level_within_the_limit_or_none(tmp_path: Path) -> None:
    inside = saved(tmp_path / "a.json", 0.01, concurrency=(1, 2), slo="p50<=9s")
    assert ot.cost(inside, price="1/h").rows[0].figures.fps_machine > 10
    outside = saved(tmp_path / "b.json", 0.01, concurrency=(1,), slo="p50<=1ms")
    with pytest.raises(BadData, match=r"no level of .* keeps p50<=1ms"):
        ot.cost(outside, price="1/h")


def test_the_command_shows_rows_and_the_chart() -> None:
    script = Script(status=lambda number: 503 if number % 10 == 0 else 200)
    with over_http(script) as url:
        words = ["loadtest", url, "--concurrency", "1,2", "--requests", "40", "--warm-up", "0"]
        done = CliRunner().invoke(root, words, standalone_mode=False)
    assert done.exception is None
    assert done.return_value == 0
    for text in (
        *("requests/s", "p50 ms", "server queue ms", "http, concurrency 2"),
        *("x 503: ", "refused number 503", "right answers a second"),
        *("latency: from the intended start", "a percentile needs 10 answers beyond it"),
    ):
        assert text in done.output
    assert "server CPU" not in done.output, "the server is none of ours"


def test_the_command_says_no() -> None:
    with over_http(Script(delay_s=lambda number: 0.005)) as url:
        words = ["loadtest", url, "--concurrency", "1", "--requests", "20", "--slo", "p50<=1ms"]
        done = CliRunner().invoke(root, words, standalone_mode=False)
    assert done.return_value == 1
    assert "within p50<=1ms: no level" in done.output


def test_nothing_but_errors_is_no_row_with_times(tmp_path: Path) -> None:
    with over_http(Script(status=lambda number: 500)) as url:
        words = ["loadtest", url, "--concurrency", "1", "--requests", "20"]
        out = tmp_path / "a.json"
        done = CliRunner().invoke(root, [*words, "--json", str(out)], standalone_mode=False)
    assert done.return_value == 1
    (row,) = json.loads(out.read_text())["rows"]
    assert row["error"] == "no request was answered: 500 (20)"
    assert row["requests_per_s"] == 0
    good = saved(tmp_path / "b.json", 0.0, concurrency=(1,))
    assert ot.compare([good, out]).rows[0].verdict == "fails now"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"concurrency": "1", "rate": "5"}, "two kinds of load"),
        ({"slo": "fast"}, "cannot read the limit"),
        ({"processes": 2}, "--processes is for a model that is served here"),
        ({"on": "cpu"}, "--on is for a model that is served here"),
        ({"rate": "0"}, "rate"),
        ({"rate": "x"}, "cannot read the rates"),
        ({"concurrency": "0"}, "concurrency"),
        ({"goal": "p99<=20ms"}, "--goal"),
    ],
)
def test_options_that_cannot_be(how: dict[str, object], text: str) -> None:
    with pytest.raises(BadSettings, match=text):
        ot.loadtest("http://127.0.0.1:9", **how)  # type: ignore[arg-type]


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(BadData, match=r"no file gone\.ortune"):
        ot.loadtest("gone.ortune")


def test_nobody_answers() -> None:
    with pytest.raises(OrtuneError, match="no server answers at http"):
        ot.loadtest("http://127.0.0.1:9")


# The server's own statistics of a level.


def statistics(count: int, queue_ms: float, compute_ms: float, runs: int) -> dict[str, Any]:
    def took(ms: float) -> dict[str, str]:  # gRPC's JSON has 64-bit numbers as texts
        return {"count": str(count), "ns": str(round(count * ms * 1e6))}

    return {
        "inference_count": str(4 * count),
        "execution_count": str(runs),
        "inference_stats": {
            "success": took(queue_ms + compute_ms),
            "fail": {"count": "2"},
            "queue": took(queue_ms),
            "compute_input": took(0.0),
            "compute_infer": took(compute_ms),
            "compute_output": took(1.0),
        },
    }


def told(model: dict[str, Any]) -> dict[str, Any]:
    return {"model_stats": [model]}


def test_counts_and_times() -> None:
    assert read_statistics(told(statistics(300, 3.0, 5.0, 200))) == {
        "answered": 300,
        "rows": 1200,
        "runs": 200,
        "queue": 300,
        "queue_ns": 300 * 3e6,
        "compute": 300,
        "compute_ns": 300 * 6e6,
    }
    assert read_statistics(told({})) == dict.fromkeys(
        ("answered", "rows", "runs", "queue", "queue_ns", "compute", "compute_ns"), 0
    )


@pytest.mark.parametrize(
    "odd",
    [{}, {"model_stats": []}, told({"inference_stats": []}), told({"inference_count": "many"})],
)
def test_statistics_that_are_none(odd: dict[str, Any]) -> None:
    assert read_statistics(odd) is None


def test_a_process_and_one_that_is_gone() -> None:
    here = process_usage(os.getpid())
    assert here[0] > 0
    assert here[1] > 2**20
    assert process_usage(2**22 + 1) is None
