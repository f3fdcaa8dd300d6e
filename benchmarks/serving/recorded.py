"""Where results of serving go, and what is said of the machine beside them."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.peers.environments import CACHE
from benchmarks.result_files import result_file, write_results
from ortune.measurement.machine import noise
from ortune.measurement.machine.machine import describe_machine, package_versions

_SERVING = ("uvicorn", "httptools", "uvloop", "grpcio", "protobuf", "orjson", "tritonclient")
_PEERS = {"kserve": "kserve", "mlserver": "mlserver", "litserve": "litserve", "ray": "ray"}


def about() -> dict[str, Any]:
    """Return the machine, its load and the versions: ours, and the peers' where they are there."""
    found = dict(package_versions())
    for name in _SERVING:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    for peer, package in _PEERS.items():
        if known := _installed(peer, package):
            found[package] = known
    said = {"machine": describe_machine(), "versions": found, "noise": noise.read_current_state()}
    return said | {"load average": os.getloadavg()}


def write(name: str, found: dict[str, Any]) -> None:
    """Write results as JSON, and print where."""
    path = result_file(name)
    write_results(path, found)
    print(f"written: {path.name}")


def _installed(peer: str, package: str) -> str:
    """Return the version of a package in a peer's environment, from the name of its folder."""
    folders = (CACHE / peer / "env").glob(f"lib/python*/site-packages/{package}-*.dist-info")
    return next((path.name.split("-")[1].removesuffix(".dist") for path in folders), "")
