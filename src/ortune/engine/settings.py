"""How models are opened and served: what a caller asks for, what a bundle carries."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings, OrtuneError, gist
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.hardware.instances import InstanceGroup, read_device, read_instances, total
from ortune.core.plugins import codec, stored
from ortune.engine import archive, consent
from ortune.engine.instances import Serving
from ortune.engine.manifest import SERVING, Manifest, PackedPlan


def serving(
    instances: int | str = 0,
    device: str | None = None,
    max_batch: int = 0,
    max_delay_us: int = 0,
    preferred: Sequence[int] = (),
    max_queue: int = 0,
    packed: Serving | None = None,
) -> Serving:
    """Read what a caller asks for.

    Args:
        instances: A number, or text such as ``2``, ``1@cpu`` or ``2@gpu0,2@gpu1``.
        device: Of groups that name none, such as ``gpu0``.
        packed: What holds in the place of zeros and of nothing; the defaults without it.

    Raises:
        BadSettings: A number is not one, there are more instances than CPUs, or no device is
            called so.
    """
    for name, values, least, most in (
        ("max_batch", (max_batch,), 0, 1 << 20),
        ("max_delay_us", (max_delay_us,), 0, 10_000_000),
        ("preferred", preferred, 1, max_batch or 1 << 20),
        ("max_queue", (max_queue,), 0, 1 << 20),
    ):
        for one in values:
            if not isinstance(one, int) or not least <= one <= most:
                raise BadSettings(f"{name}={one!r} is not possible", fix=f"give {least} to {most}")
    groups = _groups(instances, device or "")
    names = tuple(one.device for one in groups for _ in range(one.count))
    asked: dict[str, Any] = {
        "instances": total(groups),
        "devices": names if any(names) else (),
        "max_batch": max_batch,
        "max_delay_us": max_delay_us,
        "preferred": tuple(preferred),
        "max_queue": max_queue,
    }
    made = replace(packed or Serving(), **{name: one for name, one in asked.items() if one})
    if device and not groups:
        return replace(made, devices=(read_device(device).device,) * made.instances)
    return made


def _groups(instances: int | str, device: str) -> Sequence[InstanceGroup]:
    """Return the instances that a caller asks for by device; none where nothing is said.

    Raises:
        BadSettings: They cannot be read, or are more on the CPU than there are CPUs.
    """
    if instances == 0:
        return ()
    groups = read_instances(instances, device)
    count = total([one for one in groups if one.kind in ("", "cpu")])
    if count > (cpus := effective_cpus()):
        raise BadSettings(
            f"{count} instances need a CPU each, and {wording.count(cpus, 'CPU')} can be used",
            fix=f"give instances={cpus} or fewer",
        )
    return groups


def stored_backend(
    folder: Path, manifest: Manifest, plan: PackedPlan
) -> tuple[Backend | None, str]:
    """Return a plan's backend, or None and what keeps it from running.

    Raises:
        BadModel: Its settings are none that a bundle may make, or name code that its manifest
            does not.
    """
    try:
        data = stored.loads((folder / plan.settings).read_bytes())
    except ValueError as error:
        return None, reason_of(error)
    demand_settings(data, plan.settings)
    try:
        backend = codec.decode(Backend, data)
    except OrtuneError as error:
        return None, reason_of(error)
    backend = consent.placed(backend, plan, manifest, folder)
    try:
        missing = backend.missing()
    except OrtuneError as error:
        return None, reason_of(error)
    return (None, f"fix: {missing}") if missing else (backend, "")


def packed_serving(name: str, file: zipfile.ZipFile, manifest: Manifest) -> Serving:
    """Return how a bundle wants to be served, with no more instances than there are CPUs.

    The defaults where it does not say.

    Args:
        name: Of the bundle, for errors.

    Raises:
        BadModel: That was changed, or is out of the bounds that a bundle has.
    """
    if SERVING not in manifest.members:
        return Serving()
    archive.take(file, manifest, SERVING, None)
    where = f"{name}: '{SERVING}'"
    try:
        data = stored.loads(file.read(SERVING))
        if not isinstance(data, dict):
            raise ValueError("it is no mapping")
        stored.demand_fields(data, Serving, where)
    except ValueError as error:
        raise BadModel(f"{where} cannot be read: {error}", fix=stored.DISTRUST) from error
    except BadSettings as error:
        raise BadModel(error.what, fix=error.fix) from None
    found: Serving = codec.decode(Serving, data)
    return replace(found, instances=min(found.instances, effective_cpus()))


def demand_settings(data: object, member: str) -> None:
    """Refuse stored settings that are no backend, or set what a file from elsewhere may not.

    Raises:
        BadModel: They are so.
    """
    kind = data.get("is", "") if isinstance(data, dict) else ""
    if not str(kind).startswith("backends/"):
        what = (
            f"{member} holds '{kind}' where a backend belongs" if kind else f"{member} holds none"
        )
        raise BadModel(what, fix=stored.DISTRUST)
    try:
        stored.demand(data, member)
    except BadSettings as error:
        raise BadModel(error.what, fix=error.fix) from None


def at_hand(backend: Backend) -> tuple[Backend, str]:
    """Return the settings with no more threads than there are CPUs, and what to say of it."""
    cpus = effective_cpus()
    fit, most = stored.lowered(backend, cpus)
    if not most:
        return fit, ""
    return fit, (
        f"asks for {wording.count(most, 'thread')}, and {wording.count(cpus, 'CPU')} "
        f"can be used here: it runs with {cpus}"
    )


def reason_of(error: Exception) -> str:
    """Say in a clause why settings or a session are not to be had."""
    if isinstance(error, OrtuneError):
        return f"{error.what}; fix: {error.fix}"
    return f"{type(error).__name__}: {gist(error)}"
