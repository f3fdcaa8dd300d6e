"""What plans are made of, in names that trials of one plan share with others."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache, lru_cache

from ortune.backends.bucketed import Bucketed
from ortune.core.backend import Backend
from ortune.core.plugins.plugin import Plugin
from ortune.core.roles import PREPARES, Role, find_step_role
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
_PART = 0.5  # share of a job's time and loss that one of its models is taken to have
_BEHIND = 0.3  # the share of the quantized layers that is left to quantizers behind the first
_APART = ("precision", "custom_ops", "target", "attention")
"""Fields that are no features: the hint says the precision, libraries change no kernels, and where
attention is in integers, it is so in every plan of its kind, at the same accuracy."""


@lru_cache(_KEPT)
def latency_features(plan: Plan) -> Features:
    """Return what a plan's log-ratio is made of, with weights."""
    backend = inner_backend(plan.backend)
    kind, place = _backend_kind(backend), backend_precision(backend)
    quantizers = _quantizer_shares(plan.recipe)
    float_share = (
        sum(share * FLOAT_SHARE.get(item, 1.0) for item, share in quantizers.values())
        if quantizers
        else 1.0
    )
    part = _model_share(plan.recipe)
    float_share = part * float_share + 1 - part
    weights = {f"plan:{plan.spelling}": 1.0}
    weights |= {f"kind:{kind}": float_share, f"hint:{place}": float_share}
    for family, (_, whole) in sorted(quantizers.items()):
        share = part * whole
        weights[f"family:{family}"] = share
        weights[f"family@kind:{family}@{kind}"] = share
        weights[f"family@hint:{family}@{place}"] = share
    weights |= {f"behind:{item}": 1.0 for item in _behind_static(plan.recipe)}
    weights |= dict.fromkeys(_list_step_features(plan.recipe), 1.0)
    weights |= {f"set:{name}": 1.0 for name in list_settings(backend)}
    if isinstance(plan.backend, Bucketed):
        weights["bucketed:"] = 1.0
        if plan.backend.threads:
            weights[f"set:{kind}.threads={plan.backend.threads}"] = 1.0
    return weights


@lru_cache(_KEPT)
def accuracy_features(recipe: Recipe) -> Features:
    """Return what a recipe's strain is made of."""
    shares = sorted(_quantizer_shares(recipe).items())
    part = _model_share(recipe)
    weights = {f"family:{family}": part * share for family, (_, share) in shares}
    weights |= {
        n: 1.0 for n in _list_step_features(recipe) if not n.startswith(("clean:", "rule:"))
    }
    return weights | {f"recipe:{', '.join(map(str, recipe.steps))}": 1.0}


def _list_step_features(recipe: Recipe) -> Iterator[str]:
    """Yield options of quantizers, steps of the accuracy kit, and whether the graph is cleaned.

    Transforms that the search does not apply by itself have a part of their own.
    """
    for outer in recipe.steps:
        step = outer.inner if isinstance(outer, Quantizer) else outer
        if find_step_role(step) in PREPARES:
            yield f"step:{step.name()}"
        elif isinstance(step, Quantizer):
            yield from (f"option:{option}" for option in list_settings(step))
        else:
            yield "clean:"
            if not step.automatic or step.origin:
                yield f"rule:{public_name(step)}"


def public_name(plugin: Plugin) -> str:
    """Return a plugin's name; of one in a file of the user's, the name of its class alone."""
    return plugin.origin.rpartition(":")[2] or plugin.name()


@lru_cache(_KEPT)
def quantizer_names(recipe: Recipe) -> frozenset[str]:
    """Return the quantizers that a recipe is about, without those that prepare for them."""
    return frozenset(s.name() for s in _list_quantizers(recipe))


def _quantizer_shares(recipe: Recipe) -> dict[str, tuple[Role | None, float]]:
    """Return each quantizer's role and the share of the layers that it stands for.

    They do not add up: a layer is quantized once, by the first that takes it. What static ranges
    take they take whatever comes behind, which is a part of its own.
    """
    roles = {step.name(): find_step_role(step) for step in _list_quantizers(recipe)}
    for entry in _behind_static(recipe):
        del roles[entry]
    behind = _BEHIND / max(1, len(roles) - 1)
    first = 1 - behind * (len(roles) - 1)
    shares = (behind if place else first for place in range(len(roles)))
    return {
        name: (entry, share) for (name, entry), share in zip(roles.items(), shares, strict=True)
    }


def _behind_static(recipe: Recipe) -> list[str]:
    """Return the quantizers with dynamic ranges that take what one with static ranges leaves:
    recurrent layers, and no convolution, which alone they may slow down."""
    quantizers = _list_quantizers(recipe)
    if not quantizers or find_step_role(quantizers[0]) is not Role.STATIC:
        return []
    return sorted({step.name() for step in quantizers[1:] if find_step_role(step) is Role.DYNAMIC})


def _list_quantizers(recipe: Recipe) -> list[Quantizer]:
    quantizers = (step.inner for step in recipe.steps if isinstance(step, Quantizer))
    return [step for step in quantizers if find_step_role(step) not in PREPARES]


def _model_share(recipe: Recipe) -> float:
    """Return the share of a job that a recipe is about, by how many models it names."""
    return min(1.0, _PART * len(recipe.only)) if recipe.only else 1.0


def list_settings(plugin: Plugin) -> Iterator[str]:
    """Yield ``name.field=value`` of the fields that are not at their defaults.

    Those of a backend that hold several values are as many.
    """
    for field, default in _field_defaults(type(plugin)).items():
        value, name = getattr(plugin, field), f"{plugin.name()}.{field}"
        if field in _APART or value == default:
            continue
        if isinstance(plugin, Backend) and isinstance(value, tuple):
            yield from (f"{name}={element}" for element in value)
        else:
            yield f"{name}={value}"


@cache
def _field_defaults(kind: type[Plugin]) -> Mapping[str, object]:
    """Return the fields, each with its default; MISSING where it has none."""
    return {
        f.name: f.default if f.default_factory is MISSING else f.default_factory()
        for f in fields(kind)
    }


def inner_backend(backend: Backend) -> Backend:
    """Return what really runs the model."""
    return backend.inner if isinstance(backend, Bucketed) else backend


@lru_cache(_KEPT)
def backend_precision(backend: Backend) -> str:
    """Return the backend and the arithmetic of its float layers, such as ``openvino/bf16``."""
    ran = inner_backend(backend)
    return f"{_backend_kind(ran)}/{getattr(ran, 'precision', '')}".rstrip("/")


@lru_cache(_KEPT)
def plan_family(plan: Plan) -> tuple[frozenset[str], str]:
    """Return a plan's quantizers, and the backend and precision hint under which they run."""
    return quantizer_names(plan.recipe), backend_precision(plan.backend)


def _backend_kind(backend: Backend) -> str:
    """Return the backend, and its kind of device where that is not told by the name."""
    return backend.name() if backend.runs_on == "cpu" else f"{backend.name()} on {backend.runs_on}"
