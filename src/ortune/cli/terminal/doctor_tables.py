"""What doctor shows of environments and GPUs: rows, texts, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ortune.cli.terminal.figures import size
from ortune.core.capabilities import HERE

if TYPE_CHECKING:
    from ortune.core.hardware.gpu import Gpu
    from ortune.measurement.environments.drivers import GpuProblem
    from ortune.measurement.environments.offered import OfferedThere


def state(found: str, unverified: str) -> str:
    """Say whether a backend runs, and that nobody saw it run on its device."""
    return f"{found}, unverified" if unverified else found


def rows(environments: Sequence[OfferedThere]) -> list[tuple[str, str, str, str]]:
    """Return a row for every backend that an environment is for."""
    from ortune.core.backend import Backend
    from ortune.core.plugins.spelling import parse

    found = []
    for one in environments:
        name = one.environment.name
        if one.problem:
            found.append((name, "-", "not loadable", one.problem))
        for spelled, told in one.offers.items():
            said = state(told.state, parse(Backend, spelled).unverified)
            found.append((name, spelled, said, told.missing or one.environment.release))
    return found


def gpu_text(boards: Sequence[Gpu], driver: Mapping[str, str]) -> str:
    """Say which GPUs the driver sees, and the versions that matter for them."""
    names = [f"{one.name} ({size(one.memory)})" if one.memory else one.name for one in boards]
    versions = [f"{name} {version}" for name, version in driver.items()]
    return ", ".join([*(names or ["none that an NVIDIA driver tells of"]), *versions])


def problems(
    environments: Sequence[OfferedThere], devices: Sequence[GpuProblem]
) -> list[dict[str, str]]:
    """Return what keeps environments and GPUs from being used, each with its fix."""
    found = [
        {"what": f"environment {one.environment.name}: {one.problem}", "fix": one.fix}
        for one in environments
        if one.problem
    ]
    for gpu in devices:
        where = "" if gpu.environment == HERE else f"environment {gpu.environment}: "
        found.append({"what": f"{where}{gpu.what}", "fix": gpu.fix})
    return found
