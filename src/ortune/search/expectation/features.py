"""What plans are made of, in names that trials of one plan share with others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache, lru_cache

from ortune.backends.bucketed import Bucketed
from ortune.core.backend import Backend
from ortune.core.plugins import catalog
from ortune.core.plugins.plugin import Plugin
from ortune.core.step import Quantizer, Recipe, Step
from ortune.core.trial import Plan
from ortune.quantization.roles import Role
from ortune.search.earlier.words import called
from ortune.search.expectation.surrogate import Features

_KEPT = 4096
"""Plans whose features are kept: every proposal asks for those of all candidates again."""

_FLOAT_SHARE: Mapping[Role | None, float] = {
    Role.STATIC: 0.35,
    Role.DYNAMIC: 0.35,
    Role.WEIGHTS: 0.9,
}
"""How much of a plan's time stays with float layers, and so with the backend's hint for them."""
_LABOUR: Mapping[Role | None, float] = {Role.ROUNDS: 12.0, Role.SMOOTHS: 2.0, Role.CORRECTS: 2.0}
_BOOLEANS = {"true": "True", "false": "False"}
_PREPARES = (Role.EQUALIZES, Role.SMOOTHS, Role.ROUNDS, Role.CORRECTS, Role.CLIPS)


@lru_cache(_KEPT)
def latency_features(plan: Plan) -> Features:
    """Return what a plan's log-ratio is made of, with weights."""
    backend = inner(plan.backend)
    made = {step.name(): _role(step) for step in _quantizers(plan.recipe)}
    found = {f"plan:{plan.spelled}": 1.0, **_placed(backend.name(), hint(backend), made)}
    found |= dict.fromkeys(_parts(plan.recipe), 1.0)
    found |= {f"set:{backend.name()}.{name}": 1.0 for name in _settings(backend)}
    if isinstance(plan.backend, Bucketed):
        found["bucketed:"] = 1.0
        if plan.backend.threads:
            found[f"set:{backend.name()}.threads={plan.backend.threads}"] = 1.0
    return found


def _placed(kind: str, place: str, made: Mapping[str, Role | None]) -> dict[str, float]:
    """Return what backend, hint and quantizers are expected to bring, alone and together."""
    rest = math.prod(_FLOAT_SHARE.get(role, 1.0) for role in made.values())
    found = {f"kind:{kind}": rest, f"hint:{place}": rest}
    for family in sorted(made):
        found[f"family:{family}"] = 1.0
        found[f"family@kind:{family}@{kind}"] = 1.0
        found[f"family@hint:{family}@{place}"] = 1.0
    return found


def recorded_features(said: Sequence[str]) -> Features:
    """Return what the log-ratio of recorded plans is made of, by their words.

    The names are those of `latency_features`; a list in an option has none of its own there.
    """
    by: dict[str, list[str]] = {}
    for name, _, value in (word.partition("=") for word in said):
        by.setdefault(name, []).append(value)
    kind, _, precision = by["backend"][0].rstrip(")").partition("(")
    roles = {name: _named_role(name) for name in by["recipe"] if name in catalog.names(Quantizer)}
    made = {name: role for name, role in roles.items() if role not in _PREPARES}
    found = _placed(kind, f"{kind}/{precision}".rstrip("/"), made)
    found |= {f"step:{name}": 1.0 for name in roles if name not in made}
    if "clean" in (*by["recipe"], *by.get("step", ())):
        found["clean:"] = 1.0
    found |= {f"rule:{name}": 1.0 for name in by.get("step", ()) if name != "clean"}
    if "padding" in by:
        found["bucketed:"] = 1.0
    for name, values in by.items():
        owner = name.partition(".")[0]
        if owner == kind:
            every = (one for value in values for one in value.strip("[]").split(", "))
            found |= {f"set:{name}={_BOOLEANS.get(one, one)}": 1.0 for one in every}
        elif owner in made and name != f"{owner}.target":
            found |= {f"option:{name}={_BOOLEANS.get(one, one)}": 1.0 for one in values}
    return found


def _named_role(name: str) -> Role | None:
    return vars(catalog.load(Quantizer, name)).get("role")


@lru_cache(_KEPT)
def strain_features(recipe: Recipe) -> Features:
    """Return what a recipe's strain is made of."""
    found = {f"family:{family}": 1.0 for family in sorted(families(recipe))}
    found |= {n: 1.0 for n in _parts(recipe) if not n.startswith(("clean:", "rule:"))}
    return found | {f"recipe:{', '.join(map(str, recipe.steps))}": 1.0}


def _parts(recipe: Recipe) -> Iterator[str]:
    """Yield options of quantizers, steps of the accuracy kit, and whether the graph is cleaned.

    Transforms that the search does not apply by itself have a part of their own.
    """
    for step in recipe.steps:
        if _role(step) in _PREPARES:
            yield f"step:{step.name()}"
        elif isinstance(step, Quantizer):
            some = ((name, value) for name, value in _changed(step) if name != "target")
            yield from (f"option:{step.name()}.{name}={value}" for name, value in some)
        else:
            yield "clean:"
            if not step.automatic or step.origin:
                yield f"rule:{called(step)}"


@lru_cache(_KEPT)
def families(recipe: Recipe) -> frozenset[str]:
    """Return the quantizers that a recipe is about, without those that prepare for them."""
    return frozenset(s.name() for s in _quantizers(recipe))


def _quantizers(recipe: Recipe) -> list[Quantizer]:
    return [s for s in recipe.steps if isinstance(s, Quantizer) and _role(s) not in _PREPARES]


def _role(step: Step) -> Role | None:
    return vars(type(step)).get("role")


def _settings(backend: Backend) -> Iterator[str]:
    for name, value in _changed(backend):
        if name in ("precision", "custom_ops"):
            continue
        if isinstance(value, tuple):
            yield from (f"{name}={one}" for one in value)
        else:
            yield f"{name}={value}"


def _changed(plugin: Plugin) -> Iterator[tuple[str, object]]:
    """Yield the fields that are not at their defaults; those without one never are."""
    plain = _defaults(type(plugin))
    for name, default in plain.items():
        if (value := getattr(plugin, name)) != default:
            yield name, value


@cache
def _defaults(kind: type[Plugin]) -> Mapping[str, object]:
    return {
        f.name: f.default if f.default_factory is MISSING else f.default_factory()
        for f in fields(kind)
    }


def inner(backend: Backend) -> Backend:
    """Return what really runs the model."""
    return backend.inner if isinstance(backend, Bucketed) else backend


@lru_cache(_KEPT)
def hint(backend: Backend) -> str:
    """Return the backend and the arithmetic of its float layers, such as ``openvino/bf16``."""
    ran = inner(backend)
    return f"{ran.name()}/{getattr(ran, 'precision', '')}".rstrip("/")


@lru_cache(_KEPT)
def labour(recipe: Recipe) -> float:
    """Return how much work building is, in passes over the weights: rounding searches, layer by
    layer, for what changes the outputs least."""
    return sum(
        _LABOUR.get(_role(step), 1.0)
        for step in recipe.steps
        if isinstance(step, Quantizer) or _role(step) in _PREPARES
    )
