"""What environments offer: which backends run in each, and what a GPU lacks there."""

import re
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ortune.core.backend import Backend
from ortune.core.capabilities import HERE, Capabilities, State
from ortune.core.errors import BackendMissing, BadSettings, OrtuneError
from ortune.core.hardware.gpu import Gpu
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.runtime_conflict import find_runtime_conflict, list_runtimes
from ortune.core.temporary_folder import open_temporary_folder
from ortune.data import stream
from ortune.measurement import process
from ortune.measurement.devices import Device, LinkLost, find_lease, open_device
from ortune.measurement.environment import find_interpreter, find_packages
from ortune.measurement.environments.installed import (
    Environment,
    list_environments,
    read_environment,
)
from ortune.measurement.environments.releases import parse_release

_MODEL = """<ir_version: 8, opset_import: ["": 13]>
check (float[1,4] x) => (float[1,4] y) { a = Add(x, x) y = Relu(a) }
"""
_X = np.array([[-5, 0, 1, 2]], np.float32)
_Y = np.array([[0, 0, 2, 4]], np.float32)
_AT_ONCE = 4  # processes that ask at the same time
OLDEST: Mapping[str, int] = {"13": 580, "12": 525}
"""CUDA -> the first branch of the driver that runs it (NVIDIA, CUDA compatibility)."""
_RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?==(\d+)\.")


@dataclass(frozen=True)
class CheckedEnvironment:
    """What a check found.

    Attributes:
        versions: Distribution -> version, as a worker in it sees them.
        problem: What does not work; empty where all does.
        states: Backend that it is for -> whether it runs there, as far as the check came.
        driver: Of the GPU and its libraries, as the worker found them.
    """

    environment: Environment
    versions: Mapping[str, str]
    problem: str = ""
    fix: str = ""
    states: Mapping[str, State] | None = None
    driver: Mapping[str, str] | None = None


@dataclass(frozen=True)
class CheckedDevice:
    """What a device that is reached by ssh offers.

    Attributes:
        readings: Clocks, temperatures, free memory and load, raw.
        offers: Backend -> what it finds there; those that are tried without being asked for.
        problem: Why it is of no use; empty where it is.
    """

    name: str
    host: str
    readings: Mapping[str, Any] = field(default_factory=dict)
    offers: Mapping[str, Capabilities] = field(default_factory=dict)
    problem: str = ""
    fix: str = ""


def check_device(device: Device) -> CheckedDevice:
    """Ask a device what it offers each backend; that it is not reached is an answer."""
    checked = CheckedDevice(device.name, device.host)
    kinds = [catalog.load_plugin(Backend, name) for name in catalog.list_plugins(Backend)]
    try:
        with open_device(device) as environment:
            lease = find_lease(environment)
            readings = lease.hold() if lease else {}
            offers = {
                kind.name(): process.query_capabilities(kind(), environment)
                for kind in kinds
                if kind.automatic
            }
    except LinkLost as error:
        fix = f"try `{shlex.join(device.spell_command(f'{device.python} --version'))}`"
        return replace(checked, problem=str(error), fix=fix)
    except OrtuneError as error:
        return replace(checked, problem=error.what, fix=error.fix)
    checked = replace(checked, readings=readings, offers=offers)
    if all(offer.missing for offer in offers.values()):
        fix = f"on the device: {device.python} -m pip install numpy onnxruntime"
        return replace(checked, problem="no backend runs there", fix=fix)
    return checked


def check_environment(name: str) -> CheckedEnvironment:
    """Run a small model in an environment, on every backend that it is for.

    Raises:
        BadSettings: There is no such environment.
    """
    find_interpreter(name)
    record = read_environment(name)
    versions: Mapping[str, str] = {}
    driver: dict[str, str] = {}
    states: dict[str, State] = {}
    problem, fix = "", ""
    again = f"`ortune doctor env remove {name}`, then add it again"
    with open_temporary_folder() as folder:
        for spelled in list_backends(record):
            try:
                backend = parse_plugin(Backend, spelled)
                offered = process.query_capabilities(backend, name)
                versions, states[spelled] = offered.versions, offered.state
                driver |= offered.driver
                if offered.missing is None:
                    _verify_answers(backend, name, Path(folder))
                elif not problem:
                    problem, fix = f"{spelled}: {offered.state}", offered.missing
            except process.WorkerFailed as error:
                states[spelled] = "not loadable"
                problem, fix = problem or f"{spelled}: {error.failure.reason}", fix or again
            except OrtuneError as error:
                states[spelled] = "not loadable"
                problem, fix = problem or f"{spelled}: {error.what} ({error.fix})", fix or again
    return CheckedEnvironment(record, versions, problem, fix, states, driver)


def list_backends(environment: Environment) -> tuple[str, ...]:
    """Return the backends that an environment is for, spelled; the CPU's where that is unknown."""
    return parse_release(environment.release).family.backends if environment.release else ("cpu",)


def _verify_answers(backend: Backend, environment: str, root: Path) -> None:
    """Compare the answers of a small model with the right ones."""
    model, feeds = root / "check.onnx", root / "check.stream"
    onnx.save(onnx.parser.parse_model(_MODEL), model)
    stream.write_stream(feeds, [{"x": _X}])
    job = process.single_model_job(model, backend, feeds, root, "check", environment=environment)
    answer = process.compute_outputs(job, [0], root / f"{backend.name()}.stream")[0]["y"]
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
    """

    environment: Environment
    offers: Mapping[str, Capabilities] = field(default_factory=dict)
    problem: str = ""
    fix: str = ""


def list_environment_offers() -> tuple[OfferedThere, ...]:
    """Ask every environment of this machine, by name, for the backends that it is for."""
    environments = list_environments()
    if not environments:
        return ()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = [pool.submit(copy_context().run, _query_offers, item) for item in environments]
        return tuple(item.result() for item in futures)


def find_further_backends(
    local_backends: Sequence[Backend],
) -> tuple[tuple[Backend, str, Capabilities], ...]:
    """Return backends of ``--on auto`` that only an environment can run, each once.

    The environment that was asked first, by name, is taken. `local_backends` run in this Python's
    own environment.
    """
    candidates: dict[str, tuple[Backend, str, Capabilities]] = {}
    here = {candidate.name() for candidate in local_backends}
    for place in list_environment_offers():
        for spelled, offer in place.offers.items():
            backend = parse_plugin(Backend, spelled)
            if offer.missing is None and backend.automatic and backend.name() not in here:
                candidate = (backend, place.environment.name, offer)
                candidates.setdefault(backend.name(), candidate)
    return tuple(candidates.values())


def require_backend_with_hint(backend: Backend, environment: str = HERE) -> Capabilities:
    """Return what an environment offers a backend that can run there.

    Raises:
        BackendMissing: It cannot; where another environment is for it, that is the fix.
        BadSettings: As `capabilities`.
    """
    try:
        return process.require_backend(backend, environment)
    except BackendMissing as error:
        for candidate in list_environments() if environment == HERE else ():
            intended: tuple[str, ...] = ()
            with suppress(BadSettings):  # its record says nothing
                intended = list_backends(candidate)
            if backend.name() in (spelled.partition("(")[0] for spelled in intended):
                fix = f'--on "{backend.name()} in {candidate.name}", or {error.fix}'
                raise BackendMissing(error.what, fix=fix) from None
        raise


def _query_offers(environment: Environment) -> OfferedThere:
    home = find_packages(environment.folder)
    if problem := find_runtime_conflict(list_runtimes([str(home)])) if home else None:
        again = f"`ortune doctor env remove {environment.name}`, then add it again"
        return OfferedThere(environment, problem=problem[0], fix=again)
    offers: dict[str, Capabilities] = {}
    try:
        for spelled in list_backends(environment):
            offers[spelled] = process.query_capabilities(
                parse_plugin(Backend, spelled), environment.name
            )
    except OrtuneError as error:
        return OfferedThere(environment, offers, error.what, error.fix)
    return OfferedThere(environment, offers)


@dataclass(frozen=True)
class GpuProblem:
    """What keeps a GPU from being used, and the line that mends it.

    Attributes:
        environment: Where; this Python's own is ``here``.
    """

    environment: str
    problem: str
    fix: str


def cuda_version(distributions: Sequence[str]) -> str:
    """Return the major version of the CUDA that pinned distributions bring; empty without one."""
    return next(
        (match[1] for distribution in distributions if (match := _RUNTIME.match(distribution))), ""
    )


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
    wanting = {entry.name: cuda_version(entry.distributions) for entry in installed}
    wanting = {name: major for name, major in wanting.items() if major}
    version = driver.get("driver", "")
    first = version.partition(".")[0]
    branch = int(first) if first.isdigit() else 0
    add = f"ortune doctor env add {'cuda' if branch >= OLDEST['13'] else 'cuda==1.26.0'}"
    if not boards:
        problem = "no NVIDIA driver reports a GPU: CUDA and TensorRT have no device"
        fix = "install NVIDIA's driver; `nvidia-smi` lists the GPUs that it sees"
        return tuple(GpuProblem(name, problem, fix) for name in wanting)
    if not wanting and "onnxruntime-gpu" not in wheels:
        problem = f"nothing here computes on the {boards[0].name}"
        return (GpuProblem(HERE, problem, add),)
    return tuple(
        GpuProblem(
            name,
            f"driver {version} is too old for CUDA {major}, which wants {OLDEST[major]} or later",
            f"update the driver, or `{add}`",
        )
        for name, major in wanting.items()
        if branch < OLDEST.get(major, 0)
    )
