"""Does an environment work? A small model runs in it, on all that it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from ortune.core.backend import Backend
from ortune.core.capabilities import State
from ortune.core.errors import OrtuneError
from ortune.core.plugins.spelling import parse
from ortune.data import stream
from ortune.measurement.capabilities import capabilities
from ortune.measurement.environment import interpreter
from ortune.measurement.environments.installed import Environment, read
from ortune.measurement.environments.releases import release
from ortune.measurement.outputs import outputs
from ortune.measurement.process import WorkerFailed, lone

_MODEL = """<ir_version: 8, opset_import: ["": 13]>
check (float[1,4] x) => (float[1,4] y) { a = Add(x, x) y = Relu(a) }
"""
_X = np.array([[-5, 0, 1, 2]], np.float32)
_Y = np.array([[0, 0, 2, 4]], np.float32)


@dataclass(frozen=True)
class CheckedEnvironment:
    """What a check found.

    Attributes:
        versions: Distribution -> version, as a worker in it sees them.
        problem: What does not work; empty where all does.
        fix: What to do about it.
        states: Backend that it is for -> whether it runs there, as far as the check came.
        driver: Of the GPU and its libraries, as the worker found them.
    """

    environment: Environment
    versions: Mapping[str, str]
    problem: str = ""
    fix: str = ""
    states: Mapping[str, State] | None = None
    driver: Mapping[str, str] | None = None


def check(name: str) -> CheckedEnvironment:
    """Run a small model in an environment, on every backend that it is for.

    Raises:
        BadSettings: There is no such environment.
    """
    interpreter(name)
    found = read(name)
    versions: Mapping[str, str] = {}
    driver: dict[str, str] = {}
    states: dict[str, State] = {}
    problem, fix = "", ""
    again = f"`ortune env remove {name}`, then add it again"
    with TemporaryDirectory(prefix="ortune-") as folder:
        for spelled in backends(found):
            try:
                backend = parse(Backend, spelled)
                offered = capabilities(backend, name)
                versions, states[spelled] = offered.versions, offered.state
                driver |= offered.driver
                if offered.missing is None:
                    _run(backend, name, Path(folder))
                elif not problem:
                    problem, fix = f"{spelled}: {offered.state}", offered.missing
            except WorkerFailed as error:
                states[spelled] = "not loadable"
                problem, fix = problem or f"{spelled}: {error.failure.reason}", fix or again
            except OrtuneError as error:
                states[spelled] = "not loadable"
                problem, fix = problem or f"{spelled}: {error.what} ({error.fix})", fix or again
    return CheckedEnvironment(found, versions, problem, fix, states, driver)


def backends(found: Environment) -> tuple[str, ...]:
    """Return the backends that an environment is for, spelled; the CPU's where that is unknown."""
    return release(found.release).family.backends if found.release else ("cpu",)


def _run(backend: Backend, environment: str, root: Path) -> None:
    """Compare the answers of a small model with the right ones.

    Raises:
        OrtuneError: They differ.
        WorkerFailed: It does not run.
    """
    model, feeds = root / "check.onnx", root / "check.stream"
    onnx.save(onnx.parser.parse_model(_MODEL), model)
    stream.write(feeds, [{"x": _X}])
    job = lone(model, backend, feeds, root, "check", environment=environment)
    answer = outputs(job, [0], root / f"{backend.name()}.stream")[0]["y"]
    if not np.array_equal(answer, _Y):
        raise OrtuneError(
            f"it computes {answer.tolist()} in place of {_Y.tolist()}",
            fix=f"do not use environment '{environment}'",
        )
