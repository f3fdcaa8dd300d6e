"""Serve models, in this process or in several: the verb."""

from contextlib import ExitStack
from importlib.util import find_spec

from ortune.core.cluster import is_ray
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.fields import Option
from ortune.core.request import make_verb
from ortune.serving.server.settings import Listening, Ready, Serve

NEEDED = {
    "uvicorn": "uvicorn",
    "httptools": "httptools",
    "grpc": "grpcio",
    "google.protobuf": "protobuf",
    "orjson": "orjson",
}
"""Module -> the package that brings it."""

_PROCESSES = Option(per_cpu=1)
"""Bounds of `--processes` on this machine."""


def run(request: Serve) -> None:
    """Serve until told to end; what there is to say goes to stderr."""
    carry_out(request, None)


def carry_out(request: Serve, ready: Ready | None) -> int:
    """Serve until told to end; return how many got no answer in time, or processes with such.

    `ready` is told when requests are taken; the log is without it. Raises OrtuneError: a package
    of extra ``serve``, a port or a model is not to be had; KeyboardInterrupt: it was told to end
    twice.
    """
    missing = []
    for name, package in NEEDED.items():
        try:
            module_spec = find_spec(name)
        except ModuleNotFoundError:  # the package around it
            module_spec = None
        if module_spec is None:
            missing.append(package)
    if missing:
        raise OrtuneError(
            f"serving needs {', '.join(missing)}", fix=f"pip install {' '.join(missing)}"
        )
    several = (request.processes or 1) > 1
    on_ray = is_ray(request.executor) and "#" not in request.executor
    if not on_ray:
        if request.executor != "local":
            raise BadSettings(
                f"there is no executor '{request.executor}' to serve on",
                fix="write local, ray or ray://HOST:PORT",
            )
        _PROCESSES.check("--processes", request.processes or 1)
    if request.explicit and several:
        raise BadSettings(
            "--explicit with --processes: what a client loads would be in one process alone",
            fix="leave one of both out; --watch loads changed files in all of them",
        )
    from ortune.serving.server.listeners import reserve_listeners
    from ortune.serving.server.logs import make_spans, open_journal

    with ExitStack() as stack:
        observer = None if several or on_ray else make_spans(request.trace)
        journal = stack.enter_context(open_journal(request, observer))

        def log(listening: Listening) -> None:
            journal.log_event("info", str(listening))

        if on_ray:
            from ortune.serving.server.deployment import serve_on_ray

            return serve_on_ray(request, journal, ready or log)
        listeners = reserve_listeners(
            request, lambda text: journal.log_event("warning", text), stack
        )
        if several:
            from ortune.serving.server.processes import serve_in_processes

            return serve_in_processes(request, listeners, journal, ready or log)
        from ortune.serving.server.run import serve_here

        return serve_here(request, listeners, journal, ready or log)


serve = make_verb(Serve, run)
