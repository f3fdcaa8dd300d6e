"""KServe's InferenceService for a Triton model repository."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ortune.bundle.source import Source
from ortune.core import wording
from ortune.core.errors import BadModel, BadSettings
from ortune.deployment.threads import threads

RUNTIME = "kserve-tritonserver"
_URI = re.compile(r"[a-z][a-z0-9+.-]*://[!-~]+")
_MEMORY = re.compile(r"[1-9]\d{0,15}(k|M|G|T|Ki|Mi|Gi|Ti)?")
_LONGEST = 53
"""Characters of a service's name: KServe adds words of its own to it, and 63 are allowed."""


def demand(storage: str, memory: str) -> None:
    """Check what a person says of the cluster.

    Raises:
        BadSettings: The storage is no URI, or the memory no quantity of Kubernetes'.
    """
    if _URI.fullmatch(storage) is None:
        raise BadSettings(
            f"'{storage}' is no storage URI",
            fix="give one such as pvc://models or s3://bucket/path",
        )
    if memory and _MEMORY.fullmatch(memory) is None:
        raise BadSettings(f"'{memory}' is no amount of memory", fix="give one such as 2Gi")


def service(
    source: Source, release: str, instances: int, storage: str, memory: str
) -> dict[str, Any]:
    """Return the service; its CPUs are those that the tuned threads of all instances need."""
    needed: dict[str, Any] = {"cpu": str(threads(source) * instances * len(source.models))}
    if memory:
        needed["memory"] = memory
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name(source.name)},
        "spec": {
            "predictor": {
                "model": {
                    "modelFormat": {"name": "onnx"},
                    "protocolVersion": "v2",
                    "runtime": RUNTIME,
                    "runtimeVersion": f"{release}-py3",
                    "storageUri": storage,
                    "resources": {"requests": needed, "limits": dict(needed)},
                }
            }
        },
    }


def name(label: str) -> str:
    """Return a word as Kubernetes takes it for a name: lower case, digits, ``-``."""
    text = label.lower().replace("_", "-").strip("-")
    return (text if text[:1].isalpha() else f"m-{text}")[:_LONGEST].strip("-")


def demand_whole(read: Mapping[str, Any], source: Source, instances: int) -> None:
    """Refuse a service that would not run the package as it was tuned.

    Raises:
        BadModel: It gives the server fewer CPUs than the plan has threads, or is incomplete.
    """
    try:
        model = read["spec"]["predictor"]["model"]
        cpus = int(model["resources"]["limits"]["cpu"])
        whole = model["runtime"] == RUNTIME and model["protocolVersion"] == "v2"
    except (KeyError, TypeError, ValueError) as error:
        raise BadModel(
            f"the InferenceService is incomplete: {error!r}", fix="pack again"
        ) from None
    if not whole or cpus < threads(source) * instances * len(source.models):
        given, tuned = wording.count(cpus, "CPU"), wording.count(threads(source), "thread")
        raise BadModel(
            f"the InferenceService gives {given} on {model['runtime']}, and the plan was tuned "
            f"with {tuned}",
            fix="pack again",
        )
