"""`ortune loadtest` on files: a real server in a process of its own, both protocols."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.models import write_classifier

from ortune.core.errors import OrtuneError
from ortune.load_testing.serving import serving


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_classifier(tmp_path_factory.mktemp("served"), samples=40)


def ortune(*words: str | Path, code: int = 0) -> str:
    command = [sys.executable, "-m", "ortune.cli.main", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_a_plain_model_in_three_runs_and_their_comparison(
    classifier: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = classifier
    files = []
    for protocol, words in (
        ("grpc", ()),
        ("http", ("--batch", "4")),
        ("grpc", ("--processes", "2", "--on", "cpu(threads=1)")),
    ):
        files.append(tmp_path / f"{len(files)}.json")
        said = ortune(
            *("loadtest", model, "--data", data, "--check", model, "--protocol", protocol),
            *("--concurrency", "1,8", "--requests", "200", "--json", files[-1], *words),
        )
        assert "knee: " in said
        assert "0 wrong" in said
    found = [json.loads(path.read_text()) for path in files]
    for one in found:
        for row in one["rows"]:
            assert (row["failed"], row["answered"]) == (0, 200)
            assert row["server"]["cpu_ns"] > 0
            counted = row["server"]["compute_ns"]  # of two processes one is asked for it
            assert counted > 0 if one["processes"] == 1 else counted is None or counted > 0
            assert row["peak_rss"] > 2**24
    assert found[2]["processes"] == 2
    said = ortune("compare", *files, "--by", "order", "--threshold", "100000%")
    assert "concurrency 8" in said
    assert "FPS" in ortune("cost", *files, "--price", "1/h")
    assert not [one for one in psutil.Process().children(recursive=True) if _serves(one)]


def _serves(process: psutil.Process) -> bool:
    try:
        return "serve" in process.cmdline()
    except psutil.Error:
        return False


def test_arrivals_on_a_server_that_runs(classifier: tuple[Path, Path]) -> None:
    model, data = classifier
    with serving(model) as server:
        for url in (server.http, server.grpc):
            said = ortune(
                *("loadtest", url, "--data", data, "--rate", "40", "--seconds", "2"),
                *("--slo", "p50<=2s", "--clients", str(min(2, os.cpu_count() or 1))),
            )
            assert "within p50<=2s" in said


def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(OrtuneError, match="did not get ready"), serving(broken):
        pass
