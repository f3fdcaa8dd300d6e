"""Which backends the environments of this machine offer, asked of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field

from ortune.core.backend import Backend
from ortune.core.capabilities import HERE, Capabilities, mixed, runtimes
from ortune.core.errors import BackendMissing, BadSettings, OrtuneError
from ortune.core.plugins.spelling import parse
from ortune.measurement.capabilities import capabilities, demand
from ortune.measurement.environment import packages
from ortune.measurement.environments.check import backends
from ortune.measurement.environments.installed import Environment, listed

_AT_ONCE = 4
"""Processes that ask at the same time."""


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
