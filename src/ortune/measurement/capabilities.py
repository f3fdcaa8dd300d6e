"""Ask an environment what it offers a backend, once for the life of this process."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from ortune.core.backend import Backend
from ortune.core.capabilities import HERE, Capabilities
from ortune.core.errors import BackendMissing, BadSettings
from ortune.core.plugins import codec
from ortune.measurement.environment import interpreter
from ortune.measurement.job import WorkerJob
from ortune.measurement.process import Worker, WorkerFailed


def capabilities(backend: Backend, environment: str = HERE) -> Capabilities:
    """Return what an environment offers a backend.

    Raises:
        BadSettings: The runtime there does not know a setting, or there is no such environment.
    """
    return _asked(backend, environment, interpreter(environment))


@cache
def _asked(backend: Backend, environment: str, python: tuple[str, ...]) -> Capabilities:
    """Ask it; another interpreter under the same name is another environment."""
    with TemporaryDirectory(prefix="ortune-") as folder:
        job = WorkerJob({}, backend, {}, Path(folder), environment=environment)
        try:
            with Worker(job) as worker:
                answer = worker.ask("capabilities")
        except WorkerFailed as error:
            raise BadSettings(
                error.failure.reason,
                fix=error.failure.fix or f"check the installation of {backend.name()}",
            ) from None
    return codec.decode(Capabilities, answer)


def demand(backend: Backend, environment: str = HERE) -> Capabilities:
    """Return what an environment offers a backend that can run there.

    Raises:
        BackendMissing: It cannot.
        BadSettings: As `capabilities`.
    """
    found = capabilities(backend, environment)
    if found.missing:
        where = HERE if environment == HERE else f"in environment '{environment}'"
        raise BackendMissing(f"backend '{backend.name()}' cannot run {where}", fix=found.missing)
    return found
