"""The settings that a bundle carries: whether they are allowed, and with how many threads."""

from __future__ import annotations

from pathlib import Path

from ortune.core import wording
from ortune.core.backend import Backend
from ortune.core.errors import BadModel, BadSettings, OrtuneError, gist
from ortune.core.hardware.cpus import effective_cpus
from ortune.core.plugins import codec, stored
from ortune.engine import consent
from ortune.engine.manifest import Manifest, PackedPlan


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
