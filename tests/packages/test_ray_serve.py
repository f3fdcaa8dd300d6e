"""`ortune serve --executor ray`: the server's own tests against replicas behind Ray's proxies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from ortune.core.errors import OrtuneError
from ortune.serving.server import serve
from tests.e2e import test_serve_clients
from tests.packages.conformance import client_cases, grpc_cases, http_cases, wrong_http
from tests.packages.conformance import models as conformance_models
from tests.packages.conformance.asking import Addresses
from tests.packages.conformance.differences import unlike
from tests.serving import Serving, descendants, serving
from tests.unit import studies

Cluster = pytest.importorskip("ray.cluster_utils").Cluster
httpclient = pytest.importorskip("tritonclient.http")
HTTPConnectionClosed = pytest.importorskip("geventhttpclient.response").HTTPConnectionClosed

READY_S = 300.0
RAY = ("--executor", "ray", "--host", "0.0.0.0")
CASES = http_cases.cases() | wrong_http.cases() | grpc_cases.cases() | client_cases.cases()
X = np.array([[1, -2, 3, -4]], np.float32)

# The clients of Triton, as they ask the server itself.
expected, models = test_serve_clients.expected, test_serve_clients.models
test_http = test_serve_clients.test_http
test_grpc = test_serve_clients.test_grpc
test_both_async_clients = test_serve_clients.test_both_async_clients_all_at_once
test_a_stream = test_serve_clients.test_a_stream_answers_each_request_by_its_id


@pytest.fixture(scope="module", autouse=True)
def clusters_of_its_own() -> Iterator[None]:
    """Keep Ray from joining a cluster that runs on this machine."""
    folder = tempfile.mkdtemp(prefix="ray")  # short: sockets lie in it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.delenv("RAY_ADDRESS", raising=False)
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def case_models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return conformance_models.write(tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="module")
def server(models: dict[str, Path], case_models: list[Path]) -> Iterator[Serving]:
    """One replica with the models of all cases: what one request leaves behind, the next sees."""
    options = (*RAY, "--max-batch", "32", "--processes", "1")
    with serving(*models.values(), *case_models, options=options, ready_s=READY_S) as it:
        yield it


def test_answers_are_those_of_the_server_itself(
    server: Serving, models: dict[str, Path], case_models: list[Path]
) -> None:
    options = ("--max-batch", "32")
    with serving(*models.values(), *case_models, options=options) as local:
        here, on_ray = (Addresses(where.http, where.grpc) for where in (local, server))
        differences = [
            one
            for name, ask in (CASES | wrong_http.fatal()).items()
            for one in unlike(name, ask(here), ask(on_ray))
        ]
    assert not differences


# --- two replicas: one is killed, and the end -----------------------------------------------


def infer(address: str, seconds: float = 30.0) -> Any:
    tensor = httpclient.InferInput("x", X.shape, "FP32")
    tensor.set_data_from_numpy(X)
    with httpclient.InferenceServerClient(address, network_timeout=seconds) as client:
        return client.infer("toy", [tensor]).as_numpy("y")


def find_replicas(pid: int) -> set[psutil.Process]:
    """Return the processes of the replicas that run below a process."""
    replicas = set()
    for process in descendants(pid):
        with suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::ServeReplica"):
                replicas.add(process)
    return replicas


class Load:
    """Clients that ask again and again, and what they got."""

    def __init__(self, address: str, clients: int = 4) -> None:
        self.address, self.ends = address, threading.Event()
        self.outcomes = Counter[str]()
        self.threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.set()
        for thread in self.threads:
            thread.join(60)

    def wait_for(self, more: int, seconds: float = 60.0) -> None:
        until, count = time.monotonic() + seconds, self.outcomes["answered"] + more
        while self.outcomes["answered"] < count:
            assert time.monotonic() < until, self.outcomes
            time.sleep(0.05)

    def _ask(self) -> None:
        while not self.ends.is_set():
            try:
                right = np.array_equal(infer(self.address), [[2, 0, 6, 0]])
                self.outcomes["answered" if right else "wrong"] += 1
            except httpclient.InferenceServerException as error:
                self.outcomes[f"{error.status()}"] += 1
            except (OSError, HTTPConnectionClosed) as error:
                self.outcomes[type(error).__name__] += 1


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return studies.write_model(tmp_path / "toy.onnx", studies.MODEL)


def test_a_killed_replica_is_replaced_and_the_end_loses_no_request(toy: Path) -> None:
    options = ("--executor", "ray", "--no-grpc", "--on", "cpu(threads=1)", "--processes", "2")
    with serving(toy, options=options, ready_s=READY_S) as running:
        assert running.told["models"] == ["toy"] and running.told["grpc"] is None
        with Load(running.http) as load:
            load.wait_for(50)
            victim, other = find_replicas(running.process.pid)
            victim.kill()
            load.wait_for(200)
            until = time.monotonic() + 120
            while len(find_replicas(running.process.pid)) < 2:
                assert time.monotonic() < until
                time.sleep(0.5)
            assert other in find_replicas(running.process.pid)
            failed = load.outcomes.total() - load.outcomes["answered"]
            assert failed <= len(load.threads), f"those that it was computing: {load.outcomes}"
            load.wait_for(100)
            before = Counter(load.outcomes)
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(90) == 0, running.said
        later = set(load.outcomes - before)
        assert later <= {"answered", "404", "ConnectionRefusedError", "HTTPConnectionClosed"}
        assert "every accepted request was answered" in running.said
        assert not other.is_running()


# --- nodes, tokens, what cannot begin -------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of one CPU."""
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    yield nodes
    nodes.shutdown()


def test_two_nodes_with_tokens_and_a_second_server_that_is_refused(
    cluster: Any, toy: Path, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("c0ffee" * 6)
    options = (*RAY, "--token-file", str(tokens), "--on", "cpu(threads=1)")
    before = find_replicas(os.getpid())
    with serving(toy, options=options, ready_s=READY_S) as running:
        assert "2 replicas of 1 CPU" in running.said
        replicas = find_replicas(os.getpid()) - before
        assert len({process.ppid() for process in replicas}) == 2, "one on each node"
        url = f"{running.told['http']}/v2/models/toy"
        for token, status in (("c0ffee" * 6, 200), ("c0ffee" * 5, 401)):
            asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            try:
                with urllib.request.urlopen(asked, timeout=30) as answer:
                    assert status == 200 and json.loads(answer.read())["name"] == "toy"
            except urllib.error.HTTPError as error:
                assert error.code == status
        with pytest.raises(OrtuneError, match="Ray Serve runs on this cluster already"):
            serve.carry_out(serve.Serve(toy, executor="ray", grpc=False, http_port=0), None)
        assert running.end(90) == 0, running.said


def test_a_model_that_does_not_open_and_replicas_that_do_not_fit(
    cluster: Any, toy: Path, tmp_path: Path
) -> None:
    broken = studies.write_model(tmp_path / "x.onnx", studies.MODEL.replace("Relu", "Relo"))
    with pytest.raises(OrtuneError, match="Relo"):
        serve.carry_out(serve.Serve(broken, executor="ray", grpc=False, http_port=0), None)
    with pytest.raises(OrtuneError, match="do not fit: the nodes have 1, 1 CPUs"):
        serve.carry_out(
            serve.Serve(toy, executor="ray", grpc=False, http_port=0, processes=3), None
        )
