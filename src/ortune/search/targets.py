"""Where a search looks: ``--on`` read, with the environments that backends run in."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.backends.torch import Torch
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse_placed
from ortune.measurement.environments.check import demanded, further
from ortune.measurement.process import capabilities
from ortune.search.recipe.space import Target


def read_targets(on: str) -> list[Target]:
    """Read ``--on``: backends by comma, or ``auto`` for all that run on this machine.

    ``openvino in vino`` runs in an environment of `ortune env list`. ``auto`` takes what runs in
    this Python's own, and then what an environment alone offers.

    Raises:
        BackendMissing: One of them cannot run where it was asked for.
        BadSettings: One of them does not run the model file, has an unknown setting, or is asked
            for in two places; there is no such environment.
    """
    if on.strip() != "auto":
        found = parse_placed(Backend, on)
        if own := next((backend for backend, *_ in found if isinstance(backend, Torch)), None):
            raise BadSettings(
                f"{own} runs a module of its own: no recipe for the file changes it",
                fix="give it by --baseline, or compare by `ortune bench --on`",
            )
        placed = [(backend.name(), place) for backend, _, place in found]
        places = dict(placed)
        if two := [name for name, place in placed if places[name] != place]:
            raise BadSettings(
                f"{two[0]} is asked for in two places",
                fix="search in one; `ortune bench --environment here,NAME` times both",
            )
        return [
            Target(backend, demanded(backend, place), given, environment=place)
            for backend, given, place in found
        ]
    every = [catalog.load(Backend, name) for name in catalog.names(Backend)]
    made = [cls() for cls in every if cls.automatic]
    offered = [(backend, capabilities(backend)) for backend in made]
    here = [Target(backend, found) for backend, found in offered if found.missing is None]
    others = further([target.backend for target in here])
    return [*here, *(Target(one, found, environment=place) for one, place, found in others)]


def spelled_on(on: str, targets: Sequence[Target]) -> str:
    """Return ``--on`` as a job holds it: with the environments that ``auto`` found."""
    if on != "auto":
        return on
    found = [f"{t.backend.name()} in {t.environment}" for t in targets if t.environment != HERE]
    return ",".join([on, *found])
