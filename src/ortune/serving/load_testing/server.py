"""The server under load: one of our own in a process, what it says of itself, what it costs."""

import http.client
import json
import os
import shlex
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import psutil

from ortune.core.errors import BadData, OrtuneError, summarize_error
from ortune.core.python_process import make_python_command
from ortune.core.temporary_folder import open_temporary_folder
from ortune.serving.load_testing.client import grpc_channel
from ortune.serving.load_testing.requests import LoadTest, ServerUrl

_READY_S, _DRAIN_S, _POLL_S = 120.0, 30.0, 0.05
_TIMEOUT_S, WHOLE_S = 30.0, 60.0
"""Seconds without a word of an answer, and for all of it."""
_PAGE_BYTES = 1 << 24
"""Bytes at most of what a server says of itself."""
_Ask: TypeAlias = Callable[[str, str, Mapping[str, Any]], Any]
"""Given a method and path of HTTP, a method of gRPC, and the fields of the request."""


@dataclass(frozen=True)
class RunningServer:
    """A server that runs, its URLs, and the process that was started; others may be below it."""

    http: str
    grpc: str
    pid: int

    def find_url(self, protocol: str) -> str:
        """Return the address of a protocol."""
        return self.http if protocol == "http" else self.grpc


@contextmanager
def serve_models(*models: str | Path, options: Sequence[str] = ()) -> Iterator[RunningServer]:
    """Serve bundles, models or folders of versions until the block ends, and 30 s for the rest.

    SIGTERM is a KeyboardInterrupt meanwhile: no server outlives what started it. `options` are
    more words for `ortune serve`, such as ``("--instances", "2")``. Raises OrtuneError: it does
    not get ready, with the last that it said.
    """
    with socket.socket() as first, socket.socket() as second:
        for free in (first, second):
            free.bind(("127.0.0.1", 0))
        http_port, grpc_port = first.getsockname()[1], second.getsockname()[1]
    command = make_python_command("-m", "ortune.cli.main", "serve", *models)
    command += ["--http-port", str(http_port), "--grpc-port", str(grpc_port), *options]
    with open_temporary_folder() as folder, _interrupt_on_sigterm():
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            url = f"http://127.0.0.1:{http_port}"
            _wait_ready(process, url, log)
            yield RunningServer(url, f"grpc://127.0.0.1:{grpc_port}", process.pid)
        finally:
            children = []
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(process.pid).children(recursive=True)
            if process.poll() is None:
                process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_DRAIN_S)
            process.kill()
            process.wait()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()


def serve_options(request: LoadTest) -> list[str]:
    """Return the words for `ortune serve` that a load test hands on."""
    on = ["--on", request.on] if request.on else []
    processes = ["--processes", str(request.processes)] if request.processes > 1 else []
    return [*shlex.split(request.serve), *on, *processes]


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the main thread; other threads get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + _READY_S
    while process.poll() is None and time.monotonic() < until:
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5).close()
            return
        time.sleep(_POLL_S)
    lines = [
        line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    fix = next((line for line in lines if line.startswith("fix: ")), "")
    last = next((line for line in lines[::-1] if line and not line.startswith("fix: ")), "")
    raise OrtuneError(
        f"the server did not get ready: {summarize_error(last) if last else 'it printed nothing'}",
        fix=fix.removeprefix("fix: ") or "start it by hand with `ortune serve` and read its log",
    )


class _Refusal(Exception):
    """A server answers, and refuses."""

    def __init__(self, text: str, *, locked: bool = False) -> None:
        super().__init__(text)
        self.locked = locked


def model_path(model: str, version: str) -> str:
    """Return where a model is in a server's URLs."""
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{version}" if version else "")


class Admin:
    """What a server says of itself and its models, in the protocol's JSON, over one connection.

    Of several processes behind a port it is always the same that answers. `ca` is a file with
    certificates to trust, with TLS. Raises OrtuneError: nobody answers there.
    """

    def __init__(self, url: ServerUrl, *, ca: str = "", token: str = "") -> None:
        self.token, self._url = token, url
        self._ask = self._over_http(ca) if url.protocol == "http" else self._over_grpc(ca)

    def list_models(self) -> list[str]:
        """Return names of ready models, as far as listed; BadData where it asks for a token."""
        index: Any = []
        try:
            index = self._ask("POST /v2/repository/index", "RepositoryIndex", {"ready": True})
        except _Refusal as refusal:
            if refusal.locked:
                raise BadData(
                    f"the server requires a token: {refusal}",
                    fix="give the token with --token-file",
                ) from None
        if isinstance(index, dict):
            index = index.get("models", ())
        return sorted({str(model.get("name")) for model in index if isinstance(model, dict)})

    def fetch_metadata(self, model: str, version: str) -> Mapping[str, Any]:
        """Return what a model says of itself. Raises BadData: the server knows no such model."""
        try:
            return self._ask_model("", "ModelMetadata", model, version)
        except _Refusal as refusal:
            names = self.list_models()
            raise BadData(
                f"the server refuses model '{model}': {refusal}",
                fix=f"use --model with one of: {', '.join(names)}" if names else "check --model",
            ) from None

    def fetch_statistics(self, model: str, version: str) -> Counter[str] | None:
        """Return a model's statistics as `read_statistics` does; None where there are none."""
        with suppress(_Refusal):
            return read_statistics(self._ask_model("/stats", "ModelStatistics", model, version))
        return None

    def fetch_max_batch(self, model: str, version: str) -> int:
        """Return the rows that are joined at most, by a model's configuration; 0 without one."""
        with suppress(_Refusal, AttributeError, TypeError, ValueError):
            config = self._ask_model("/config", "ModelConfig", model, version)
            return int(config.get("config", config).get("max_batch_size", 0))
        return 0

    def _ask_model(self, page: str, method: str, model: str, version: str) -> Mapping[str, Any]:
        path = f"GET {model_path(model, version)}{page}"
        answer = self._ask(path, method, {"name": model, "version": version})
        if not isinstance(answer, dict):
            raise _Refusal("its answer is no object")
        return answer

    def _make_connection_error(self, reason: object) -> OrtuneError:
        trust = ", and name who issued its certificate with --ca" if self._url.tls else ""
        return OrtuneError(
            f"no server answers at {self._url}: {reason}",
            fix=f"start it, check host and port{trust}",
        )

    def _over_http(self, ca: str) -> _Ask:
        url = self._url
        connection = http.client.HTTPConnection(url.host, url.port, timeout=_TIMEOUT_S)
        if url.tls:
            context = ssl.create_default_context(cafile=ca or None)
            connection = http.client.HTTPSConnection(
                url.host, url.port, timeout=_TIMEOUT_S, context=context
            )
        self.close = connection.close
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}

        def ask(line: str, _: str, fields: Mapping[str, Any], *, again: bool = True) -> Any:
            method, _, path = line.partition(" ")
            body = json.dumps(fields).encode() if method == "POST" else None
            try:
                with _end_after(connection, WHOLE_S) as is_late:
                    connection.request(method, path, body, headers)
                    response = connection.getresponse()
                    text = response.read(_PAGE_BYTES + 1)
                if is_late.is_set() or len(text) > _PAGE_BYTES:
                    raise http.client.HTTPException(
                        f"its answer to {line} has more than {_PAGE_BYTES} bytes, or takes longer "
                        f"than {WHOLE_S:g} s"
                    )
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if again and isinstance(error, ConnectionError):  # it ends what is idle for long
                    return ask(line, "", fields, again=False)
                raise self._make_connection_error(error) from None
            answer = None
            with suppress(ValueError, RecursionError):
                answer = json.loads(text or b"null")
            if response.status != 200:
                message = str(answer.get("error", "")) if isinstance(answer, dict) else ""
                raise _Refusal(
                    message or f"status {response.status}", locked=response.status in (401, 403)
                )
            return answer

        with suppress(_Refusal):
            ask("GET /v2/health/live", "", {})
        return ask

    def _over_grpc(self, ca: str) -> _Ask:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it logs every failed handshake
        import grpc
        from google.protobuf.json_format import MessageToDict

        from ortune.serving.protocol import messages

        channel = grpc_channel(grpc, self._url, ca)
        self.close = channel.close
        metadata = (("authorization", f"Bearer {self.token}"),) if self.token else None
        try:
            grpc.channel_ready_future(channel).result(timeout=_TIMEOUT_S / 3)
        except grpc.FutureTimeoutError:
            channel.close()
            raise self._make_connection_error("no connection") from None

        def ask(_: str, method: str, fields: Mapping[str, Any]) -> Any:
            call = channel.unary_unary(
                f"/{messages.SERVICE}/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=messages.find_message_class(f"{method}Response").FromString,
            )
            request = messages.find_message_class(f"{method}Request")(**fields)
            try:
                answer = call(request, timeout=_TIMEOUT_S, metadata=metadata)
            except grpc.RpcError as error:
                locked = error.code().name in ("UNAUTHENTICATED", "PERMISSION_DENIED")
                raise _Refusal(error.details(), locked=locked) from None
            return MessageToDict(answer, preserving_proto_field_name=True)

        return ask


@contextmanager
def _end_after(
    connection: http.client.HTTPConnection, seconds: float
) -> Iterator[threading.Event]:
    """End a connection that is still in use then, and set the event: bytes may come one by one."""
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        with suppress(OSError):
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


def read_statistics(answer: Mapping[str, Any]) -> Counter[str] | None:
    """Return counts and nanoseconds of a model's requests; None where they cannot be read.

    ``answered``, ``rows`` and ``runs``; ``queue`` and ``compute`` count the requests of which
    ``queue_ns`` and ``compute_ns`` are the times.
    """
    # Another server's may hold anything, and JSON of protobuf has texts for numbers.
    with suppress(AttributeError, LookupError, TypeError, ValueError):
        model = answer["model_stats"][0]
        stages: Mapping[str, Any] = model.get("inference_stats", {})

        def stage(name: str, figure: str) -> int:
            return int(stages.get(name, {}).get(figure, 0))

        return Counter(
            answered=stage("success", "count"),
            rows=int(model.get("inference_count", 0)),
            runs=int(model.get("execution_count", 0)),
            queue=stage("queue", "count"),
            queue_ns=stage("queue", "ns"),
            compute=stage("compute_infer", "count"),
            compute_ns=sum(
                stage(f"compute_{part}", "ns") for part in ("input", "infer", "output")
            ),
        )
    return None


def process_usage(pid: int | None) -> tuple[float, int] | None:
    """Return CPU seconds and resident bytes of a process and all below it.

    CPU seconds are user and system, ended children included; pages that processes share count in
    each. None where the process is gone, or none is given.
    """
    cpu_s, rss = 0.0, 0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid) if pid else None
        for process in (root, *root.children(recursive=True)) if root else ():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                used = process.cpu_times()
                cpu_s += used.user + used.system + used.children_user + used.children_system
                rss += process.memory_info().rss
    return (cpu_s, rss) if rss else None
