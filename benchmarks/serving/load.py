"""A client that costs little: the same bytes again and again, in a process of its own.

The process (`benchmarks.serving.asking`) warms up, says so, waits to be told, measures, and gives
a `Load`. Requests are sent as they are and answers are not decoded, so that what is seen is the
server; each answer's status is looked at.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.serving import bound

METHOD = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Request:
    """The bytes of one request.

    Attributes:
        protocol: ``http`` or ``grpc``.
        body: Of HTTP the body, of gRPC the serialized message.
        path: Of HTTP.
        headers: Beside those that every request has; of gRPC its metadata.
    """

    protocol: str
    body: bytes
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Spec:
    """What a client does.

    Attributes:
        address: Where the server listens.
        body: File of the request's bytes.
        concurrency: Connections; each has one request in flight. Of gRPC: requests in flight.
        rate: Requests a second, of Poisson arrivals; 0 sends the next when the last is answered.
        from_sent: Time arrivals from when they were sent, not from when they were due: what the
            server made of them where the client cannot keep up.
        seconds: That are measured.
        limit_s: What an answer may take.
    """

    protocol: str
    address: str
    body: str
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = 1
    rate: float = 0.0
    from_sent: bool = False
    seconds: float = 2.0
    warm_s: float = 0.5
    limit_s: float = 30.0


@dataclass(frozen=True)
class Load:
    """What it saw.

    Attributes:
        answered: Requests with an answer that is none of an error.
        errors: Status -> requests; ``refused`` found nobody who listened, ``lost`` were sent and
            had no answer.
        percentiles: Of those answered, percent -> milliseconds.
        client_cpu_s: What the client itself used.
    """

    seconds: float
    answered: int
    errors: dict[str, int]
    percentiles: dict[str, float]
    worst_ms: float
    client_cpu_s: float

    @property
    def per_second(self) -> float:
        """Requests that were answered each second."""
        return self.answered / self.seconds


@contextmanager
def client(
    request: Request, address: str, *, cpus: Collection[int] = (), **how: Any
) -> Iterator[Callable[[], Load]]:
    """Start a client and warm the server up; what is yielded measures once.

    Args:
        how: Fields of `Spec`.
    """
    with TemporaryDirectory(prefix="ortune-load-") as folder:
        body, spec = Path(folder) / "body", Path(folder) / "spec.json"
        body.write_bytes(request.body)
        more = {"path": request.path, "headers": dict(request.headers)}
        made = Spec(request.protocol, address, str(body), **more, **how)
        spec.write_text(json.dumps(asdict(made)))
        command = bound([sys.executable, "-m", "benchmarks.serving.asking", str(spec)], cpus)
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                _expect(process, "ready")
                yield lambda: _measured(process)
            finally:
                process.kill()


def loaded(request: Request, address: str, **how: Any) -> Load:
    """Warm up and measure in one."""
    with client(request, address, **how) as measure:
        return measure()


def _expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    if (said := process.stdout.readline().strip()) != word:
        raise RuntimeError(f"the client said {said!r}, not {word!r}")


def _measured(process: subprocess.Popen[str]) -> Load:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return Load(**json.loads(process.stdout.readline()))
