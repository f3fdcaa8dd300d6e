"""What environments offer: which backends run in each, and what a GPU lacks there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from ortune.core.backend import Backend
from ortune.core.capabilities import HERE, Capabilities, State, mixed, runtimes
from ortune.core.errors import BackendMissing, BadSettings, OrtuneError
from ortune.core.hardware.gpu import Gpu
from ortune.core.plugins.spelling import parse
from ortune.data import stream
from ortune.measurement.environment import interpreter, packages
from ortune.measurement.environments.installed import Environment, listed, read
from ortune.measurement.environments.releases import release
from ortune.measurement.process import WorkerFailed, capabilities, demand, lone, outputs

_MODEL = """<ir_version: 8, opset_import: ["": 13]>
check (float[1,4] x) => (float[1,4] y) { a = Add(x, x) y = Relu(a) }
"""
_X = np.array([[-5, 0, 1, 2]], np.float32)
_Y = np.array([[0, 0, 2, 4]], np.float32)
_AT_ONCE = 4
"""Processes that ask at the same time."""
OLDEST: Mapping[str, int] = {"13": 580, "12": 525}
"""CUDA -> the first branch of the driver that runs it (NVIDIA, CUDA compatibility)."""
_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?==(\d+)\.")


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


@dataclass(frozen=True)
class OfferedThere:
    """What an environment offers.

    Attributes:
        offers: Backend, spelled -> what the environment offers it, for those that it is for.
        problem: Why it cannot be used at all; empty where it can.
        fix: What to do about that.
    """

    environment: Environment
    offers: Mapping[str, Capabilities] = field(default_factory=dict)
    problem: str = ""
    fix: str = ""


def offered() -> tuple[OfferedThere, ...]:
    """Ask every environment of this machine, by name, for the backends that it is for."""
    every = listed()
    if not every:
        return ()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = [pool.submit(copy_context().run, _ask, one) for one in every]
        return tuple(one.result() for one in asked)


def further(known: Sequence[Backend]) -> tuple[tuple[Backend, str, Capabilities], ...]:
    """Return backends of ``--on auto`` that only an environment can run, each once.

    The environment that was asked first, by name, is taken.

    Args:
        known: Backends that run in this Python's own environment.
    """
    found: dict[str, tuple[Backend, str, Capabilities]] = {}
    here = {one.name() for one in known}
    for place in offered():
        for spelled, told in place.offers.items():
            backend = parse(Backend, spelled)
            if told.missing is None and backend.automatic and backend.name() not in here:
                one = (backend, place.environment.name, told)
                found.setdefault(backend.name(), one)
    return tuple(found.values())


def demanded(backend: Backend, environment: str = HERE) -> Capabilities:
    """Return what an environment offers a backend that can run there.

    Raises:
        BackendMissing: It cannot; where another environment is for it, that is the fix.
        BadSettings: As `capabilities`.
    """
    try:
        return demand(backend, environment)
    except BackendMissing as error:
        for one in listed() if environment == HERE else ():
            if backend.name() in (spelled.partition("(")[0] for spelled in _meant(one)):
                fix = f'--on "{backend.name()} in {one.name}", or {error.fix}'
                raise BackendMissing(error.what, fix=fix) from None
        raise


def _meant(one: Environment) -> tuple[str, ...]:
    """Return the backends that an environment is for; none where its record says nothing."""
    try:
        return backends(one)
    except BadSettings:
        return ()


def _ask(one: Environment) -> OfferedThere:
    home = packages(one.folder)
    if problem := mixed(runtimes([str(home)])) if home else None:
        again = f"`ortune env remove {one.name}`, then add it again"
        return OfferedThere(one, problem=problem[0], fix=again)
    offers: dict[str, Capabilities] = {}
    try:
        for spelled in backends(one):
            offers[spelled] = capabilities(parse(Backend, spelled), one.name)
    except OrtuneError as error:
        return OfferedThere(one, offers, error.what, error.fix)
    return OfferedThere(one, offers)


@dataclass(frozen=True)
class GpuProblem:
    """What keeps a GPU from being used, and the line that mends it.

    Attributes:
        environment: Where; this Python's own is ``here``.
    """

    environment: str
    what: str
    fix: str


def cuda_version(distributions: Sequence[str]) -> str:
    """Return the major version of the CUDA that pinned distributions bring; empty without one."""
    return next((found[1] for one in distributions if (found := _RUNTIME.match(one))), "")


def gpu_problems(
    boards: Sequence[Gpu],
    driver: Mapping[str, str],
    installed: Sequence[Environment],
    wheels: Mapping[str, str],
) -> tuple[GpuProblem, ...]:
    """Return what is missing between a GPU and the environments of this machine.

    Args:
        driver: As `core.hardware.gpu.driver`.
        installed: All environments of this machine.
        wheels: Distributions of onnxruntime here, each to its version.
    """
    wanting = {one.name: cuda_version(one.distributions) for one in installed}
    wanting = {name: major for name, major in wanting.items() if major}
    if not boards:
        what = "no NVIDIA driver tells of a GPU: CUDA and TensorRT have no device"
        fix = "install NVIDIA's driver; `nvidia-smi` lists the GPUs that it sees"
        return tuple(GpuProblem(name, what, fix) for name in wanting)
    if not wanting and "onnxruntime-gpu" not in wheels:
        what = f"nothing here computes on the {boards[0].name}"
        return (GpuProblem(HERE, what, f"ortune env add {_fitting(driver)}"),)
    version = driver.get("driver", "")
    return tuple(
        GpuProblem(
            name,
            f"driver {version} is too old for CUDA {major}, which wants {OLDEST[major]} or later",
            f"update the driver, or `ortune env add {_fitting(driver)}`",
        )
        for name, major in wanting.items()
        if _branch(version) < OLDEST.get(major, 0)
    )


def _fitting(driver: Mapping[str, str]) -> str:
    """Return the release of the table for a driver."""
    return "cuda" if _branch(driver.get("driver", "")) >= OLDEST["13"] else "cuda==1.26.0"


def _branch(version: str) -> int:
    """Return the branch of a driver: its first number."""
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0
