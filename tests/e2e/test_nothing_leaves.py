"""No process of ours opens a socket that it was not asked for, to look up a name or to send."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
from onnx import parser

from ortune.backends.cpu import Cpu
from ortune.core.python_process import make_python_command
from ortune.measurement.job import WorkerJob
from ortune.measurement.process import Worker
from ortune.targets.common import plain_session

VARIABLE = "ORT_DISABLE_TELEMETRY"
SECONDS = 15
"""onnxruntime asks for a host's address 9 s after its first session."""
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    toy (float[2,4] x) => (float[2,4] y) { y = Relu(x) }"""
OPEN = 'ortune.load("model.onnx")'
PLAIN = 'onnxruntime.InferenceSession("model.onnx")'
KINDS = {
    "engine": f"-c 'import ortune, time; engine = {OPEN}; time.sleep({SECONDS})'",
    "serve": "-m ortune.cli.main serve model.onnx --http-port 0 --grpc-port 0",
    "bench": "-m ortune.cli.main bench model.onnx --on cpu --sets 1 --seconds 14",
    "loadtest": "-m ortune.cli.main loadtest model.onnx --seconds 14 --concurrency 1",
}
"""Workers are children of `bench`, clients and a server of `loadtest`."""
_OUTSIDE = re.compile(r"socket\(AF_INET6?, .*|connect\(\d+, \{sa_family=AF_(?!UNIX).*")
_OWN = re.compile(r"127\.0\.0\.1|\"::1\"|SOCK_STREAM")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(parser.parse_model(MODEL), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_every_process_has_it_off_before_onnxruntime_is_imported(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    code = f"import os, sys, ortune; print('onnxruntime' in sys.modules, os.environ[{VARIABLE!r}])"
    command = make_python_command("-c", code)
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "1"], "whatever the caller's environment has"
    monkeypatch.setenv(VARIABLE, "1")  # as the import has set it here
    if sys.platform == "linux":
        with Worker(WorkerJob({"": model}, Cpu(), {}, model.with_name("out"))) as worker:
            worker.ask("load")
            environment = Path(f"/proc/{worker.pid}/environ").read_bytes().split(b"\0")
        assert f"{VARIABLE}=1".encode() in environment


def test_a_package_s_program_has_it_off_too(tmp_path: Path) -> None:
    plain_session.write_text_file(tmp_path / "run.py", "programs/run.py")
    lines = (tmp_path / "run.py").read_text().splitlines()
    before = lines[: lines.index("import onnxruntime as ort")]
    assert any(line.startswith(f'os.environ["{VARIABLE}"] = "1"') for line in before)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_15_seconds_of_each_kind_of_process_open_no_socket_but_their_own(model: Path) -> None:
    alone = f"-c 'import onnxruntime, time; session = {PLAIN}; time.sleep({SECONDS})'"
    calls = trace(model.parent, {"onnxruntime": alone, **KINDS})
    assert calls.pop("onnxruntime"), "the trace sees what onnxruntime does when it is let"
    assert calls == {name: [] for name in KINDS}


def trace(folder: Path, kinds: Mapping[str, str]) -> dict[str, list[str]]:
    """Run each kind for a while, at once, and return its calls for sockets beyond this machine."""
    environment = {name: text for name, text in os.environ.items() if name != VARIABLE}
    running = {}
    for name, words in kinds.items():
        log = folder / f"{name}.strace"
        options = ["-f", "-qq", "-e", "trace=socket,connect,sendto,sendmsg", "-o", str(log)]
        running[name] = subprocess.Popen(
            ["strace", *options, *make_python_command(*shlex.split(words))],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    time.sleep(2 * SECONDS)  # a start under strace takes some
    found = {}
    for name, process in running.items():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        lines = (folder / f"{name}.strace").read_text().splitlines()
        assert lines or name == "engine", errors
        found[name] = [line for line in lines if _OUTSIDE.search(line) and not _OWN.search(line)]
    return found
