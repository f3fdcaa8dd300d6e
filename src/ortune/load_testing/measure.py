"""Measure one level of load on one server: what searches and soak tests call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.core.errors import BadData, OrtuneError
from ortune.core.event import Sink, silent
from ortune.core.facts import TensorSpec
from ortune.core.workload import spread
from ortune.data import given
from ortune.data.feeds import Feeds
from ortune.data.sources import Source
from ortune.data.stream import Stream
from ortune.load_testing import bodies
from ortune.load_testing import url as server_url
from ortune.load_testing.admin import Admin, connected
from ortune.load_testing.client.setup import Setup
from ortune.load_testing.clients import CalledModel, Clients
from ortune.load_testing.level import Level
from ortune.load_testing.load import Load
from ortune.load_testing.url import ServerUrl

_SAMPLES = 32
"""Different requests at most; they are sent in turn."""


@dataclass(frozen=True)
class Calling:
    """How clients call a server.

    Attributes:
        processes: Client processes, an event loop each.
        connections: Requests of a client process that are under way at most.
        timeout_s: Longest wait for an answer.
        token: For a server that asks for one.
        ca: File with certificates to trust, with TLS.
        kept: Right answers are kept, to be compared.
        spread: Connections of a client process at least. Behind one port the system gives each
            connection to one of several server processes, by chance: two callers on a connection
            each would often have the same.
    """

    processes: int = 1
    connections: int = 256
    timeout_s: float = 30.0
    token: str = ""
    ca: str = ""
    kept: bool = False
    spread: int = 0


_PLAIN = Calling()
_NEEDED = {"http": ("httptools",), "grpc": ("grpc", "google.protobuf")}


@contextmanager
def clients(
    url: str,
    *,
    model: str = "",
    data: Source | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    batch: int = 0,
    calling: Calling = _PLAIN,
    sink: Sink = silent,
) -> Iterator[Clients]:
    """Make requests for a model on a server, and give what puts load on it.

    Args:
        url: ``http://HOST:PORT`` or ``grpc://HOST:PORT``; ``https`` and ``grpcs`` with TLS.
        model: NAME or NAME/VERSION; not needed where the server has one alone.
        data: Samples; they are made up from what the model says that it takes without any.
        shapes: Of made-up inputs.
        ranges: Of made-up inputs.
        batch: Samples stacked into one request; 0 as they come.
        calling: How they call.
        sink: Told what was read or made up.

    Raises:
        BadData: The server has no such model, or the samples do not fit it.
        BadSettings: `url` is no address.
        OrtuneError: Nobody answers there, or a package of extra ``serve`` is missing.
    """
    where = server_url.read(url)
    _demand_installed(where.protocol)
    with (
        TemporaryDirectory(prefix="ortune-") as folder,
        closing(connected(where, ca=calling.ca, token=calling.token)) as admin,
    ):
        root = Path(folder)
        fed = partial(given.samples, data, out=root / "data", batch=batch, sink=sink)
        called = _called(admin, model, partial(fed, shapes=shapes, ranges=ranges), batch)
        setup = Setup(
            protocol=where.protocol,
            host=where.host,
            port=where.port,
            requests=_written(root, where, called, calling.token),
            open=False,
            room=calling.connections,
            timeout_s=calling.timeout_s,
            tls=where.tls,
            ca=calling.ca,
            token=calling.token,
            kept=calling.kept,
            spread=calling.spread,
        )
        with Clients(setup, called, admin, root, calling.processes) as found:
            yield found


def measure(
    url: str,
    load: Load,
    *,
    model: str = "",
    data: Source | None = None,
    batch: int = 0,
    processes: int = 1,
    warm_up_s: float = 0.5,
    pid: int | None = None,
) -> Level:
    """Put one level of load on a server; arguments as for `clients` and `Clients.measure`."""
    with clients(url, model=model, data=data, batch=batch, calling=Calling(processes)) as found:
        return found.measure(load, warm_up_s=warm_up_s, pid=pid)


def _demand_installed(protocol: str) -> None:
    missing = []
    for name in _NEEDED[protocol]:
        try:
            import_module(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise OrtuneError(
            f"a load test over {protocol} needs {', '.join(missing)}",
            fix="pip install 'ortune[serve]'",
        )


def _called(
    admin: Admin, model: str, made: Callable[[Sequence[TensorSpec]], Feeds], batch: int
) -> CalledModel:
    """Ask for what a model takes, and have its samples made."""
    name, _, version = (model or _only(admin)).partition("/")
    described = admin.metadata(name, version)
    stream = Stream(made(bodies.inputs(described)).stream)
    samples = [stream[at] for at in spread(len(stream), _SAMPLES * max(1, batch))]
    platform = str(described.get("platform", ""))
    return CalledModel(
        name, version, platform, max(1, batch), tuple(bodies.stacked(samples, batch))
    )


def _only(admin: Admin) -> str:
    names = admin.models()
    if len(names) != 1:
        listed = ", ".join(names)
        raise BadData(
            f"the server has several models: {listed}" if names else "the server lists no model",
            fix="name one with --model",
        )
    return names[0]


def _written(root: Path, where: ServerUrl, model: CalledModel, token: str) -> tuple[str, ...]:
    """Write a file for every request and return their paths."""
    made = []
    for place, sample in enumerate(model.samples):
        path = root / f"request-{place}"
        if where.protocol == "http":
            path.write_bytes(bodies.over_http(where, model.name, model.version, sample, token))
        else:
            path.write_bytes(bodies.over_grpc(model.name, model.version, sample))
        made.append(str(path))
    return tuple(made)
