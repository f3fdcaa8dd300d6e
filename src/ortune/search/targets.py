"""Where a search looks: ``--on`` read, with the environments that backends run in."""

from collections.abc import Sequence

from ortune.backends.torch import Torch
from ortune.core.backend import Backend
from ortune.core.capabilities import HERE
from ortune.core.errors import BadSettings
from ortune.core.plugins import catalog
from ortune.core.plugins.spelling import parse_placed
from ortune.measurement.environments.check import find_further_backends, require_backend_with_hint
from ortune.measurement.process import query_capabilities
from ortune.search.recipe.space import SearchTarget


def read_targets(on: str, device: str = HERE) -> list[SearchTarget]:
    """Read ``--on``: backends by comma, or ``auto`` for all that run on this machine.

    ``openvino in vino`` runs in an environment of `ortune doctor env list`. ``auto`` takes what
    runs in this Python's own, and then what an environment alone offers.

    Args:
        device: Environment of an open device, where all of them run; ``auto`` takes what does.

    Raises:
        BackendMissing: One of them cannot run where it was asked for.
        BadSettings: One of them does not run the model file, has an unknown setting, or is asked
            for in two places; there is no such environment.
    """
    if on.strip() != "auto":
        details = parse_placed(Backend, on)
        if torch_backend := next(
            (backend for backend, *_ in details if isinstance(backend, Torch)), None
        ):
            raise BadSettings(
                f"{torch_backend} runs a module of its own: no recipe for the file changes it",
                fix="give it to --baseline, or compare with `ortune bench --on`",
            )
        placed = [(backend.name(), place) for backend, _, place in details]
        places = dict(placed)
        if device != HERE and (elsewhere := [name for name, place in placed if place != HERE]):
            raise BadSettings(
                f"{elsewhere[0]} is asked for in an environment of this machine, and on {device}",
                fix="leave out the environment, or --executor",
            )
        if duplicates := [name for name, place in placed if places[name] != place]:
            raise BadSettings(
                f"{duplicates[0]} is asked for in two places",
                fix="search in one; `ortune bench --environment here,NAME` times both",
            )
        return [
            SearchTarget(
                backend, require_backend_with_hint(backend, where), pinned, environment=where
            )
            for backend, pinned, place in details
            for where in [place if device == HERE else device]
        ]
    backend_types = [catalog.load_plugin(Backend, name) for name in catalog.list_plugins(Backend)]
    backends = [cls() for cls in backend_types if cls.automatic]
    offered = [(backend, query_capabilities(backend, device)) for backend in backends]
    here = [
        SearchTarget(backend, details, environment=device)
        for backend, details in offered
        if details.missing is None
    ]
    if device != HERE:
        return here
    remote = find_further_backends([target.backend for target in here])
    return [
        *here,
        *(
            SearchTarget(remote_backend, details, environment=place)
            for remote_backend, place, details in remote
        ),
    ]


def spell_on(on: str, targets: Sequence[SearchTarget]) -> str:
    """Return ``--on`` as a job holds it: with the environments that ``auto`` found."""
    if on != "auto":
        return on
    placements = [
        f"{t.backend.name()} in {t.environment}" for t in targets if t.environment != HERE
    ]
    return ",".join([on, *placements])
