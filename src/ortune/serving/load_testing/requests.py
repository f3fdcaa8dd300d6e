"""What `loadtest` is asked for: the request, a server's address, a limit on the latency."""

import math
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from ortune.core.errors import BadSettings
from ortune.core.fields import Counts, Duration, Field, File, Option, OptionalDuration, Out
from ortune.core.request import DataRequest, request

_PORTS = {"http": 8000, "https": 443, "grpc": 8001, "grpcs": 443}
_LIMIT = re.compile(r"p(\d{2}(?:\.\d{1,2})?)\s*<=?\s*(\d+(?:\.\d+)?|\.\d+)\s*(us|ms|s)")
_UNIT_NS = {"s": 1e9, "ms": 1e6, "us": 1e3}


@dataclass(frozen=True)
class ServerUrl:
    """Where a server listens: ``http://HOST:PORT`` or ``grpc://HOST:PORT``, with TLS an ``s``.

    Attributes:
        protocol: ``http`` or ``grpc``.
    """

    protocol: str
    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address. Raises BadSettings: it is none."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        scheme = parts.scheme
        if scheme not in _PORTS or not parts.hostname or parts.path.strip("/"):
            raise BadSettings(
                f"'{text}' is no address of a server",
                fix="write http://HOST:PORT or grpc://HOST:PORT; https and grpcs for TLS",
            )
        return cls(scheme[:4], parts.hostname, port or _PORTS[scheme], tls=len(scheme) == 5)

    @property
    def netloc(self) -> str:
        """Host and port as URLs have them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.protocol}{'s' if self.tls else ''}://{self.netloc}"


def is_url(text: str) -> bool:
    """Whether a text is meant as a server's address, not as a file."""
    return "://" in text


@dataclass(frozen=True)
class PercentileLimit:
    """A percentile of the latency from the intended start, from 50 up, and its limit."""

    percentile: float
    limit_ns: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a limit such as ``p99<=20ms``. Raises BadSettings: it is none."""
        match = _LIMIT.fullmatch(text.strip())
        if match is None or not 50 <= float(match[1]) < 100 or not float(match[2]):
            raise BadSettings(
                f"cannot read the limit '{text}'", fix='write "p99<=20ms": us, ms or s'
            )
        return cls(float(match[1]), float(match[2]) * _UNIT_NS[match[3]])

    def __str__(self) -> str:
        unit = next((unit for unit, ns in _UNIT_NS.items() if self.limit_ns >= ns), "us")
        return f"p{self.percentile:g}<={self.limit_ns / _UNIT_NS[unit]:g}{unit}"


class Rates(Field[tuple[float, ...], Sequence[float] | str | None]):
    """Requests a second, or a text such as ``50,100``."""

    metavar = "N/s,..."

    def read(self, value: Any) -> tuple[float, ...]:
        """Convert to a tuple."""
        parts = value.split(",") if isinstance(value, str) else value or ()
        try:
            rates = tuple(float(str(part).strip().removesuffix("/s")) for part in parts)
        except ValueError:
            raise BadSettings(f"cannot read the rates '{value}'", fix="write 50,100") from None
        if not all(0 < rate < math.inf for rate in rates):
            raise BadSettings(
                f"'{value}' holds a rate that is not positive",
                fix="give requests per second, such as 50,100",
            )
        return rates

    def spell(self, value: tuple[float, ...]) -> str:
        """Write them with commas."""
        return ",".join(f"{rate:g}" for rate in value)


@request
class LoadTest(DataRequest):
    """Put load on TARGET, a server or a model to serve; report rates and latencies.

    TARGET is http://HOST:PORT or grpc://HOST:PORT of any server of the Open Inference Protocol,
    or a bundle or model, which `ortune serve` then serves on this machine meanwhile. The load is
    callers that wait for their answers (--concurrency) or arrivals at a rate (--rate), one level
    after another; a latency counts from the intended start of a request. Without --data the inputs
    are made up.

    Exit code 1 if no level keeps --slo, an answer is wrong (--check), or none came.

    Example:
        ortune loadtest model.ortune --data samples/ --concurrency 1,2,4,8
        ortune loadtest grpc://localhost:8001 --rate 50,100,200 --slo "p99<=20ms"
        ortune loadtest model.onnx --on "cpu(threads=1)" --processes 2 --json plain.json
        ortune loadtest model.ortune --data samples/ --goal "p99<=20ms" -o tuned.ortune

    Attributes:
        target: http://HOST:PORT, grpc://HOST:PORT, or a bundle or model to serve.
        model: Name of the model on the server, NAME or NAME/VERSION; not needed where there is
            only one.
        concurrency: Callers of each level, such as 1,2,4,8, if no rate is given.
        rate: Requests a second of each level: an open loop with Poisson arrivals.
        requests: Requests a level, in place of --time.
        time: Time of each level, all its repeats together; with --goal, of the whole choice.
        repeats: How often every level is measured, in turns; requests and time are divided.
        warm_up: Load before every measurement that is not counted.
        batch: Samples stacked into one request; 0 sends them as they come.
        slo: A limit on the latency, such as "p99<=20ms".
        check: Compare all answers with those of this bundle or model, run here.
        protocol: Protocol by which a model that is served here is asked.
        processes: Server processes for a model that is served here.
        on: Where a plain model that is served here runs, such as "cpu(threads=2)".
        serve: More options for the `ortune serve` of a model that is served here.
        clients: Client processes, an event loop each.
        client: What sends the requests: this program, or Triton's perf_analyzer, if installed.
        connections: Requests of a client process that are under way at most.
        timeout: Longest wait for an answer.
        token_file: File with the token that the server asks for.
        ca: File with certificates to trust, for https:// and grpcs://.
        goal: Find by measuring which instances, batch size, queue delay and threads keep this
            limit at the highest rate, or with --rate have the lowest percentile at that rate.
        out: Write a copy of the bundle with the settings of --goal to this file.
        force: Overwrite an existing output.

    Raises:
        OrtuneError: No server answers, it does not start, an option or the data cannot be used.
    """

    formerly: ClassVar[dict[str, str]] = {"seconds": "time"}

    target: Annotated[str, Option("URL|BUNDLE")]
    _: KW_ONLY
    model: Annotated[str, Option("NAME")] = ""
    concurrency: Counts = Counts((), Option("N,...", shown="1,2,4,8", low=1, high=4096))
    rate: Rates = Rates((), Option("N,...", high=1e6))
    requests: Annotated[int, Option(low=0, high=10_000_000)] = 0
    time: OptionalDuration = OptionalDuration(
        None, Option("DURATION", shown="10s, with --goal 10m", low=0.1, high=86400)
    )
    repeats: Annotated[int, Option(low=1, high=100)] = 2
    warm_up: Annotated[float, Option("SECONDS", low=0, high=600, hidden=True)] = 0.5
    batch: Annotated[int, Option(low=0, high=4096)] = 0
    slo: Annotated[str, Option("LIMIT")] = ""
    check: File | None = None
    protocol: Literal["http", "grpc"] = "grpc"
    processes: Annotated[int, Option(low=1, high=256)] = 1
    on: Annotated[str, Option("SPEC")] = ""
    serve: Annotated[str, Option("WORDS")] = ""
    clients: Annotated[int, Option(low=1, per_cpu=2)] = 1
    client: Literal["ortune", "perf_analyzer"] = "ortune"
    connections: Annotated[int, Option(low=1, high=900, hidden=True)] = 256
    timeout: Duration = Duration("30s")
    token_file: File | None = None
    ca: File | None = None
    goal: Annotated[str, Option("LIMIT")] = ""
    out: Out = None
    force: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for text in (self.slo, self.goal):
            if text:
                PercentileLimit.parse(text)
        if self.concurrency and self.rate:
            raise BadSettings(
                "--concurrency and --rate are two kinds of load", fix="give one of them"
            )
        local = [
            name
            for name in ("processes", "on", "serve", "goal", "out")
            if getattr(self, name) not in (None, "", 1)
        ]
        if is_url(self.target):
            ServerUrl.parse(self.target)
            if local:
                raise BadSettings(
                    f"--{local[0]} is for a model that is served here, not for {self.target}",
                    fix="give a bundle or a model, or leave it out",
                )
        if self.client != "ortune":
            refused = [
                name
                for name in ("rate", "check", "goal", "token_file", "ca", "clients")
                if getattr(self, name) not in (None, "", (), 1)
            ]
            if refused:
                raise BadSettings(
                    f"--{refused[0].replace('_', '-')} is not supported with {self.client}",
                    fix="leave out --client: our own does",
                )
        if bool(self.goal) != (self.out is not None):
            raise BadSettings("--goal and -o go together", fix="give both or none")
