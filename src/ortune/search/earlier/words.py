"""What plans have in common, in words: a surrogate and the record of a machine share them.

A plan's *words* say what it is: the kind and size of the model, the backend with its precision,
each setting that is not at its default, each family of the recipe and its options. They hold no
name of a tensor, a node, a file or a function: of such a list they keep its length. Its *features*
are these words but for the model's, and the pairs and triples of them that may behave in a way of
their own, joined by ``|``.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from itertools import product
from typing import Any

from ortune.backends.bucketed import Bucketed
from ortune.core.backend import Backend
from ortune.core.facts import Facts
from ortune.core.plugins.plugin import Plugin, spell
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Plan

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_PRODUCTS = ("MatMul", "Gemm")
_RECURRENT = ("LSTM", "GRU", "RNN")
_ATTENTION = ("Attention", "com.microsoft::Attention", "com.microsoft::MultiHeadAttention")
_MOSTLY = 2 / 3
"""Share of the layers from which they name the model."""
_SIZES = (("small", 1_000_000), ("medium", 30_000_000))
"""Size -> weights below which a model has it."""

_OF_TYPES = frozenset({"ops", "through", "around", "disable"})
"""Fields that list operators, or passes of a runtime: never names of the user's model."""


def features(plan: Plan, facts: Facts) -> tuple[str, ...]:
    """Return the features of a plan for a model: different ones, in an order that is always so."""
    return expanded(words(plan, facts))


def words(plan: Plan, facts: Facts) -> tuple[str, ...]:
    """Return what a plan for a model is: ``model=``, ``size=`` and ``backend=`` come first."""
    about = (f"model={kind(facts)}", f"size={size(facts)}")
    return tuple(dict.fromkeys((*about, *backend_words(plan.backend), *_recipe(plan.recipe))))


@cache
def expanded(said: tuple[str, ...]) -> tuple[str, ...]:
    """Return the features of a plan of these words.

    A backend and a family may pay together alone; both may depend on the kind of the model, and a
    family on its size; a setting of the backend on either, but for the threads, which most plans
    of a search share.
    """
    by = {
        name: [one for one in said if one.startswith(f"{name}=")]
        for name in ("model", "size", "backend", "recipe")
    }
    about = {*by["model"], *by["size"]}
    known = {*about, *by["backend"], *by["recipe"]}
    backends = {one.partition("=")[2].partition("(")[0] for one in by["backend"]}
    chosen = [
        one
        for one in said
        if one not in known and one.partition(".")[0] in backends and ".threads=" not in one
    ]
    found = [one for one in said if one not in about]
    for names in (
        ("backend", "recipe"),
        ("model", "backend"),
        ("model", "recipe"),
        ("model", "backend", "recipe"),
        ("size", "recipe"),
    ):
        found += ["|".join(one) for one in product(*(by[name] for name in names))]
    found += [f"{one}|{setting}" for one in (*by["model"], *by["recipe"]) for setting in chosen]
    return tuple(dict.fromkeys(found))


def kind(facts: Facts) -> str:
    """Return what most of a model's layers are.

    One of ``quantized`` (it came with integer arithmetic), ``recurrent``, ``conv``, ``attention``,
    ``matmul``, ``mixed`` and ``other``.
    """
    if facts.quantized:
        return "quantized"
    if facts.has(*_RECURRENT):
        return "recurrent"
    convolutions, products = (
        sum(facts.ops.get(op, 0) for op in ops) for ops in (_CONVOLUTIONS, _PRODUCTS)
    )
    layers = convolutions + products
    if layers and convolutions >= _MOSTLY * layers:
        return "conv"
    attention = facts.has(*_ATTENTION) or facts.ops.get("Softmax", 0) > 1
    if attention and products > convolutions:
        return "attention"
    if layers and products >= _MOSTLY * layers:
        return "matmul"
    return "mixed" if layers else "other"


def size(facts: Facts) -> str:
    """Return ``small``, ``medium`` or ``large``: below 1 million weights, below 30, or beyond."""
    found = (name for name, most in _SIZES if facts.parameters < most)
    return next(found, "large")


def backend_words(backend: Backend) -> tuple[str, ...]:
    """Return a backend with its precision, and its settings that are not at their defaults.

    Behind buckets it is the inner backend that computes.
    """
    inner = backend.inner if isinstance(backend, Bucketed) else backend
    name, precision = called(inner), getattr(inner, "precision", "")
    found = [f"backend={name}({precision})" if precision else f"backend={name}"]
    if inner is not backend:
        found.append("padding=cut")
        if backend.threads:
            found.append(f"{name}.threads={backend.threads}")
    left = {"precision", *inner.reads}
    return (*found, *settings(inner, name, left))


def _recipe(recipe: Recipe) -> Iterator[str]:
    """Yield the families of a recipe, their options, and exact steps that not every one has."""
    spent = [step for step in recipe.steps if isinstance(step, Quantizer)]
    if not spent:
        yield "recipe=clean" if recipe.steps else "recipe=as-is"
    elif len(spent) < len(recipe.steps):
        yield "step=clean"
    for step in recipe.steps:
        name = called(step)
        if isinstance(step, Quantizer):
            yield f"recipe={name}"
            yield from settings(step, name)
        elif not step.automatic or step.origin:
            yield f"step={name}"


def called(plugin: Plugin) -> str:
    """Return a plugin's name; of one in a file of the user's, the name of its class alone."""
    return plugin.origin.rpartition(":")[2] or plugin.name()


def ours(plugin: Plugin) -> bool:
    """Whether a plugin and those in its fields are ortune's: the names of others may tell."""
    values = [getattr(plugin, field.name) for field in fields(plugin)]
    inner = all(ours(one) for one in values if isinstance(one, Plugin))
    return type(plugin).__module__.startswith("ortune.") and inner


def settings(plugin: Plugin, name: str, left: Iterable[str] = ()) -> Iterator[str]:
    """Yield ``name.field=value`` of every field that is not at its default."""
    plain, free = type(plugin)(), _free(type(plugin))
    for field in fields(plugin):
        value, word = getattr(plugin, field.name), f"{name}.{field.name}"
        if field.name in left or value == getattr(plain, field.name):
            continue
        if isinstance(value, Plugin):
            yield f"{word}={called(value)}"
            yield from settings(value, word)
        else:
            yield f"{word}{_value(value, field.name, free=field.name in free)}"


def _value(value: Any, name: str, *, free: bool) -> str:
    """Write a value, but nothing that a user may have written freely: only that it is there."""
    if isinstance(value, (tuple, list)):
        texts = any(isinstance(one, str) for one in value)
        return f"={len(value)}" if texts and name not in _OF_TYPES else f"={spell(value)}"
    if isinstance(value, str) and free:
        return ""
    return f"={spell(value)}"


@cache
def _free(kind: type[Plugin]) -> frozenset[str]:
    """Return the fields of a plugin that take any text."""
    hints = typing.get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if hint is str or str in _args(hint))


def _args(hint: Any) -> tuple[Any, ...]:
    return () if typing.get_origin(hint) is typing.Literal else typing.get_args(hint)
