"""What plans are made of, in names that trials of one plan share with others."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache, lru_cache
from types import NoneType
from typing import Any

from ortune.backends.bucketed import Bucketed
from ortune.core.backend import Backend
from ortune.core.plugins.plugin import Plugin
from ortune.core.roles import PREPARES, Role, role
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Plan
from ortune.search.expectation.surrogate import Features

_KEPT = 4096
"""Plans whose features are kept: every proposal asks for those of all candidates again."""
FLOAT_SHARE: Mapping[Role | None, float] = {
    Role.STATIC: 0.35,
    Role.DYNAMIC: 0.35,
    Role.WEIGHTS: 0.9,
}
"""How much of a plan's time stays with float layers, and so with the backend's hint for them."""
_BEHIND = 0.3
"""The share of the quantized layers that is left to quantizers behind the first."""
_APART = ("precision", "custom_ops", "target")
"""Fields that are no features: the hint says the precision, and libraries change no kernels."""
_OF_TYPES = ("ops", "through", "around", "disable")
"""Fields that list operators, or passes of a runtime: never names of the user's model."""


@lru_cache(_KEPT)
def latency_features(plan: Plan, *, public: bool = False) -> Features:
    """Return what a plan's log-ratio is made of, with weights.

    Args:
        public: Without names of the user's: neither the plan itself nor what settings of free
            text say, which are named alone.
    """
    backend = inner(plan.backend)
    kind, place = _kind(backend), hint(backend)
    made = _parted(plan.recipe)
    rest = sum(share * FLOAT_SHARE.get(one, 1.0) for one, share in made.values()) if made else 1.0
    found = {} if public else {f"plan:{plan.spelled}": 1.0}
    found |= {f"kind:{kind}": rest, f"hint:{place}": rest}
    for family, (_, share) in sorted(made.items()):
        found[f"family:{family}"] = share
        found[f"family@kind:{family}@{kind}"] = share
        found[f"family@hint:{family}@{place}"] = share
    found |= {f"behind:{one}": 1.0 for one in _behind_static(plan.recipe)}
    found |= dict.fromkeys(_parts(plan.recipe, public=public), 1.0)
    found |= {f"set:{name}": 1.0 for name in chosen(backend, public=public)}
    if isinstance(plan.backend, Bucketed):
        found["bucketed:"] = 1.0
        if plan.backend.threads:
            found[f"set:{kind}.threads={plan.backend.threads}"] = 1.0
    return found


@lru_cache(_KEPT)
def strain_features(recipe: Recipe) -> Features:
    """Return what a recipe's strain is made of."""
    parted = sorted(_parted(recipe).items())
    found = {f"family:{family}": share for family, (_, share) in parted}
    found |= {n: 1.0 for n in _parts(recipe) if not n.startswith(("clean:", "rule:"))}
    return found | {f"recipe:{', '.join(map(str, recipe.steps))}": 1.0}


def _parts(recipe: Recipe, *, public: bool = False) -> Iterator[str]:
    """Yield options of quantizers, steps of the accuracy kit, and whether the graph is cleaned.

    Transforms that the search does not apply by itself have a part of their own.
    """
    for step in recipe.steps:
        if role(step) in PREPARES:
            yield f"step:{step.name()}"
        elif isinstance(step, Quantizer):
            yield from (f"option:{one}" for one in chosen(step, public=public))
        else:
            yield "clean:"
            if not step.automatic or step.origin:
                yield f"rule:{called(step)}"


def called(plugin: Plugin) -> str:
    """Return a plugin's name; of one in a file of the user's, the name of its class alone."""
    return plugin.origin.rpartition(":")[2] or plugin.name()


@lru_cache(_KEPT)
def families(recipe: Recipe) -> frozenset[str]:
    """Return the quantizers that a recipe is about, without those that prepare for them."""
    return frozenset(s.name() for s in _quantizers(recipe))


def _parted(recipe: Recipe) -> dict[str, tuple[Role | None, float]]:
    """Return each quantizer's role and the share of the layers that it stands for.

    They do not add up: a layer is quantized once, by the first that takes it. What static ranges
    take they take whatever comes behind, which is a part of its own.
    """
    made = {step.name(): role(step) for step in _quantizers(recipe)}
    for one in _behind_static(recipe):
        del made[one]
    behind = _BEHIND / max(1, len(made) - 1)
    first = 1 - behind * (len(made) - 1)
    shares = (behind if place else first for place in range(len(made)))
    return {name: (one, share) for (name, one), share in zip(made.items(), shares, strict=True)}


def _behind_static(recipe: Recipe) -> list[str]:
    """Return the quantizers with dynamic ranges that take what one with static ranges leaves:
    recurrent layers, and no convolution, which alone they may slow down."""
    found = _quantizers(recipe)
    if not found or role(found[0]) is not Role.STATIC:
        return []
    return sorted({step.name() for step in found[1:] if role(step) is Role.DYNAMIC})


def _quantizers(recipe: Recipe) -> list[Quantizer]:
    return [s for s in recipe.steps if isinstance(s, Quantizer) and role(s) not in PREPARES]


def chosen(plugin: Plugin, *, public: bool = False) -> Iterator[str]:
    """Yield ``name.field=value`` of the fields that are not at their defaults.

    Those of a backend that hold several values are as many.

    Args:
        public: Of a field of free text its name alone: it may hold names of the user's.
    """
    for field, default in _defaults(type(plugin)).items():
        value, name = getattr(plugin, field), f"{plugin.name()}.{field}"
        if field in _APART or value == default:
            continue
        if public and field in _free(type(plugin)):
            yield name
        elif isinstance(plugin, Backend) and isinstance(value, tuple):
            yield from (f"{name}={one}" for one in value)
        else:
            yield f"{name}={value}"


@cache
def _defaults(kind: type[Plugin]) -> Mapping[str, object]:
    """Return the fields, each with its default; MISSING where it has none."""
    return {
        f.name: f.default if f.default_factory is MISSING else f.default_factory()
        for f in fields(kind)
    }


@cache
def _free(kind: type[Plugin]) -> frozenset[str]:
    """Return the fields of a plugin that may hold more than numbers and words of its own."""
    hints = typing.get_type_hints(kind)
    names = (field.name for field in fields(kind))
    return frozenset(one for one in names if one not in _OF_TYPES and not _closed(hints[one]))


def _closed(hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Literal:
        return True
    inside = [one for one in typing.get_args(hint) if one is not ...]
    return all(map(_closed, inside)) if inside else hint in (bool, int, float, NoneType)


def inner(backend: Backend) -> Backend:
    """Return what really runs the model."""
    return backend.inner if isinstance(backend, Bucketed) else backend


@lru_cache(_KEPT)
def hint(backend: Backend) -> str:
    """Return the backend and the arithmetic of its float layers, such as ``openvino/bf16``."""
    ran = inner(backend)
    return f"{_kind(ran)}/{getattr(ran, 'precision', '')}".rstrip("/")


def _kind(backend: Backend) -> str:
    """Return the backend, and its kind of device where that is not told by the name."""
    return backend.name() if backend.runs_on == "cpu" else f"{backend.name()} on {backend.runs_on}"
