"""A model that computes for ever holds no command and no server for ever."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests import http2
from tests.endless import FOR_EVER, write_loop
from tests.serving import serving

END_S = 25.0
"""Seconds for what ends at once: with others on the machine."""


def start(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ortune.cli.main", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str], *numbers: signal.Signals) -> tuple[int, str]:
    """Send signals; return exit code and stderr of what ends by itself then."""
    try:
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.3)
        said = process.communicate(timeout=END_S)[1]
    finally:
        process.kill()
    return process.wait(), said


@pytest.mark.parametrize(
    ("on", "numbers"),
    [
        ("cpu", (signal.SIGINT,)),
        pytest.param("cpu", (signal.SIGTERM,), marks=pytest.mark.long),
        ("openvino", (signal.SIGINT, signal.SIGINT)),  # it looks at nothing inside of a loop
    ],
)
def test_a_signal_ends_a_run(tmp_path: Path, on: str, numbers: tuple[signal.Signals, ...]) -> None:
    if on == "openvino":
        pytest.importorskip("openvino")
    np.savez(tmp_path / "x.npz", x=np.ones(4, np.float32))
    model = write_loop(tmp_path / "loop.onnx", 2**31 - 2)
    process = start("run", model, tmp_path / "x.npz", "--on", on)
    time.sleep(5)
    assert process.poll() is None
    code, _ = ended(process, *numbers)
    # On a busy machine the second signal may come before the first one is looked at.
    assert code == 3 or (len(numbers) > 1 and code == -numbers[-1])


def test_optimize_ends_soon_after_its_time(tmp_path: Path) -> None:
    model = write_loop(tmp_path / "loop.onnx", FOR_EVER)
    began = time.monotonic()
    process = start("optimize", model, "--time", "5s", "--on", "cpu", "-o", tmp_path / "run")
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "no answer to 'first' after 10 s" in said and "--time" in said.splitlines()[-1]
    assert time.monotonic() - began < 40


def test_sigterm_keeps_what_a_search_has_as_ctrl_c_does(tmp_path: Path) -> None:
    model = write_loop(tmp_path / "loop.onnx", 200)
    process = start("optimize", model, "--time", "60s", "--on", "cpu", "-o", tmp_path / "run")
    ledger, until = tmp_path / "run" / "ledger.jsonl", time.monotonic() + 50
    while not (ledger.is_file() and ledger.read_text().count("\n") > 0):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    code, said = ended(process, signal.SIGTERM)
    assert code == 3 and "interrupted: what was found so far is kept" in said
    assert json.loads((tmp_path / "run" / "ending.json").read_text())["finished"] == "interrupted"


@pytest.mark.parametrize("last", ["golden", pytest.param("ending.json", marks=pytest.mark.long)])
def test_sigterm_behind_the_last_trial_leaves_the_answer(tmp_path: Path, last: str) -> None:
    model = write_loop(tmp_path / "loop.onnx", 2)
    process = start("optimize", model, "--time", "1s", "--on", "cpu", "-o", tmp_path / "run")
    run, until = tmp_path / "run", time.monotonic() + 100
    while not any((*run.glob(last), *(run / "workers").glob(f"*-{last}"))):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=END_S)
    assert process.returncode == 3 and "original stays" in said
    assert (run / "report.html").is_file()


def ask(address: str, turns: int, timeout_us: int) -> int:
    """Return the status of a request to a server of the loop."""
    body = {
        "inputs": [
            {"name": "n", "datatype": "INT64", "shape": [], "data": [turns]},
            {"name": "x", "datatype": "FP32", "shape": [4], "data": [1, 1, 1, 1]},
        ],
        "parameters": {"timeout": timeout_us},
    }
    request = urllib.request.Request(
        f"http://{address}/v2/models/loop/infer", json.dumps(body).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=END_S) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_server_answers_behind_an_endless_request_and_ends(tmp_path: Path) -> None:
    model = write_loop(tmp_path / "loop.onnx")
    with serving(model, options=("--on", "cpu(threads=1)", "--drain", "1s")) as server:
        assert ask(server.http, FOR_EVER, 500_000) == 504
        assert ask(server.http, 1, 15_000_000) == 200
        began = time.monotonic()
        assert server.end(END_S) == 0
        assert time.monotonic() - began < 6 + 2


def test_a_server_ends_though_a_kernel_cannot_be_ended(tmp_path: Path) -> None:
    """OpenVINO's loop goes on; the request has its 504, and the process ends behind its drain."""
    pytest.importorskip("openvino")
    model = write_loop(tmp_path / "loop.onnx")
    with serving(model, options=("--on", "openvino", "--drain", "1s")) as server:
        assert ask(server.http, 2**31 - 2, 500_000) == 504
        assert server.end(END_S) == 0


def test_a_server_ends_in_time_though_clients_hold_it(tmp_path: Path) -> None:
    """Half a request, a stream that says nothing and a run without end: all at its end."""
    model = write_loop(tmp_path / "loop.onnx")
    with (
        serving(model, options=("--on", "cpu(threads=1)", "--drain", "1s")) as server,
        socket.create_connection(server.http.split(":")) as half,
        closing(http2.connect(server.grpc)) as silent,
        ThreadPoolExecutor() as pool,
    ):
        half.sendall(
            b"POST /v2/models/loop/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
        )
        silent.sendall(http2.call(1, "/inference.GRPCInferenceService/ModelStreamInfer"))
        asked = pool.submit(ask, server.http, FOR_EVER, 60_000_000)
        time.sleep(1)
        began = time.monotonic()
        assert server.end(END_S) == 1, "one request has no answer"
        assert time.monotonic() - began < 1 + 5
        assert asked.exception() or asked.result() != 200
