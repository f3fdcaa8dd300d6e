"""OpenVINO's own format and properties, for every target whose runtime is OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ortune.backends.openvino import Openvino
from ortune.bundle.source import Source
from ortune.bundle.target import Replay
from ortune.core.capabilities import HERE
from ortune.core.errors import BadModel
from ortune.deployment.replay import by_worker
from ortune.deployment.threads import threads
from ortune.measurement.job import WorkerJob
from ortune.measurement.process import WorkerFailed, ask_once

_ON = {"YES": "on", "NO": "off"}
_CORES = {"PCORE_ONLY": "performance", "ECORE_ONLY": "efficient"}
_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "INFERENCE_NUM_THREADS": ("threads", int),
    "INFERENCE_PRECISION_HINT": ("precision", str),
    "PERFORMANCE_HINT": ("hint", str.lower),
    "NUM_STREAMS": ("streams", int),
    "ENABLE_CPU_PINNING": ("pinning", _ON.__getitem__),
    "ENABLE_HYPER_THREADING": ("hyper_threading", _ON.__getitem__),
    "SCHEDULING_CORE_TYPE": ("cores", _CORES.__getitem__),
    "CPU_DENORMALS_OPTIMIZATION": ("flush_denormals", "YES".__eq__),
}
"""Property -> field of the backend, and how its text is read."""


def refusal(source: Source) -> str:
    """Return why OpenVINO cannot run a plan as it was measured; empty when it can."""
    if not isinstance(source.backend, Openvino):
        return f"it was measured on '{source.backend.name()}', not on OpenVINO"
    if source.backend.device != "cpu":
        return f"it was measured on OpenVINO's device {source.backend.device}, not on its CPU"
    return ""


def properties(source: Source) -> dict[str, str]:
    """Return the tuned properties of an OpenVINO plan, threads as they were measured."""
    backend = source.backend
    assert isinstance(backend, Openvino)
    return replace(backend, threads=threads(source)).properties()


def configured(properties: Mapping[str, str]) -> Openvino:
    """Return the settings that written properties stand for.

    Raises:
        BadModel: A value is none that was written.
    """
    try:
        known = {
            _FIELDS[key][0]: _FIELDS[key][1](value)
            for key, value in properties.items()
            if key in _FIELDS
        }
    except (ValueError, KeyError) as error:
        raise BadModel(f"the package's properties are wrong: {error}", fix="pack again") from None
    free = tuple(f"{key}={value}" for key, value in properties.items() if key not in _FIELDS)
    return Openvino(**known, config=free)


def demand_tuned(source: Source, said: Openvino) -> None:
    """Refuse settings other than those that were tuned.

    Raises:
        BadModel: They are others.
    """
    wanted = configured(properties(source))
    if said != wanted:
        raise BadModel(
            f"the package says {said}, and the plan was tuned as {wanted}", fix="pack again"
        )


def write(source: Source, files: Mapping[str, Path], environment: str = HERE) -> None:
    """Write every tuned model in OpenVINO's own format; a worker does it.

    Args:
        source: A plan for OpenVINO.
        files: Model name -> ``.xml`` to write; its ``.bin`` goes beside it.
        environment: Whose OpenVINO writes.

    Raises:
        BadModel: It does not convert a model.
    """
    backend = Openvino(threads=1)
    for name, out in files.items():
        with TemporaryDirectory(prefix="ortune-", ignore_cleanup_errors=True) as folder:
            root = Path(folder).resolve()
            models = {"": source.models[name].resolve()}
            job = WorkerJob(models, backend, {}, root, environment=environment)
            try:
                ask_once(job, ("optimize", {"out": str(out.resolve())}))
            except WorkerFailed as error:
                raise BadModel(
                    f"OpenVINO does not convert the model: {error.failure.reason}",
                    fix=error.failure.fix or "pack another trial (--trial KEY)",
                ) from None


def replay(
    source: Source, files: Mapping[str, Path], backend: Openvino, environment: str = HERE
) -> Replay:
    """Open the written files again with the settings of the package."""
    by = f"openvino {release(environment)}"
    return by_worker(source, files, backend, by, environment=environment)


def release(environment: str) -> str:
    """Return the version of the OpenVINO in an environment."""
    return version("openvino") if environment == HERE else environment.partition("-")[2]
