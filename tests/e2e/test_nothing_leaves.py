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
from pathlib import Path

import onnx
import pytest
from onnx import parser
from tests.models import write_classifier

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
ORTUNE = "-m ortune.cli.main"
NET = """import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
"""
KINDS = {
    "engine": f"-c 'import ortune, time; engine = {OPEN}; time.sleep({SECONDS})'",
    "server": f"{ORTUNE} serve model.onnx --http-port 0 --grpc-port 0",
    "servers": f"{ORTUNE} serve model.onnx --http-port 0 --no-grpc --processes 2",
    "loadtest": f"{ORTUNE} loadtest model.onnx --time 14 --concurrency 1",
    **{
        f"worker of {backend.partition('(')[0]}": f"{ORTUNE} bench model.onnx --on {backend} "
        "--sets 1 --time 14"
        for backend in ("cpu", "openvino", "reference", "torch(source=net:Net)")
    },
    "optimize": f"{ORTUNE} optimize model.onnx --time 20s --on cpu -o run",
    "demo": f"{ORTUNE} demo --time 15s --on cpu -o demo",
    "calibrate": f"{ORTUNE} calibrate classifier.onnx --data data -o ranges.json",
    "export": f"{ORTUNE} export net:Net --input x=2x4 -o exported.onnx",
}
"""Processes of all verbs are of these kinds; a client is a child of `loadtest`."""
LISTEN = {"server": 2, "servers": 2}
"""Sockets of what does not end by itself, for HTTP and gRPC or for each process."""
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
@pytest.mark.parametrize("kind", ["onnxruntime", *KINDS])
def test_15_seconds_of_each_kind_of_process_open_no_socket_but_their_own(
    model: Path, kind: str
) -> None:
    for name in ("openvino", "torch"):
        if kind.endswith(name) or (name, kind) == ("torch", "export"):
            pytest.importorskip(name)
    (model.parent / "net.py").write_text(NET)
    write_classifier(model.parent, samples=32)
    alone = f"-c 'import onnxruntime, time; session = {PLAIN}; time.sleep({SECONDS})'"
    calls = trace(model.parent, KINDS.get(kind, alone), listens=LISTEN.get(kind, 0))
    if kind == "onnxruntime":
        assert calls, "the trace sees what onnxruntime does when it is let"
    else:
        assert calls == []


def trace(folder: Path, words: str, *, listens: int) -> list[str]:
    """Return a command's calls for sockets beyond this machine, those of its children included.

    Args:
        listens: Once it listens so often, it is ended after a while; 0 where it ends by itself.
    """
    log = folder / "calls.strace"
    options = [
        "-f",
        "-qq",
        "-e",
        "trace=execve,listen,socket,connect,sendto,sendmsg",
        "-o",
        str(log),
    ]
    process = subprocess.Popen(
        ["strace", *options, *make_python_command(*shlex.split(words))],
        cwd=folder,
        env={name: text for name, text in os.environ.items() if name != VARIABLE},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        if listens:
            until = time.monotonic() + 300  # a start under strace takes some
            while not log.is_file() or log.read_text().count("listen(") < listens:
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.5)
            time.sleep(SECONDS)
            os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    lines = log.read_text().splitlines()
    assert any("execve(" in line for line in lines), errors
    return [line for line in lines if _OUTSIDE.search(line) and not _OWN.search(line)]
