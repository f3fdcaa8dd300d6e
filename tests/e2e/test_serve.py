"""A real server at two in the morning: faults are said, what was accepted is answered."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import psutil
import pytest
from tests.certificates import pair
from tests.serving import DRAIN_S, READY_S, Serving, descendants, serving
from tests.unit import studies

import ortune as ot

httpclient = pytest.importorskip("tritonclient.http")
grpcclient = pytest.importorskip("tritonclient.grpc")

TOKEN = "c0ffee" * 6
X = np.array([[1, -2, 3, -4], [5, 6, -7, 8]], np.float32)
SLOW = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x) => (float[N,4] y)
<int64[2] shape = {700, 700}, int64[1] all = {0}> {
  one = ReduceMax<keepdims: int = 0>(x)
  w = Expand(one, shape)
  a = MatMul(w, w)
  b = MatMul(a, w)
  c = MatMul(b, w)
  top = ReduceMin<keepdims: int = 0>(c)
  zero = Sub(top, top)
  y = Add(x, zero)
}"""
"""Some 50 ms of work; the answer is the input."""
TENSOR = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
JSON = json.dumps({"inputs": [TENSOR]})
BODY = (
    f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(JSON)}\r\n\r\n{JSON}"
).encode()


def gone(processes: Sequence[psutil.Process], seconds: float = DRAIN_S) -> bool:
    return not psutil.wait_procs(processes, timeout=seconds)[1]


def failed(*words: str | Path, **env: str) -> list[str]:
    """Return the two lines of a server that does not begin."""
    done = subprocess.run(
        [sys.executable, "-m", "ortune.cli.main", "serve", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=READY_S,
        env={**os.environ, **env},
    )
    assert done.returncode == 2, done.stderr
    assert not done.stdout
    lines = done.stderr.splitlines()[-2:]
    assert lines[0].startswith("ortune serve: ") and lines[1].startswith("  fix: "), done.stderr
    return lines


def left(room: Path) -> list[Path]:
    """Return what lies in a folder for temporary files, but for what onnxruntime keeps there."""
    return [one for one in room.iterdir() if one.name != ".ses"]


def infer(server: Serving, model: str = "toy", front: str = "http", x: Any = X) -> Any:
    made = (httpclient if front == "http" else grpcclient).InferInput("x", x.shape, "FP32")
    made.set_data_from_numpy(x)
    module = httpclient if front == "http" else grpcclient
    client = module.InferenceServerClient(server.http if front == "http" else server.grpc)
    with client:
        return client.infer(model, [made]).as_numpy("y")


def status(url: str, **headers: str) -> int:
    asked = urllib.request.Request(
        url, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return int(error.code)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    studies.write_model(made / "toy.onnx", studies.MODEL)
    studies.write_model(made / "slow.onnx", SLOW)
    ot.pack(studies.study(made / "study"), made / "packed.ortune")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Serving]:
    models = (folder / "toy.onnx", folder / "packed.ortune", f"other={folder / 'toy.onnx'}")
    with serving(*models) as running:
        yield running


# --- it answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("front", ["http", "grpc"])
@pytest.mark.parametrize("model", ["toy", "packed", "other"])
def test_several_models_answer_as_the_engine_does(
    server: Serving, folder: Path, front: str, model: str
) -> None:
    name = "packed.ortune" if model == "packed" else "toy.onnx"
    with ot.load(folder / name) as engine:
        np.testing.assert_array_equal(infer(server, model, front), engine(x=X)["y"])


def test_what_it_says_when_it_is_ready(server: Serving) -> None:
    assert sorted(server.told["models"]) == ["other", "packed", "toy"]
    assert server.told["pids"] == [server.process.pid]
    assert f"serving toy, packed, other on {server.told['http']} and grpc" in server.said


def test_from_python_without_grpc(folder: Path) -> None:
    model = str(folder / "toy.onnx")
    text = f"import ortune as ot; print(ot.serve({model!r}, http_port=0, grpc=False))"
    process = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "INFO serving toy on http://127.0.0.1:" in line and "grpc" not in line
    assert status(line.split()[-1] + "/v2/models/toy/ready") == 200
    process.terminate()
    out, said = process.communicate(timeout=DRAIN_S)
    assert (process.returncode, out) == (0, "None\n"), said


def test_versions_backends_and_a_file_that_changes_under_load(
    folder: Path, tmp_path: Path
) -> None:
    for version, weights in (("1", "{1,2,3,4}"), ("2", "{10,20,30,40}")):
        place = tmp_path / "models" / "toy" / version / "any.onnx"
        studies.write_model(place, studies.MODEL.replace("{1,2,3,4}", weights))
    first, second = (np.maximum(X + np.float32([1, 2, 3, 4]) * by, 0) for by in (1, 10))
    words = ("--on", "cpu(threads=1)", "--watch", "--instances", "1", "--max-batch", "16")
    with (
        serving(tmp_path / "models" / "toy", *words) as running,
        httpclient.InferenceServerClient(running.http) as client,
    ):
        assert client.get_model_metadata("toy")["versions"] == ["1", "2"]
        assert client.get_model_config("toy")["max_batch_size"] == 16
        given = httpclient.InferInput("x", X.shape, "FP32")
        given.set_data_from_numpy(X)
        old = client.infer("toy", [given], model_version="1").as_numpy("y")
        np.testing.assert_array_equal(old, first)
        np.testing.assert_array_equal(client.infer("toy", [given]).as_numpy("y"), second)
        found = list[Any]()
        done = threading.Event()

        def ask() -> None:
            with httpclient.InferenceServerClient(running.http) as own:
                while not done.is_set():
                    found.append(own.infer("toy", [given]).as_numpy("y"))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        fresh = studies.write_model(tmp_path / "fresh.onnx", studies.MODEL)
        fresh.replace(tmp_path / "models" / "toy" / "2" / "any.onnx")
        assert until(lambda: bool(found) and np.array_equal(found[-1], first)), running.said
        torn = tmp_path / "torn.onnx"
        torn.write_bytes(b"no model")
        torn.replace(tmp_path / "models" / "toy" / "2" / "any.onnx")
        assert until(lambda: "WARNING toy: " in running.said), running.said
        asked = len(found)
        assert until(lambda: len(found) > asked + 20)
        done.set()
        for thread in threads:
            thread.join(DRAIN_S)
        for one in found:
            assert np.array_equal(one, first) or np.array_equal(one, second)
        assert np.array_equal(found[-1], first), "the last good one answers"


# --- what cannot begin ------------------------------------------------------------------------


def test_models_that_are_none(folder: Path, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    hostile = tmp_path / "hostile.onnx"
    hostile.write_bytes(b"\x08\x08" + os.urandom(2000))
    torn = tmp_path / "torn.ortune"
    torn.write_bytes((folder / "packed.ortune").read_bytes()[:-900])
    ports = ("--http-port", "0", "--grpc-port", "0")
    for model in (torn, tmp_path):
        failed(folder / "packed.ortune", model, *ports, TMPDIR=str(room))
        assert left(room) == []
    failed(hostile, *ports, "--processes", "2", TMPDIR=str(room))
    assert left(room) == []


# --- who may ask ------------------------------------------------------------------------------


def test_tokens_and_tls(folder: Path, tmp_path: Path) -> None:
    good, tokens = pair(tmp_path), tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    tokens.chmod(0o644)
    words = ("--token-file", tokens, "--tls-cert", good.certificate, "--tls-key", good.key)
    with serving(folder / "toy.onnx", *words, "--log-requests", "--log-json") as running:
        assert running.told["http"].startswith("https://")
        assert "may be read or written by everybody" in running.said
        trusted = ssl.create_default_context(cafile=str(good.certificate))
        client = httpclient.InferenceServerClient(
            running.http, ssl=True, ssl_context_factory=lambda: trusted
        )
        given = httpclient.InferInput("x", X.shape, "FP32")
        given.set_data_from_numpy(X)
        right, wrong = {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"Bearer {TOKEN}0"}
        assert client.is_server_live()
        assert client.infer("toy", [given], headers=right).as_numpy("y").shape == X.shape
        for headers in (wrong, None):
            with pytest.raises(Exception, match=r"401|[Uu]nauth|token"):
                client.infer("toy", [given], headers=headers)
        remote = grpcclient.InferenceServerClient(
            running.grpc, ssl=True, root_certificates=str(good.certificate)
        )
        given = grpcclient.InferInput("x", X.shape, "FP32")
        given.set_data_from_numpy(X)
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert remote.infer("toy", [given], headers=bearer).as_numpy("y").shape == X.shape
        with pytest.raises(Exception, match=r"UNAUTHENTICATED|token"):
            remote.infer("toy", [given])
        remote.close()
        assert running.end() == 0
        lines = [json.loads(line) for line in running.said.splitlines() if line[:1] == "{"]
        assert any(line["event"] == "request" and line["status"] == 200 for line in lines)
        assert TOKEN not in running.said


# --- its end ----------------------------------------------------------------------------------


@dataclass
class Load:
    """Clients that ask again and again, each on one connection, until they are refused."""

    server: Serving
    answered: int = 0
    lost: list[str] = field(default_factory=list)

    def http(self) -> None:
        """What is sent over a connection that answered before is accepted: it may not be lost."""
        host, _, port = self.server.http.rpartition(":")
        while True:
            try:
                link = socket.create_connection((host, int(port)), 30)
            except OSError:
                return
            with link, link.makefile("rb") as answers, suppress(ConnectionError):
                before = 0
                while self._ask(link, answers, before):
                    before += 1

    def _ask(self, link: socket.socket, answers: BinaryIO, before: int) -> bool:
        """Ask once; return whether the connection goes on."""
        sent = False
        try:
            link.sendall(BODY)
            sent = True
            first = answers.readline()
        except ConnectionError:
            first = b""
        if not first:
            if sent and before:
                self.lost.append(f"http: closed after {before}")
            return False
        headers = dict[bytes, bytes]()
        while (line := answers.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        size = int(headers.get(b"content-length", b"0"))
        if b" 200 " in first and len(answers.read(size)) == size:
            self.answered += 1
        else:
            self.lost.append(f"http {first!r}")
        return headers.get(b"connection") != b"close"

    def grpc(self) -> None:
        given = grpcclient.InferInput("x", [1, 4], "FP32")
        given.set_data_from_numpy(X[:1])
        client = grpcclient.InferenceServerClient(self.server.grpc)
        while True:
            try:
                client.infer("slow", [given], client_timeout=30)
                self.answered += 1
            except grpcclient.InferenceServerException as error:
                if "UNAVAILABLE" not in str(error.status()):
                    self.lost.append(f"grpc {error}")
                return


several = pytest.mark.skipif(
    len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2, reason="one CPU"
)


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=several)])
def test_sigterm_under_load_loses_nothing(folder: Path, processes: str) -> None:
    with serving(folder / "slow.onnx", "--log-requests", "--processes", processes) as running:
        load = Load(running)
        threads = [threading.Thread(target=one) for one in [load.http] * 4 + [load.grpc] * 4]
        for thread in threads:
            thread.start()
        time.sleep(1.5)
        assert load.answered > 8 or processes == "2", running.said
        children = descendants(running.process.pid)
        assert running.end() == 0, running.said
        for thread in threads:
            thread.join(DRAIN_S)
        assert load.answered > 8 and not load.lost
        assert gone(children)
        assert "every accepted request was answered" in running.said or processes == "2"
        assert "CANCELLED" not in running.said and " 499 " not in running.said


@pytest.mark.parametrize("front", ["http", "grpc"])
def test_a_request_that_runs_when_the_end_comes_is_answered(folder: Path, front: str) -> None:
    big = np.ones((8, 4), np.float32)
    with serving(folder / "slow.onnx", "--max-batch", "1") as running:
        found, here = list[Any](), threading.Barrier(13)
        module = httpclient if front == "http" else grpcclient
        given = module.InferInput("x", big.shape, "FP32")
        given.set_data_from_numpy(big)

        def ask() -> None:
            address = running.http if front == "http" else running.grpc
            client = module.InferenceServerClient(address)
            assert client.is_server_live()
            here.wait()
            found.append(client.infer("slow", [given]).as_numpy("y"))

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        here.wait()
        time.sleep(0.25)
        running.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(DRAIN_S)
        assert running.process.wait(DRAIN_S) == 0
        assert len(found) == 12, running.said
        for one in found:
            np.testing.assert_array_equal(one, big)


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=several)])
def test_ctrl_c_once_drains_and_twice_ends(folder: Path, processes: str) -> None:
    words = (folder / "toy.onnx", "--processes", processes, "--drain", "60s")
    with serving(*words) as running:
        assert running.end(number=signal.SIGINT) == 0
    with serving(*words) as running:
        children = descendants(running.process.pid)
        host, _, port = running.http.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as link:
            link.sendall(
                b"POST /v2/models/toy/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"
            )
            time.sleep(0.5)
            running.process.send_signal(signal.SIGINT)
            time.sleep(1)
            assert running.process.poll() is None, "it waits for the rest"
            began = time.monotonic()
            assert running.end(number=signal.SIGINT) == 3
            assert time.monotonic() - began < 15
            assert gone(children)


# --- several processes ------------------------------------------------------------------------


def until(true: Callable[[], bool], seconds: float = DRAIN_S) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


@several
def test_one_of_several_processes_is_killed_and_comes_back(folder: Path) -> None:
    with serving(folder / "toy.onnx", "--processes", "2") as running:
        first, second = (psutil.Process(pid) for pid in running.told["pids"])
        assert not set(first.cpu_affinity()) & set(second.cpu_affinity())
        assert all(infer(running, front=front).shape == X.shape for front in ("http", "grpc"))
        first.kill()
        assert until(lambda: "another one takes its place" in running.said)
        for _ in range(10):
            assert infer(running).shape == X.shape, "the other one answers"
        assert until(lambda: running.said.count("serves") >= 1, READY_S), running.said
        assert "SIGKILL" in running.said and second.is_running()
        children = descendants(running.process.pid)
        assert len(children) == 2
        assert running.end() == 0, running.said
        assert gone(children)


@several
def test_children_do_not_outlive_their_parent(folder: Path) -> None:
    with serving(folder / "toy.onnx", "--processes", "2") as running:
        children = descendants(running.process.pid)
        assert len(children) == 2
        running.process.kill()
        assert gone(children), "they end when their parent is gone"


# --- clients that misbehave -------------------------------------------------------------------


def test_clients_that_say_nothing_do_not_hold_others_up(server: Serving) -> None:
    host, _, port = server.http.rpartition(":")
    links = [socket.create_connection((host, int(port)), 20) for _ in range(300)]
    try:
        began = time.monotonic()
        assert infer(server).shape == X.shape
        assert time.monotonic() - began < 10
    finally:
        for link in links:
            link.close()
    assert status(f"http://{server.http}/v2/health/ready") == 200
