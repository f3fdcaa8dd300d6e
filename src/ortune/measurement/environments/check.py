"""Does an environment work? A small model runs in it, on all that it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from ortune.core.backend import Backend
from ortune.core.errors import OrtuneError
from ortune.core.plugins.spelling import parse
from ortune.data import stream
from ortune.measurement.capabilities import demand
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
    """

    environment: Environment
    versions: Mapping[str, str]
    problem: str = ""
    fix: str = ""


def check(name: str) -> CheckedEnvironment:
    """Run a small model in an environment, on every backend that it is for.

    Raises:
        BadSettings: There is no such environment.
    """
    interpreter(name)
    found = read(name)
    versions: Mapping[str, str] = {}
    again = f"`ortune env remove {name}`, then add it again"
    with TemporaryDirectory(prefix="ortune-") as folder:
        for backend in release(found.release).family.backends if found.release else ("cpu",):
            try:
                versions = _run(parse(Backend, f"{backend}(threads=1)"), name, Path(folder))
            except WorkerFailed as error:
                problem = f"{backend}: {error.failure.reason}"
                return CheckedEnvironment(found, versions, problem, again)
            except OrtuneError as error:
                problem = f"{error.what} ({error.fix})"
                return CheckedEnvironment(found, versions, problem, again)
    return CheckedEnvironment(found, versions)


def _run(backend: Backend, environment: str, root: Path) -> Mapping[str, str]:
    offered = demand(backend, environment)
    model, feeds = root / "check.onnx", root / "check.stream"
    onnx.save(onnx.parser.parse_model(_MODEL), model)
    stream.write(feeds, [{"x": _X}])
    job = lone(model, backend, feeds, root, "check", environment=environment)
    answer = outputs(job, [0], root / f"{backend.name()}.stream")[0]["y"]
    if not np.array_equal(answer, _Y):
        raise OrtuneError(
            f"{backend.name()} computes {answer.tolist()} in place of {_Y.tolist()}",
            fix=f"do not use environment '{environment}'",
        )
    return offered.versions
