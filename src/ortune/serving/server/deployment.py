"""A server on Ray Serve: replicas of the same application behind Ray's own proxies.

The proxies read HTTP and gRPC; each replica is a process with the models, the batches and the
checks of `ortune serve`. What the proxies cannot hold is refused before anything is started.
"""

import asyncio
import hashlib
import ipaddress
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from ortune.bundle.engine import archive
from ortune.bundle.engine.instances import load_serving, read_serving
from ortune.core import regular_file
from ortune.core.backend import Backend
from ortune.core.cluster import list_live_nodes, list_node_cpus, open_cluster
from ortune.core.errors import BadSettings, OrtuneError, summarize_error
from ortune.core.plugins import spelling
from ortune.core.wording import format_count
from ortune.graph.io.file import list_model_files
from ortune.serving.protocol import messages
from ortune.serving.server.grpc.server import count_calls
from ortune.serving.server.listeners import (
    Access,
    Address,
    read_tokens,
    reserve_port,
    resolve_host,
)
from ortune.serving.server.logs import Journal
from ortune.serving.server.replica import FILES, NAME, Replica, ReplicaJob
from ortune.serving.server.repository.sources import MODEL_SUFFIXES, ModelSource, find_sources
from ortune.serving.server.run import make_limits
from ortune.serving.server.settings import Listening, Ready, Serve
from ortune.serving.server.signals import handle_signals

_CONTROLLER = "SERVE_CONTROLLER_ACTOR"
"""The actor that every running Ray Serve has, in namespace `_SERVE`."""
_SERVE = "serve"
_KEY = "-/signer.pem"
"""Where the key of `--require-signature` lies beside the models: no model has such a name."""
_START_S = 600.0
"""Seconds for all replicas to be placed and to load their models."""
_POLL_S = 0.2
_PATIENCE = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}
"""Ray's own 5 s end a proxy that begins on a busy machine."""
_LAST_S = 2.0
"""Seconds beyond `--drain` in which a replica ends."""


def refuse_unproxied_options(request: Serve) -> None:
    """Raise BadSettings for what Ray's proxies, or copies of models elsewhere, cannot hold."""
    for option, is_given, reason, fix in (
        ("--no-http", not request.http, "Ray's proxies always answer HTTP", "leave it out"),
        (
            "--tls-cert",
            request.tls_cert or request.tls_key,
            "Ray's proxies have no TLS for gRPC",
            "put a proxy with the certificate in front, and leave --tls-cert and --tls-key out",
        ),
        (
            "--watch",
            request.watch,
            "the replicas have copies of the files",
            "leave it out, and serve again when a file has changed",
        ),
        (
            "--explicit",
            request.explicit,
            "what a client loads would be in one replica alone",
            "leave it out",
        ),
        (
            "--custom-ops",
            request.custom_ops,
            "a library of this machine is not on the others",
            "pack it into a bundle, and serve that with --allow-custom-ops",
        ),
    ):
        if is_given:
            raise BadSettings(f"{option} with --executor {request.executor}: {reason}", fix=fix)
    with suppress(ValueError):
        if request.grpc and ipaddress.ip_address(request.host).is_loopback:
            raise BadSettings(
                f"--host {request.host} with --executor {request.executor}: Ray's gRPC listens on "
                "all addresses of its machine",
                fix="give --host 0.0.0.0 and --token-file, or --no-grpc",
            )


class ModelFiles:
    """An actor that knows the files that replicas write, and why one could not begin."""

    def __init__(self, references: Mapping[str, Any]) -> None:
        self._references = references
        self._error: OrtuneError | None = None

    def find(self, name: str) -> Any:
        """Return the reference of a file: a node fetches its bytes once."""
        return self._references[name]

    def report(self, error: OrtuneError) -> None:
        """Take note of why a replica could not begin."""
        self._error = error

    def read_error(self) -> OrtuneError | None:
        """Return what was reported last."""
        return self._error


def serve_on_ray(request: Serve, journal: Journal, ready: Ready) -> int:
    """Serve from replicas until told to end; 1 where they ended before their last answers, else 0.

    Raises OrtuneError: the cluster, a port or a model is not to be had, or Ray Serve runs there;
    KeyboardInterrupt: it was told to end twice.
    """

    def warn(text: str) -> None:
        journal.log_event("warning", text)

    output = sys.stdout

    def tell(listening: Listening) -> None:
        with redirect_stdout(output):  # the cluster's block has redirected it
            ready(listening)

    refuse_unproxied_options(request)
    access = read_tokens(request.token_file, warn)
    sources = find_sources(request.names)
    with open_cluster(request.executor) as ray:
        unanswered = asyncio.run(_Driver(ray, request, journal, tell).run(access, sources))
    if unanswered is None:
        raise KeyboardInterrupt
    return unanswered


class _Driver:
    """What starts the replicas, waits, and takes them down."""

    def __init__(self, ray: Any, request: Serve, journal: Journal, ready: Ready) -> None:
        self._ray, self._request = ray, request
        self._journal, self._ready = journal, ready
        self._stop = asyncio.Event()

    async def run(self, access: Access, sources: list[ModelSource]) -> int | None:
        """Return whether requests were left; None where it was told to end twice."""
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # it has logs of its own
        ray = self._ray
        with suppress(ValueError):
            ray.get_actor(_CONTROLLER, namespace=_SERVE)
            raise BadSettings(
                "Ray Serve runs on this cluster already, and its ports are the cluster's",
                fix="end it with `serve shutdown`, or serve all models by one command",
            )
        http, grpc_address = self._reserve_ports(access)
        cpus, gpus = find_needs(self._request, sources)
        cpus, count = divide_cluster(list_node_cpus(), cpus, self._request.processes)
        holder, files = self._put_files(sources)
        try:
            with handle_signals(self._stop.set):
                options: dict[str, Any] = {}
                if grpc_address is not None:
                    options["grpc_options"] = {
                        "port": grpc_address.port,
                        "grpc_servicer_functions": [f"{messages.__name__}.add_services"],
                        "enable_reflection": False,
                    }
                try:
                    serve.start(
                        proxy_location="HeadOnly",
                        http_options={"host": self._request.host, "port": http.port},
                        controller_options={"runtime_env": {"env_vars": _PATIENCE}},
                        **options,
                    )
                except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
                    raise OrtuneError(
                        f"Ray Serve does not start: {summarize_error(error)}",
                        fix="see Ray's own logs, in /tmp/ray/session_latest/logs/serve of its "
                        "head",
                    ) from None
                job = ReplicaJob(relocate_models(self._request, sources), access, files, cpus)
                limits = make_limits(self._request)
                deployment = serve.deployment(
                    serve.ingress()(Replica),
                    name="models",
                    num_replicas=count,
                    max_ongoing_requests=count_calls(limits),
                    max_constructor_retry_count=1,
                    graceful_shutdown_timeout_s=self._request.drain + _LAST_S,
                    graceful_shutdown_wait_loop_s=_POLL_S,
                    ray_actor_options={
                        "num_cpus": job.cpus,
                        "num_gpus": gpus,
                        "runtime_env": dict(ray.get_runtime_context().runtime_env),
                    },
                )
                serve.run_many(
                    [serve.RunTarget(deployment.bind(job), name=NAME)],
                    wait_for_applications_running=False,
                )
                await self._wait_until_running(serve, holder)
                names = await serve.get_app_handle(NAME).list_names.remote()
                text = f"{format_count(count, 'replica')} of {format_count(cpus, 'CPU')}"
                self._journal.log_event("info", text)
                address = None if grpc_address is None else str(grpc_address)
                self._ready(Listening(f"http://{http}", address, names, []))
                await self._stop.wait()
                return await self._drain(serve)
        except asyncio.CancelledError:
            for actor in ray.util.list_named_actors(all_namespaces=True):
                if actor["namespace"] == _SERVE and actor["name"].startswith("SERVE_REPLICA"):
                    ray.kill(ray.get_actor(**actor))
            return None
        finally:
            serve.shutdown()
            ray.kill(holder)

    def _reserve_ports(self, access: Access) -> tuple[Address, Address | None]:
        """Return where the proxies will listen, once the head of the cluster has tried it."""
        request, ray = self._request, self._ray
        head = next(n for n in list_live_nodes() if "node:__internal_head__" in n["Resources"])
        number = ipaddress.ip_address(_ask_head(ray, resolve_host, request.host))
        if not number.is_loopback and access.open:
            self._journal.log_event(
                "warning", f"whoever reaches {request.host} may ask: give --token-file"
            )
        host = str(head["NodeManagerAddress"] if number.is_unspecified else number)
        http, grpc_port = _ask_head(
            ray, _try_ports, request.host, request.http_port, request.grpc_port, request.grpc
        )
        return Address(host, http), Address(host, grpc_port) if request.grpc else None

    def _put_files(self, sources: list[ModelSource]) -> tuple[Any, dict[str, str]]:
        """Hand the files to the cluster; return the actor that has them, and their digests."""
        references, digests = {}, {}
        for name, path in list_travelling_files(self._request, sources):
            content = regular_file.read_bytes(path)
            digests[name] = hashlib.sha256(content).hexdigest()
            references[name] = self._ray.put(content)
        actor = self._ray.remote(num_cpus=0)(ModelFiles)
        holder = actor.options(name=FILES, namespace=NAME).remote(references)
        self._ray.get(holder.read_error.remote())  # it runs
        return holder, digests

    async def _wait_until_running(self, serve: Any, holder: Any) -> None:
        until = time.monotonic() + _START_S
        while not self._stop.is_set():
            application = serve.status().applications[NAME]
            if application.status == "RUNNING":
                return
            if application.status == "DEPLOY_FAILED" or time.monotonic() > until:
                if (error := self._ray.get(holder.read_error.remote())) is not None:
                    raise error
                raise OrtuneError(
                    f"the replicas do not start: {application.message or application.status}",
                    fix="see `ray status`, and Ray's logs of their node",
                )
            await asyncio.sleep(_POLL_S)

    async def _drain(self, serve: Any) -> int:
        """Take the replicas down once they have answered; return 1 where time was up before."""
        drain = self._request.drain
        self._journal.log_event("info", f"ending: accepted requests have {drain:g} s")
        began = time.monotonic()
        serve.delete(NAME, _blocking=False)
        while NAME in serve.status().applications:
            await asyncio.sleep(_POLL_S)
        if time.monotonic() - began < drain:
            self._journal.log_event("info", "ended: every accepted request was answered")
            return 0
        self._journal.log_event("error", "ended: requests got no answer in time")
        return 1


def _ask_head(ray: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on the head of the cluster, where the proxies will be."""
    task = ray.remote(num_cpus=0, resources={"node:__internal_head__": 0.001})(function)
    try:
        return ray.get(task.remote(*arguments))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def _try_ports(host: str, http: int, grpc_port: int, with_grpc: bool) -> tuple[int, int]:
    """Return two ports that are free, in the place of 0 any."""
    with ExitStack() as stack:
        http = reserve_port(host, http, "--http-port", stack).port
        if with_grpc:
            grpc_port = reserve_port("::", grpc_port, "--grpc-port", stack).port
    return http, grpc_port


def relocate_models(request: Serve, sources: list[ModelSource]) -> Serve:
    """Return a request whose files lie where a replica will write them."""
    return replace(
        request,
        models=tuple(f"{source.name}={source.name}" for source in sources),
        token_file=None,
        require_signature=_KEY if request.require_signature else None,
        executor="local",
        processes=None,
    )


def list_travelling_files(
    request: Serve, sources: list[ModelSource]
) -> Iterator[tuple[str, Path]]:
    """Yield where a replica writes each file, ``NAME/VERSION/FILE``, and where it lies here.

    Raises BadModel: a plain model cannot be read, or its weights lie outside its folder.
    """
    for source in sources:
        for version, path in source.list_files().items():
            folder = f"{source.name}/{version}"
            suffix = "" if path.name.endswith(MODEL_SUFFIXES) else MODEL_SUFFIXES[-1]
            yield f"{folder}/{path.name}{suffix}", path
            files = {} if archive.is_bundle(path) else list_model_files(path)
            for place, weights in list(files.items())[1:]:
                yield f"{folder}/{PurePosixPath(place)}", weights
    if request.require_signature is not None:
        yield _KEY, Path(request.require_signature)


def find_needs(request: Serve, sources: list[ModelSource]) -> tuple[int, int]:
    """Return the CPUs of a replica, 0 where nothing says how many, and its GPUs.

    The CPUs are the threads that the first plan was measured with, times its instances.
    """
    cpus = gpus = 0
    for source in sources:
        for path in source.list_files().values():
            text, packed = request.on, None
            if archive.is_bundle(path):
                with archive.open_bundle(path) as (file, manifest):
                    packed = load_serving(path.name, file, manifest)
                    text = text or next((plan.backend for plan in manifest.plans), None)
            how = read_serving(request.instances, packed=packed)
            with suppress(OrtuneError):  # its package may be on the nodes alone
                backend: Backend = spelling.parse_plugin(Backend, text or "cpu")
                cpus = max(cpus, (how.threads or backend.threads) * how.instances)
                gpus = max(gpus, int(backend.runs_on == "gpu"))
    return cpus, gpus


def divide_cluster(nodes: list[int], cpus: int, replicas: int | None) -> tuple[int, int]:
    """Return the CPUs of a replica and how many there are; BadSettings if they do not fit.

    `nodes` are CPUs of each. Where `cpus` is 0 a replica takes all of a node, or fewer where there
    are more replicas than nodes. As many as fit without `replicas`.
    """
    nodes = [node for node in nodes if node]
    if not cpus:
        most = min(nodes, default=1)
        least = replicas or len(nodes)
        cpus = next(
            (size for size in range(most, 0, -1) if sum(n // size for n in nodes) >= least), 1
        )
    fitting = sum(node // cpus for node in nodes)
    if fitting < (replicas or 1):
        raise BadSettings(
            f"{format_count(replicas or 1, 'replica')} of {format_count(cpus, 'CPU')} do not fit: "
            f"the nodes have {', '.join(map(str, nodes)) or 'no'} CPUs",
            fix=f"give --processes {fitting}" if fitting else "join nodes with more CPUs",
        )
    return cpus, replicas or fitting
