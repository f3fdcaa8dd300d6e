"""`ortune loadtest` on files: a real server in a process of its own, both protocols."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.models import write_classifier
from tests.unit import packaged

from ortune.core.errors import OrtuneError
from ortune.serving.load_testing.server import serve_models


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_classifier(tmp_path_factory.mktemp("served"), samples=40)


def ortune(*words: str | Path, code: int = 0) -> str:
    command = [sys.executable, "-m", "ortune.cli.main", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_a_plain_model_in_two_runs_and_their_comparison(
    classifier: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = classifier
    files = []
    for protocol, words in (
        ("http", ("--batch", "4")),
        ("grpc", ("--processes", "2", "--on", "cpu(threads=1)")),
    ):
        files.append(tmp_path / f"{len(files)}.json")
        said = ortune(
            *("loadtest", model, "--data", data, "--check", model, "--protocol", protocol),
            *("--concurrency", "1,8", "--requests", "80", "--warm-up", "0.2"),
            *("--json", files[-1], *words),
        )
        assert "knee: " in said
        assert "0 wrong" in said
    found = [json.loads(path.read_text()) for path in files]
    for one in found:
        for row in one["rows"]:
            assert (row["failed"], row["answered"]) == (0, 80)
            assert row["server"]["cpu_ns"] > 0
            counted = row["server"]["compute_ns"]  # of two processes one is asked for it
            assert counted > 0 if one["processes"] == 1 else counted is None or counted > 0
            assert row["peak_rss"] > 2**24
    assert found[1]["processes"] == 2
    said = ortune("compare", *files, "--by", "order", "--threshold", "100000%")
    assert "concurrency 8" in said
    assert "FPS" in ortune("cost", *files, "--price", "1/h")
    assert "serve" not in _words(psutil.Process().children(recursive=True))


def test_a_bundle(tmp_path: Path) -> None:
    made = packaged.bundle(tmp_path)
    out = tmp_path / "bundle.json"
    ortune(
        *("loadtest", made, "--concurrency", "2", "--requests", "100", "--check", made),
        *("--serve", "--max-batch 2", "--json", out),
    )
    found = json.loads(out.read_text())
    assert (found["checked"]["answers"], found["checked"]["wrong"]) == (100, 0)
    assert found["rows"][0]["server"]["batch"] <= 2
    assert found["rows"][0]["digest"]


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM that can be caught")
def test_no_server_outlives_a_load_test_that_is_ended(classifier: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "ortune.cli.main", "loadtest", str(classifier[0])]
    running = subprocess.Popen([*command, "--time", "60"], stderr=subprocess.PIPE, text=True)
    below: list[psutil.Process] = []
    until = time.monotonic() + 60
    while not {"serve", "ortune.serving.load_testing.client"} <= _words(below):
        assert time.monotonic() < until
        time.sleep(0.2)
        below = psutil.Process(running.pid).children(recursive=True)
    running.terminate()
    _, said = running.communicate(timeout=60)
    assert running.returncode == 3
    assert said.endswith("ortune loadtest: interrupted\n")
    assert not psutil.wait_procs(below, timeout=10)[1]


def _words(processes: list[psutil.Process]) -> set[str]:
    found: set[str] = set()
    for one in processes:
        with suppress(psutil.Error):
            found |= set(one.cmdline())
    return found


def test_arrivals_on_a_server_that_runs(classifier: tuple[Path, Path]) -> None:
    model, data = classifier
    with serve_models(model) as server:
        for url in (server.http, server.grpc):
            said = ortune(
                *("loadtest", url, "--data", data, "--rate", "40", "--time", "2"),
                *("--slo", "p50<=2s", "--clients", str(min(2, os.cpu_count() or 1))),
            )
            assert "within p50<=2s" in said


def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(OrtuneError, match="did not get ready"), serve_models(broken):
        pass
