"""OpenVINO's own format and properties, for every target whose runtime is OpenVINO."""

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from ortune.backends.openvino import Openvino
from ortune.bundle.target import Replay, Source
from ortune.core.capabilities import HERE
from ortune.core.errors import BadModel
from ortune.measurement.process import optimize_in_worker, translate_failures
from ortune.targets.common.replay import ANOTHER, count_threads, replay_in_workers


def find_missing() -> str | None:
    """Return what must be installed to write OpenVINO's own format; None if it is there."""
    return None if importlib.util.find_spec("openvino") else "pip install openvino"


def explain_openvino_refusal(source: Source) -> str:
    """Return why OpenVINO cannot run a plan as it was measured; empty when it can."""
    if not isinstance(source.backend, Openvino):
        return f"it was measured on '{source.backend.name()}', not on OpenVINO"
    if source.backend.device != "cpu":
        return f"it was measured on OpenVINO's device {source.backend.device}, not on its CPU"
    return ""


def read_openvino_backend(source: Source) -> Openvino:
    """Return the settings of an OpenVINO plan, with its threads as a number."""
    backend = source.backend
    assert isinstance(backend, Openvino)
    return replace(backend, threads=count_threads(source))


def write_models(source: Source, files: Mapping[str, Path], environment: str = HERE) -> None:
    """Write tuned models and their ``.bin`` in a worker; BadModel where one does not convert."""
    for name, out in files.items():
        with translate_failures("OpenVINO does not convert the model", ANOTHER):
            optimize_in_worker(source.models[name], Openvino(threads=1), out, environment)


def replay_models(
    source: Source,
    files: Mapping[str, Path],
    properties: Mapping[str, str],
    environment: str = HERE,
) -> Replay:
    """Open the written files with the package's properties; BadModel where one does not run."""
    backend = read_openvino_backend(source)
    if properties != (expected := backend.build_properties()):
        raise BadModel(
            f"the package says {dict(properties)}, and the plan was tuned as {expected}",
            fix="pack again",
        )
    release = version("openvino") if environment == HERE else environment.partition("-")[2]
    return replay_in_workers(
        source, files, backend, f"openvino {release}", environment=environment
    )
