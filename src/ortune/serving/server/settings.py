"""What `ortune serve` is asked, and what it says when it is ready."""

import json
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from ortune.core.fields import ByteSize, Counts, Duration, Field, Libraries, Models, Option
from ortune.core.hardware.instances import read_instances
from ortune.core.request import Request, list_request_fields, request

_PORTS = 65535


class InstanceCounts(Field[int | str, int | str]):
    """A number, or groups by device: ``2@gpu0,2@gpu1``."""

    metavar = "N"

    def read(self, value: Any) -> int | str:
        """Return a number as one, groups as they are spelled; 0 leaves it to the bundle."""
        if value in (None, 0, "0"):
            return 0
        groups = read_instances(value)
        plain = len(groups) == 1 and not groups[0].kind
        return groups[0].count if plain else ",".join(map(str, groups))


@request
class Serve(Request):
    """Serve MODELS by the Open Inference Protocol v2, HTTP and gRPC, until stopped.

    MODELS are bundles, plain models, or folders of versions (NAME/1/FILE, NAME/2/FILE), served by
    the file's name or as NAME=PATH. Clients of Triton and KServe work unchanged. A bundle runs
    with the settings that it was measured with. SIGTERM or Ctrl-C: what was accepted is answered,
    then it ends; a second Ctrl-C ends at once.

    Example:
        ortune serve model.ortune
        ortune serve detector.onnx labels.onnx --on "cpu(threads=1)" --instances 2
        ortune serve model.ortune --token-file tokens.txt --tls-cert cert.pem --tls-key key.pem

    Attributes:
        models: Bundles, models, or folders of versions; NAME=PATH names one.
        on: Where to run plain models; of a bundle, take the plan of this backend.
        host: Address to listen on; the default takes requests of this machine alone, 0.0.0.0 of
            all.
        http_port: Port of HTTP; 0 takes any free one.
        grpc_port: Port of gRPC; 0 takes any free one.
        http: Answer HTTP.
        grpc: Answer gRPC.
        instances: Sessions of every model, each on CPUs of its own; by device: 2@gpu0,2@gpu1.
        max_batch: Most rows that are computed together; 1 computes every request alone.
        max_delay_us: Microseconds that a request waits for others to be joined with.
        preferred: Batch sizes that are computed at once, without waiting for more rows, such as
            4,8.
        max_queue: Most requests of a model that may wait; the next is refused.
        timeout: How long a request may wait and compute, unless it asks for less.
        max_body: Largest request in bytes, after decompression. Without it no request is larger
            than the inputs of its model can be, or than 64 MiB.
        executor: Where to serve: local, or the Ray Serve of a cluster: ray or ray://HOST:PORT.
        processes: Processes that share the ports, each with CPUs of its own; replicas on Ray.
        explicit: Let clients load and unload models by name.
        watch: Load a file again when it changes; nothing is dropped meanwhile.
        token_file: File of tokens, one a line: every request must carry one of them.
        tls_cert: Certificate, a PEM file with those that issued it.
        tls_key: Private key of the certificate, a PEM file.
        drain: How long accepted requests may take when the server ends.
        log_json: Log JSON, one object a line.
        log_requests: Log every request, not only those that failed.
        trace: Send OpenTelemetry spans to this OTLP endpoint, such as http://127.0.0.1:4318.
        custom_ops: Custom operators of plain models: a shared library, or a Python module that
            gives one. It is run.
        allow_custom_ops: Run the custom operators that bundles bring.
        require_signature: Open no bundle that the owner of this public key did not sign.

    Raises:
        BadModel: A file is damaged, or no model.
        BadSettings: A port is taken, the certificate or the tokens cannot be used, or a setting
            of a model is wrong.
        OrtuneError: What it needs is not installed: extra ``serve``.
    """

    models: Models
    _: KW_ONLY
    on: Annotated[str | None, Option("BACKEND")] = None
    host: Annotated[str, Option("ADDRESS")] = "127.0.0.1"
    http_port: Annotated[int, Option("PORT", high=_PORTS)] = 8000
    grpc_port: Annotated[int, Option("PORT", high=_PORTS)] = 8001
    http: bool = True
    grpc: bool = True
    instances: InstanceCounts = InstanceCounts(
        0, Option("N", shown="as in the bundle, else 1", per_cpu=1)
    )
    max_batch: Annotated[
        int, Option("ROWS", shown="as in the bundle, else 8; convolutions on CUDA: 1")
    ] = 0
    max_delay_us: Annotated[int, Option("US", shown="as in the bundle, else none")] = 0
    preferred: Counts = Counts(None)
    max_queue: Annotated[int, Option("N", shown="1024")] = 0
    timeout: Duration = Duration("60s")
    max_body: ByteSize = ByteSize(None)
    executor: Annotated[str, Option("WHERE")] = "local"
    processes: Annotated[
        int | None, Option("N", low=1, high=1024, shown="1; on Ray as many as fit")
    ] = None
    explicit: bool = False
    watch: bool = False
    token_file: Annotated[str | Path | None, Option("FILE")] = None
    tls_cert: Annotated[str | Path | None, Option("CERT.pem")] = None
    tls_key: Annotated[str | Path | None, Option("KEY.pem")] = None
    drain: Duration = Duration("30s")
    log_json: bool = False
    log_requests: bool = False
    trace: Annotated[str | None, Option("URL")] = None
    custom_ops: Libraries = Libraries(())
    allow_custom_ops: bool = False
    require_signature: Annotated[str | Path | None, Option("PUBLIC.pem")] = None

    @property
    def names(self) -> tuple[str, ...]:
        """The models, one or several, as texts: ``PATH``, or ``NAME=PATH``."""
        models = self.models
        return tuple(map(str, [models] if isinstance(models, (str, Path)) else models))


def spell_request(options: Serve) -> str:
    """Return a request as JSON, for another process of it."""
    values = {option.name: getattr(options, option.name) for option in list_request_fields(Serve)}
    return json.dumps(values | {"models": options.names}, default=str)


def parse_request(text: str) -> Serve:
    """Return the request that `spell_request` wrote."""
    values: dict[str, Any] = json.loads(text)
    return Serve(**values)


@dataclass(frozen=True)
class Listening:
    """Where a server that is ready can be asked: ``http://127.0.0.1:8000``, ``127.0.0.1:8001``."""

    http: str | None
    grpc: str | None
    models: Sequence[str]
    pids: Sequence[int]

    def __str__(self) -> str:
        names = ", ".join(self.models) or "no model"
        where = [self.http, f"grpc {self.grpc}" if self.grpc else None]
        return f"serving {names} on {' and '.join(filter(None, where))}"


Ready: TypeAlias = Callable[[Listening], None]
"""Is told once, when requests are taken."""
